"""Fixtures and rules that every test shares."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared" / "data"


def _beside(name: str) -> Path:
    path = SHARED / name
    if not path.is_dir():
        pytest.skip(f"needs {name} in ../shared/data beside the project")
    return path


@pytest.fixture
def gr1_path() -> Path:
    """The real GR00T data set, read in place."""
    return _beside("gr1_pick_place")


@pytest.fixture
def eagle_tokenizer_path() -> Path:
    """The tokenizer of the public checkpoint, read in place."""
    return _beside("eagle_tokenizer")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests by folder, so that no file has to remember to."""
    for item in items:
        folder = Path(str(item.fspath)).relative_to(ROOT / "tests").parts[0]
        if folder == "gpu":
            item.add_marker(pytest.mark.gpu)
