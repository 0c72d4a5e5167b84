"""The real nano model on eight gloo ranks: plans pass the gate, ranks stay equal.

Correctness only: eight ranks on few cores say nothing about speed.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from lf_ray.runtime.session import Session
from lf_ray.testing.ranks import RankPlace, RankPool
from lf_ray.testing.synthetic import SyntheticParts
from lf_ray.testing.toy import toy_config, toy_request

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]
Ranks = Callable[[int], RankPool]
PIPELINED = {"graph.scope": "step+optimizer", "pipeline.prefix": "on"}
PLANS: list[dict[str, Any]] = [
    {"overlap.bucket_size_mb": 25.0, "overlap.ratio": 1.0},
    {"overlap.bucket_size_mb": 1.0, "overlap.ratio": 0.5, **PIPELINED},
    {"overlap.bucket_size_mb": 4.0, "overlap.ratio": 0.0, "overlap.comm_dtype": "bf16"},
]


def _trials(place: RankPlace) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    config = toy_config(place.world_size)
    config.model.size, config.model.image_px = "nano", 56
    session = Session(
        config,
        place.rank,
        place.world_size,
        "cpu",
        place.work_group,
        place.control_group,
        SyntheticParts(),
    )
    found = []
    for knobs in PLANS:
        effective = session.prepare(toy_request(config, {**knobs, "batch.per_gpu": 1}))
        session.rehearse()
        samples = session.run(1)
        session.capture()
        samples += session.run(2)
        found.append(
            {
                "gate": session.gate().to_json(),
                "norms": [sample.grad_norm for sample in samples],
                "weights": session.weights_checksum(),
                "world_size": effective["world_size"],
                "global_batch": effective["global_batch"],
            }
        )
        session.reset()
    session.close()
    return found


@pytest.mark.night
def test_eight_ranks_of_nano_pass_the_gate_and_agree(ranks: Ranks) -> None:
    by_rank = ranks(8).run(_trials, deadline_s=380)
    for index, knobs in enumerate(PLANS):
        results = [results[index] for results in by_rank]
        for result in results:
            assert result["gate"]["passed"], (knobs, result["gate"])
            assert (result["world_size"], result["global_batch"]) == (8, 8)
            assert result["norms"] == results[0]["norms"]
            assert result["weights"] == results[0]["weights"]
