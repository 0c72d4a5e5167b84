"""Private calls of torch that lf_ray.runtime.memory leans on.

If one fails, read torch/cuda/memory.py (`use_mem_pool`) and c10/cuda/CUDACachingAllocator.cpp again
before changing anything here: routing that misses backward's thread, or that also catches a graph
capture, shows as wrong numbers and not as an error.
"""

import inspect
from pathlib import Path

import torch
from torch.cuda import memory as cuda_memory


def _stub() -> str:
    return (Path(torch.__file__).parent / "_C" / "__init__.pyi").read_text()


def test_routing_all_threads_to_a_pool_takes_a_device_and_a_pool_id() -> None:
    flat = " ".join(_stub().split())
    expected = "def _cuda_beginAllocateToPool(device: _int, mempool_id: tuple[_int, _int])"
    assert expected in flat.replace("( device", "(device").replace(", )", ")")
    for name in ("_cuda_endAllocateToPool", "_cuda_releasePool"):
        assert f"def {name}(" in flat


def test_leaving_a_pool_is_still_end_then_release() -> None:
    source = inspect.getsource(cuda_memory.use_mem_pool)
    assert source.index("_cuda_endAllocateToPool") < source.index("_cuda_releasePool")
    assert "_cuda_beginAllocateCurrentThreadToPool" in source


def test_expandable_segments_are_set_while_running() -> None:
    assert hasattr(torch._C, "_accelerator_setAllocatorSettings")


def test_memory_history_takes_what_the_analysis_asks_for() -> None:
    parameters = inspect.signature(cuda_memory._record_memory_history).parameters
    assert {"context", "max_entries", "clear_history"} <= set(parameters)
