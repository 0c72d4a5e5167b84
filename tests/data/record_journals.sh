#!/bin/sh
# Runs the sweeps whose journals the notebook's tests read, and puts the journals here.
#
#     sh tests/data/record_journals.sh [PYTHON]
#
# A few minutes on two cores with nothing else to do; what they find belongs to that machine.
set -eu
python=${1:-python}
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
record() {
    name=$1
    shift
    mkdir -p "$work/$name" "$root/tests/data/journals/$name"
    (cd "$work/$name" && PYTHONPATH="$root" "$python" "$root/sweeps/overlap.py" "$@")
    cp "$work/$name"/outputs/overlap/*/journal.jsonl "$root/tests/data/journals/$name/"
    echo "python sweeps/overlap.py $*" > "$root/tests/data/journals/$name/command.txt"
}
record overlap sweep.trials=8 sweep.seed=1
record overlap_batch2 sweep.trials=5 sweep.seed=2 batch.per_gpu=2
rm -r "$work"
