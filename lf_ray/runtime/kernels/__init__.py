"""The step on fewer and larger kernels: the update over flat buffers, the prefix, the head.

On a GPU with Triton: gradient norm, clip, AdamW and bf16 weights in two passes over memory; the
frozen prefix and the blocks that learn fused from outside a finished model. Anywhere else the same
arithmetic runs as plain torch operations, or as the model's own. Nothing here waits for the device.
"""

from lf_ray.runtime.kernels.compiling import compile_s
from lf_ray.runtime.kernels.frozen_prefix import fuse_prefix
from lf_ray.runtime.kernels.fused_head import fuse_head
from lf_ray.runtime.kernels.update import AdamWRule, FusedAdamW, NonFinite, kernel_refusal

__all__ = [
    "AdamWRule",
    "FusedAdamW",
    "NonFinite",
    "compile_s",
    "fuse_head",
    "fuse_prefix",
    "kernel_refusal",
]
