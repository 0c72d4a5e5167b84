"""What limits an answer is said with it."""

from types import SimpleNamespace
from typing import Any

import pytest

from lf_ray.analysis.report.words import labels


@pytest.mark.parametrize(
    ("workers", "num_cores", "device", "said"),
    [(8, 2, "cpu", True), (2, 2, "cpu", False), (8, 2, "cuda", False), (2, None, "cpu", False)],
)
def test_workers_that_share_cores_are_no_measure_of_speed(
    workers: int, num_cores: int | None, device: str, said: bool
) -> None:
    config = {"cluster": {"device": device, "workers": workers}, "data": {"source": "synthetic"}}
    header = SimpleNamespace(config=config, machine={"num_cores": num_cores})
    answer: Any = SimpleNamespace(history=SimpleNamespace(header=header))
    found = [line for line in labels(answer) if "shared" in line]
    assert bool(found) is said
    if said:
        assert "8 workers shared 2 cores" in found[0]
