"""Benchmarks: python -m lf_ray.bench NAME."""
