"""Model families. Knows nothing of lf_ray."""
