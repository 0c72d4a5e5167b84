"""lf_ray subpackage: one worker's model, data and step."""
