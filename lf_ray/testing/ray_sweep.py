"""A whole sweep whose sessions are fakes: real Ray, Tune, journal, study and MLflow, no model.

    python -m lf_ray.testing.ray_sweep '{}' sweep.trials=6 measure=standard
    python -m lf_ray.testing.ray_sweep '{"base_s": 0.05}' resume=20260101-000000

The first word is JSON for the sessions (fields of `FakeFactory`), the others are a sweep's. What a
visit reads depends on its knobs alone, so that two sweeps of the same words give the same answer.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from lf_ray.launch import Launch
from lf_ray.search.command import run_sweep
from lf_ray.search.space import Literal
from lf_ray.settings import SweepConfig
from lf_ray.testing.objectives import layer_gradients
from lf_ray.testing.sessions import FakeFactory, Fault
from lf_ray.trial.launch import open_groups

NAME = "overlap"
SPACE: Literal = {
    "overlap.bucket_size_mb": [2.0, 4.0, 8.0, 32.0],
    "overlap.ratio": [0.0, 0.5, 1.0],
}


def factory_of(described: Mapping[str, Any]) -> FakeFactory:
    """Returns the maker of sessions that the JSON words describe."""
    faults = tuple(
        Fault(**{**item, "ranks": tuple(item.get("ranks", (0, 1)))})
        for item in described.get("faults", ())
    )
    gradients = layer_gradients()
    return FakeFactory(**{"gradients": gradients, "base_s": 0.004, **described, "faults": faults})


def _no_data(config: SweepConfig) -> str:
    return "fake"


def main(words: Sequence[str]) -> int:
    """Runs the sweep and returns its exit code."""
    described, *overrides = words
    make_session = factory_of(json.loads(described))
    launch = Launch(
        prepare_data=_no_data, open_groups=partial(open_groups, make_session=make_session)
    )
    return run_sweep(NAME, SPACE, overrides, launch, about=__doc__ or "")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
