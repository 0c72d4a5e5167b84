"""What a trained model is good for: actions, their error, its export."""
