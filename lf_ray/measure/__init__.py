"""Steady state, intervals and when to stop. numpy only."""
