"""LeRobot data sets from disk to batches."""
