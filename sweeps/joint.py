"""Tunes memory, graph, overlap and batch one after the other, and asks whether the gains multiply.

    python sweeps/joint.py                                     # what this machine has
    python sweeps/joint.py data.path=DIR sweep.trials=40       # your data, trials over all stages
    python sweeps/joint.py cluster=sim_8xa100                  # a prediction, in seconds

Each stage starts from the last one's winner and has its own gain and check. At the end the
baseline, each winner alone and all together are measured side by side. Two workers at least.
A stage whose knobs can't matter on this machine says so and costs nothing.
Leaves outputs/joint/<id>/ with report.html, best.yaml and the journal, and the trials in MLflow.
"""

import sys

from lf_ray.search.command import run_sweep
from lf_ray.search.ladder import BatchLadder, BucketLadder
from lf_ray.search.space import Literal
from lf_ray.search.stages.stage import Stages, whole_space
from lf_ray.trial.launch import LAUNCH

STAGES: Stages = {
    "memory": {
        "memory.backend": ["caching", "expandable", "arena"],
        "memory.block_sizes": ["1-2-4-8", "1-2-4-8-16-32", "2-8-32", "4-16-64"],
    },
    "graph": {"graph.scope": ["off", "step", "step+optimizer"]},
    "overlap": {
        "overlap.bucket_size_mb": BucketLadder(),
        "overlap.ratio": [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0],
        "pipeline.prefix": ["off", "on"],
        "update.sharded": ["off", "on"],
    },
    "batch": {"batch.per_gpu": BatchLadder()},
}
SPACE: Literal = whole_space(STAGES)

if __name__ == "__main__":
    raise SystemExit(run_sweep("joint", STAGES, sys.argv[1:], LAUNCH, about=__doc__ or ""))
