"""Warm worker groups and the trials that run on them."""
