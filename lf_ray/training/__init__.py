"""A training: the session's own step from the first sample to the last, saved, resumed, watched."""
