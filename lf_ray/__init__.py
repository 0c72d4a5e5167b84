"""lf-ray finds the throughput knee of distributed GR00T N1.6 fine-tuning."""

__version__ = "0.1.0"
