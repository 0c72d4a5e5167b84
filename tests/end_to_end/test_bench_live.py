"""`bench live` as a person runs it: two sweeps on real workers, and their winners in turn."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow, pytest.mark.night]


def test_both_sides_run_and_the_last_line_says_who_is_faster(tmp_path: Path) -> None:
    words = [
        *("--minutes", "2.2", "--visits", "2", "--batches", "1", "--bucket-mb", "0.25,1"),
        *("model=nano", "data=synthetic", "cluster=cpu", "cluster.workers=2"),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "lf_ray.bench", "live", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout.splitlines()[-1])
    # What Tune needs to end is on top; ours had its seconds first.
    assert said["plain"]["worker_s"] > 0.9 * said["ours"]["worker_s"]
    for side in ("ours", "plain"):
        assert said[side]["trials"] > said[side]["without_number"]
        assert said[side]["claimed_samples_per_s"] > 0
        assert said[side]["samples_per_s"] is not None
    assert said["verdict"] in ("faster", "slower", "undetermined", "the same setting")
    journals = list((tmp_path / "outputs" / "live").glob("*/journal.jsonl"))
    assert len(journals) == 1
