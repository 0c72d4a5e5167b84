"""Copies on the host are page-locked for the GPU that they belong to, and for no other."""

import gc
import os
import subprocess
import sys

import pytest
import torch

from lf_ray.runtime.host_copy import HostCopy

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

ON_THE_LAST_GPU = """
import torch
from lf_ray.runtime.host_copy import HostCopy

last = torch.cuda.device_count() - 1
torch.cuda.set_device(last)
values = torch.ones(1000, device=f"cuda:{last}")
kept = HostCopy(1000, values.device)
kept.take(values)
del kept
import ctypes
flags, active = ctypes.c_uint(), ctypes.c_int()
driver = ctypes.CDLL("libcuda.so.1")
for index in range(last):
    assert driver.cuDevicePrimaryCtxGetState(index, ctypes.byref(flags), ctypes.byref(active)) == 0
    assert active.value == 0, f"a context on GPU {index}"
"""


def test_values_travel_there_and_back_and_the_memory_is_locked() -> None:
    values = torch.randn(5_000_001, device="cuda")
    kept = HostCopy(6_000_000, values.device)
    kept.take(values)
    assert kept.kept_N.is_pinned()
    back = torch.zeros(3_000_000, device="cuda")
    kept.give(back, 1_999_999)
    assert torch.equal(back, values[1_999_999:4_999_999])


def test_what_is_dropped_is_unlocked() -> None:
    for _ in range(3):  # the same pages may come back, and locking them twice is an error
        kept = HostCopy(50_000_000, torch.device("cuda", torch.cuda.current_device()))
        kept.take(torch.ones(10, device="cuda"))
        del kept
        gc.collect()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_no_context_is_made_on_the_first_gpu() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", ON_THE_LAST_GPU], env=environment, check=True)
