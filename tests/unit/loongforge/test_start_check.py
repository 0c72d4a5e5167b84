"""What LoongForge lacks is said at once, all of it, each with what to do."""

from pathlib import Path
from typing import Any

import pytest

from lf_ray.compose import compose
from lf_ray.errors import ConfigError
from lf_ray.loongforge.start_check import identity, ready_checkout
from lf_ray.machine import Machine
from lf_ray.settings import SweepConfig

LAPTOP = Machine(num_cores=2, memory_bytes=2**34, shm_bytes=2**33)


def _config(words: list[str], *more: str) -> SweepConfig:
    return compose("overlap", [*words, *more], LAPTOP)


def _answer(python: str, path: Path) -> dict[str, Any]:
    return {"python": "3.10.0", "missing": ["flash_attn"], "multi": False}


def test_a_whole_checkout_is_ready(loongforge_words: list[str], tmp_path: Path) -> None:
    config = _config(loongforge_words, "data.embodiment=libero_panda")
    checkout = ready_checkout(config)
    assert checkout.environment["PYTHONPATH"] == str(tmp_path / "checkout")
    assert checkout.dotlist == ("data.embodiment_tag=libero_panda",)
    assert "v3.0" in checkout.flags
    before = identity(checkout, config)
    (tmp_path / "data" / "meta" / "info.json").write_text('{"codebase_version": "v2.1"}')
    assert identity(checkout, config) != before


def test_every_lack_is_told(loongforge_words: list[str], tmp_path: Path) -> None:
    (tmp_path / "data" / "meta" / "info.json").unlink()
    (tmp_path / "eagle-processor").rename(tmp_path / "processor")
    words = [f"model.tokenizer={tmp_path / 'processor'}", "model.size=nano", "model.weights=no/dir"]
    with pytest.raises(ConfigError) as caught:
        ready_checkout(_config(loongforge_words, *words), _answer)
    said = str(caught.value)
    for word in ("model=3b", 'contains "eagle"', "no/dir", "meta/info.json"):
        assert word in said
    assert "flash-attn" in said
    assert "lerobot of the 0.4 series" in said
    assert all(line.startswith("While checking LoongForge: ") for line in said.splitlines())


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("loongforge.path=null", "loongforge.path=DIR"),
        ("loongforge.python=null", "its own interpreter"),
        ("loongforge.python=no-such-python", "an interpreter that runs"),
        ("overlap.ratio=0.5", "Use 0 or 1"),
        ("data.path=null", "one LeRobot data set"),
    ],
)
def test_a_single_lack(loongforge_words: list[str], word: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ready_checkout(_config(loongforge_words, word))


def test_a_folder_without_the_entry_point(loongforge_words: list[str], tmp_path: Path) -> None:
    (tmp_path / "checkout" / "loongforge" / "embodied" / "train.py").unlink()
    with pytest.raises(ConfigError, match=r"embodied/train\.py"):
        ready_checkout(_config(loongforge_words))
