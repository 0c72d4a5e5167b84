"""Sweeps in stages: each from the last one's winner, then all together, then how well it learns."""
