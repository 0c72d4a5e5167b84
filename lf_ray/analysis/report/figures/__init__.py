"""Figures of an answer, as SVG text."""
