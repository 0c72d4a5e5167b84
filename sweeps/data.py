"""Finds the fewest loader workers that never starve a step of a given length. Needs no GPU.

    python sweeps/data.py data.step_s=0.1                      # your step's seconds
    python sweeps/data.py data.path=DIR data.step_s=0.2 batch.per_gpu=32 model=3b
    python sweeps/data.py data.path=DIR data.cache=false       # a set that no cache can hold

One process takes real batches and pauses for a step after each; nothing is trained. It feeds one
rank: a host with eight needs eight times the cores.
Leaves outputs/data/<id>/ with report.html, best.yaml and the journal, and the trials in MLflow.
"""

import os
import sys

from lf_ray.search.command import run_sweep
from lf_ray.search.space import Literal
from lf_ray.trial.feeding.launch import FEEDING_LAUNCH

CORES = len(os.sched_getaffinity(0))
SPACE: Literal = {
    "data.workers": [n for n in (0, 1, 2, 3, 4, 6, 8, 12, 16) if n <= CORES],
    "data.prefetch": [1, 2, 4, 8],
    "data.cache": [False, True],
    "data.decode_threads": [n for n in (1, 2, 4) if n <= CORES],
}
PLACE = {"cluster": "cpu", "cluster.workers": "1"}


def placed(argv: list[str]) -> list[str]:
    """Returns the words of the command line, with one process on the CPU unless they say more."""
    given = {word.partition("=")[0] for word in argv}
    return [*(f"{key}={value}" for key, value in PLACE.items() if key not in given), *argv]


def varied(argv: list[str]) -> Literal:
    """Returns the space; a cache that was turned off on the command line stays off."""
    if "data.cache=false" not in [word.lower() for word in argv]:
        return SPACE
    return {**SPACE, "data.cache": [False]}


if __name__ == "__main__":
    words = placed(sys.argv[1:])
    space = varied(words)
    raise SystemExit(run_sweep("data", space, words, FEEDING_LAUNCH, about=__doc__ or ""))
