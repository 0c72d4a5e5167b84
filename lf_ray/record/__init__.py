"""The journal, which is the truth, and MLflow, which mirrors it."""
