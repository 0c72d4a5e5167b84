"""The optimizer step over flat buffers: gradient norm, clip, AdamW and bf16 weights in two passes.

On a GPU with Triton two kernels read each gradient twice and every other number once; anywhere
else the same arithmetic runs as plain torch operations. Neither path waits for the device.
"""

from lf_ray.runtime.kernels.update import AdamWRule, FusedAdamW, NonFinite, kernel_refusal

__all__ = ["AdamWRule", "FusedAdamW", "NonFinite", "kernel_refusal"]
