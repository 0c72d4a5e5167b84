"""A group that does not exist, behind the same trainable as one that does."""
