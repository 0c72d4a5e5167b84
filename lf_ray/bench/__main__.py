"""`python -m lf_ray.bench NAME ...`: a table, then one line of JSON.

python -m lf_ray.bench step --batches 4,8
python -m lf_ray.bench search --seeds 8
"""

import importlib
import sys
from collections.abc import Sequence

NAMES = ("step", "overhead", "search", "data", "memory", "comm", "grid", "live")


def main(argv: Sequence[str] | None = None) -> int:
    """Hands the arguments to a benchmark and returns its exit code, 2 where there is none."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] not in NAMES:
        sys.stdout.write(f"python -m lf_ray.bench {'|'.join(NAMES)} [--help]\n\n{__doc__}")
        return 0 if arguments[:1] in ([], ["--help"], ["-h"]) else 2
    benchmark = importlib.import_module(f"lf_ray.bench.{arguments[0]}")
    return int(benchmark.main(arguments[1:]))


if __name__ == "__main__":
    raise SystemExit(main())
