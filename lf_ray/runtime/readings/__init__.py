"""What is read back from a worker: settings in force, memory levels, what communication costs."""
