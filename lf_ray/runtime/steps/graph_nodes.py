"""How many kernels and copies a captured graph holds: so many launches a replay saves."""

import ctypes
from typing import Any


def num_nodes(graph: Any, library: str = "libcuda.so.1") -> int:
    """Returns the nodes of a CUDA graph that keeps its definition, 0 where the driver won't say.

    Args:
        graph: a captured `torch.cuda.CUDAGraph(keep_graph=True)`.
        library: of the CUDA driver.
    """
    count = ctypes.c_size_t(0)
    try:
        driver = ctypes.CDLL(library)
        handle = ctypes.c_void_p(graph.raw_cuda_graph())
        failed = driver.cuGraphGetNodes(handle, None, ctypes.byref(count))
    except (OSError, AttributeError):
        return 0
    return 0 if failed else count.value
