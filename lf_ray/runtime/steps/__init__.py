"""How a step runs: its inputs, its pieces, their order and their times."""
