"""What to try next, and the sweep that tries it. Never imports torch."""
