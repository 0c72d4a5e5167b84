"""What MLflow should show of a sweep, worked out without MLflow."""
