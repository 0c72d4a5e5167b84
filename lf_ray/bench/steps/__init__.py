"""What `python -m lf_ray.bench step` runs beside our own step, and how its rows read."""
