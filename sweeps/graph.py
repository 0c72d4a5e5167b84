"""Finds out how much of the step to capture, and whether to pipeline the frozen prefix.

    python sweeps/graph.py                                     # what this machine has
    python sweeps/graph.py batch.per_gpu=32 data.path=DIR      # your batch, your data set
    python sweeps/graph.py cluster=one_gpu model.weights=DIR data.path=DIR

One worker is enough. pipeline.prefix acts only where step and optimizer are captured. Without a
GPU nothing is captured (graph=emulated), so that scopes differ in order of work alone.
Leaves outputs/graph/<id>/ with report.html, best.yaml and the journal, and the trials in MLflow.
"""

import sys

from lf_ray.search.command import run_sweep
from lf_ray.search.space import Literal
from lf_ray.trial.launch import LAUNCH

SPACE: Literal = {
    "graph.scope": ["off", "step", "step+optimizer"],
    "pipeline.prefix": ["off", "on"],
}

if __name__ == "__main__":
    raise SystemExit(run_sweep("graph", SPACE, sys.argv[1:], LAUNCH, about=__doc__ or ""))
