"""Finds the batch that learns most a second, with the learning-rate rule that suits it.

    python sweeps/batch_lr.py                                  # what this machine has
    python sweeps/batch_lr.py data.path=DIR batch.per_gpu=32   # your data set, your batch
    python sweeps/batch_lr.py measure.converge_s=3600          # time for a whole convergence check
    python sweeps/batch_lr.py trainer=loongforge loongforge.path=DIR loongforge.python=PYTHON

First throughput over batch a GPU and accumulation, with the gradient noise scale; then training
runs over equally many samples: the baseline with three seeds, the advised batch under each rule
(linear and sqrt scale lr and warm-up with the batch, none keeps them); where that learns worse, the
next best. One worker is enough.
Leaves outputs/batch_lr/<id>/ with report.html, fastest.yaml, knee.yaml, goodput.yaml and best.yaml
(the goodput one).
"""

import sys

from lf_ray.search.command import run_sweep
from lf_ray.search.ladder import BatchLadder
from lf_ray.search.space import Literal
from lf_ray.search.stages.stage import Stages
from lf_ray.trial.launch import LAUNCH

SPACE: Literal = {
    "batch.per_gpu": BatchLadder(),
    "batch.accumulation": [1, 2, 4],
    "batch.lr_rule": ["linear", "sqrt", "none"],
}

STAGES: Stages = {"batch": SPACE}

if __name__ == "__main__":
    raise SystemExit(run_sweep("batch_lr", STAGES, sys.argv[1:], LAUNCH, about=__doc__ or ""))
