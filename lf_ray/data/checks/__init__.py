"""What `lf_ray.data.check` looks at, part by part. No torch."""
