"""The worker's allocator without a GPU: nothing to choose, nothing to fit, nothing to give back."""

import torch

from lf_ray.runtime.readings.device_memory import ANALYSED, DeviceMemory
from lf_ray.settings import MemoryBackend, MemorySettings

CPU = torch.device("cpu")


def test_a_cpu_has_no_pool_and_analyses_nothing() -> None:
    memory = DeviceMemory(MemorySettings(backend=MemoryBackend.arena, block_sizes=ANALYSED), CPU)
    steps: list[int] = []
    memory.fit(lambda: steps.append(1))
    assert steps == []
    assert memory.ladder == "none"
    assert memory.bytes() == {}
    memory.give_back()
    memory.close()
