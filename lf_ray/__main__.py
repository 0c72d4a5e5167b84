"""`python -m lf_ray`: what there is to run."""

import sys

from lf_ray import __version__

INDEX = f"""lf-ray {__version__}: the throughput knee of distributed GR00T N1.6 fine-tuning.

Sweeps (python sweeps/NAME.py [group=option ...] [key=value ...]; --help for each)
  overlap.py    bucket size x overlap ratio: the main one
  baseline.py   where the milliseconds of a step go, nothing varied
  data.py       the fewest loader workers that never starve a step
  graph.py      how much of the step to capture, prefix pipelining
  memory.py     memory backends and the arena's block sizes
  batch_lr.py   batch with its learning-rate rule: the fastest, the knee, the goodput
  joint.py      memory, graph, overlap and batch in stages: do the gains multiply?

Commands (--help for each)
  python -m lf_ray.train --config outputs/overlap/ID/best.yaml   train with what a sweep found
  python -m lf_ray.predict model.weights=outputs/train/ID        actions for one observation
  python -m lf_ray.data check PATH                               is this data set trainable?
  python -m lf_ray.record rebuild JOURNAL                        make MLflow's copy again
  python -m lf_ray.bench step|memory|comm|overhead|search|data|grid|live   behind the claims
  python -m models.groot_n1_6.weights keys [nano|3b]             every tensor of the model
  python -m models.groot_n1_6.weights check PATH                 is this checkpoint loadable?

Start with: python sweeps/overlap.py
"""


def main() -> int:
    """Prints the index."""
    sys.stdout.write(INDEX)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
