"""Tiny data sets, rendered once and copied for tests that break them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lf_ray.data.sample_set import SampleSetShape, render_sample_set

TINY = SampleSetShape(num_episodes=3, num_frames=24, side_px=32)


@pytest.fixture(scope="session")
def tiny_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good version 2.1 set: read only."""
    root = tmp_path_factory.mktemp("sets") / "tiny"
    render_sample_set(root, TINY)
    return root


@pytest.fixture
def own_set(tiny_set: Path, tmp_path: Path) -> Path:
    """A copy of the tiny set that a test may break."""
    return Path(shutil.copytree(tiny_set, tmp_path / "set"))


@pytest.fixture
def edit_json() -> Callable[[Path, Callable[[Any], None]], None]:
    """Changes a JSON file in place."""

    def edit(path: Path, change: Callable[[Any], None]) -> None:
        value = json.loads(path.read_text())
        change(value)
        path.write_text(json.dumps(value))

    return edit
