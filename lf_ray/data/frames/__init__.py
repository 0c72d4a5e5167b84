"""Frames of a data set by row number: decoded on demand, kept in a shared file. No torch."""
