"""Knee, goodput, figures and report: numpy in, numbers out."""
