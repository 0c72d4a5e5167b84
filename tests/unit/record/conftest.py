"""Whole simulated sweeps for what reads journals."""

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

MAKER = Path(__file__).resolve().parents[2] / "data" / "make_journal.py"


@pytest.fixture(scope="session")
def seeded_journal(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Returns a maker of journals by case: peaked, flat, interrupted ..."""
    write_sweep = runpy.run_path(str(MAKER))["write_sweep"]
    folder = tmp_path_factory.mktemp("journals")

    def journal(case: str = "peaked", seed: int = 0) -> Path:
        path: Path = folder / f"{case}-{seed}" / "journal.jsonl"
        if not path.exists():
            write_sweep(path, case, seed)
        return path

    return journal
