"""The input path on its own: real batches against a step that only takes its time."""
