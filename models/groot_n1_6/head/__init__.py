"""The action head: what turns language features, state and noise into a velocity."""
