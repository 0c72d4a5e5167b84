"""LeRobot data sets, versions 2.0, 2.1 and 3.0, as files on disk. No torch."""
