"""Correct before fast: digests of a trial's first steps, the reference, and the gate's verdict."""
