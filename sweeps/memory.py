"""Finds the memory backend and the arena's ladder of block sizes that cost least.

    python sweeps/memory.py                                    # what this machine has
    python sweeps/memory.py graph.scope=step+optimizer batch.per_gpu=64 data.path=DIR
    python sweeps/memory.py cluster=one_gpu model.weights=DIR memory.total_size_gb=60

One worker is enough; each change starts the workers again. Ladders are block sizes in GiB;
"analysed" is the one that `lf_ray.runtime.analyze_tensor_shapes` proposes for your own step, once
its workers have run it; the trial's effective `ladder` says it by its numbers. Without a GPU there
is no allocator to choose, so that all points measure the same step.
Leaves outputs/memory/<id>/ with report.html, best.yaml and the journal, and the trials in MLflow.
"""

import sys

from lf_ray.search.command import run_sweep
from lf_ray.search.space import Literal
from lf_ray.trial.launch import LAUNCH

SPACE: Literal = {
    "memory.backend": ["caching", "expandable", "arena"],
    "memory.block_sizes": ["analysed", "1-2-4-8", "1-2-4-8-16-32", "2-8-32", "4-16-64"],
}

if __name__ == "__main__":
    raise SystemExit(run_sweep("memory", SPACE, sys.argv[1:], LAUNCH, about=__doc__ or ""))
