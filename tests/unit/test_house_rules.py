"""House law that no linter knows: file sizes, one door per library, words that stay out."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(
    path for folder in ("lf_ray", "models", "sweeps") for path in (ROOT / folder).rglob("*.py")
)

# Library -> the files that may import it (style: one door each).
DOORS = {
    "hydra": {"lf_ray/compose.py"},
    "omegaconf": {"lf_ray/compose.py"},
    "optuna": {"lf_ray/search/samplers/optuna_study.py", "lf_ray/bench/peers.py"},
    "ray.tune": {
        "lf_ray/search/sweep.py",
        "lf_ray/search/searcher.py",
        "lf_ray/trial/runner.py",
        "lf_ray/bench/peers.py",
        "lf_ray/bench/contest/plain_tune.py",
    },
    "ray.train": {"lf_ray/trial/train_run.py", "lf_ray/bench/contest/plain_tune.py"},
    "mlflow": {"lf_ray/record/mlflow_sink.py"},
    "av": {"lf_ray/data/video.py"},
    "kneed": {"lf_ray/analysis/knee.py"},
    "psutil": {"lf_ray/machine.py"},
    "pynvml": {"lf_ray/machine.py"},
    "transformers": {"models/groot_n1_6/prompt.py"},
}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_is_longer_than_the_wall(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 500


@pytest.mark.parametrize("library", sorted(DOORS))
def test_each_library_comes_in_through_its_door(library: str) -> None:
    parent, _, child = library.rpartition(".")
    patterns = [rf"^\s*(import|from) {re.escape(library)}(\.|\s|$)"]
    if parent:
        patterns.append(rf"^\s*from {re.escape(parent)} import .*\b{child}\b")
    found = {
        str(path.relative_to(ROOT))
        for path in SOURCES
        if any(re.search(pattern, path.read_text(), re.MULTILINE) for pattern in patterns)
    }
    assert found <= DOORS[library]


def test_no_module_without_a_noun() -> None:
    banned = {"utils", "util", "helpers", "common", "misc", "manager", "handler"}
    assert not [path for path in SOURCES if path.stem in banned]


def test_no_path_of_a_machine_in_the_project() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "*.py", "*.md", "*.yaml", "*.toml", "Makefile"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    names = listed.stdout.split() or [str(path.relative_to(ROOT)) for path in SOURCES]
    pattern = re.compile(r"(?<![\w.])/(work|root|home|farm)/[a-z]")
    offenders = [
        name
        for name in names
        if (ROOT / name).is_file() and pattern.search((ROOT / name).read_text())
    ]
    assert not offenders
