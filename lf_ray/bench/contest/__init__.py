"""How searchers are compared: tables, one race under a simulated clock, and its books."""
