"""The parts that decide: pure functions of what the journal says."""
