"""Finds the throughput knee of bucket size x overlap ratio for GR00T N1.6 fine-tuning.

    python sweeps/overlap.py                                   # what this machine has
    python sweeps/overlap.py data.path=DIR sweep.trials=12     # your LeRobot data set
    python sweeps/overlap.py cluster=one_node_8gpu model.weights=DIR data.path=DIR

pipeline.prefix and update.sharded are tried where graph.scope=step+optimizer lets them act, else
they cost no trial.
Leaves outputs/overlap/<id>/ with report.html, best.yaml and the journal, and the trials in MLflow.
"""

import sys

from lf_ray.search.command import run_sweep
from lf_ray.search.ladder import BucketLadder
from lf_ray.search.space import Literal
from lf_ray.trial.launch import LAUNCH

SPACE: Literal = {
    "overlap.bucket_size_mb": BucketLadder(),
    "overlap.ratio": [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0],
    "pipeline.prefix": ["off", "on"],
    "update.sharded": ["off", "on"],
}

if __name__ == "__main__":
    raise SystemExit(run_sweep("overlap", SPACE, sys.argv[1:], LAUNCH, about=__doc__ or ""))
