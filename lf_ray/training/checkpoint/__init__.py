"""Checkpoints of a training: everything that its next step follows from, and no pickle."""
