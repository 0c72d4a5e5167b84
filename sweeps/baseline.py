"""Says where the milliseconds of a step go: your present settings, measured again and again.

    python sweeps/baseline.py                                  # what this machine has
    python sweeps/baseline.py batch.per_gpu=32 data.path=DIR   # your settings, your data set
    python sweeps/baseline.py cluster=one_gpu model.weights=DIR graph.scope=step

Nothing varies: the baseline is visited until its visits agree. Ends with the four core figures:
step time, share of each phase, utilisation, peak memory. One worker is enough.
Leaves outputs/baseline/<id>/ with report.html and the journal, and the visits in MLflow.
"""

import sys

from lf_ray.search.command import run_sweep
from lf_ray.search.space import BASELINE_ONLY, Literal
from lf_ray.trial.launch import LAUNCH

SPACE: Literal = BASELINE_ONLY

if __name__ == "__main__":
    raise SystemExit(run_sweep("baseline", SPACE, sys.argv[1:], LAUNCH, about=__doc__ or ""))
