"""What a training tells: its first lines, its last ones, summary.json, its tags in MLflow."""
