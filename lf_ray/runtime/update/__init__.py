"""What turns reduced gradients into new weights: flat buffers, AdamW, the learning-rate rule."""
