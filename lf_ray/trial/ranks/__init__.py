"""What runs on each worker of a group: the control line and the loop that serves requests."""
