"""Fakes and fixtures that ship with the package."""
