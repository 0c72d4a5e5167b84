"""The spool: undelivered updates in order, through a file that may be torn."""

from pathlib import Path

from lf_ray.record.mirror.updates import MetricPoint, RunUpdate
from lf_ray.record.spool import Spool


def _update(key: str) -> RunUpdate:
    point = MetricPoint(name="loss", value=0.5, step=1, at_ms=2)
    return RunUpdate(key=key, metrics=(point,), params={"a": "1"})


def test_updates_come_back_in_order(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool.jsonl")
    assert spool.read() == []
    for key in "abc":
        spool.add(_update(key))
    assert spool.read() == [_update(key) for key in "abc"]
    spool.keep([_update("c")])
    assert spool.read() == [_update("c")]
    spool.keep([])
    assert not spool.path.exists()


def test_half_a_line_is_left_out(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool.jsonl")
    spool.add(_update("a"))
    spool.add(_update("b"))
    spool.path.write_text(spool.path.read_text()[:-20])
    assert spool.read() == [_update("a")]


def test_a_folder_that_cannot_be_written_costs_no_sweep(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    spool = Spool(tmp_path / "file" / "spool.jsonl")
    spool.add(_update("a"))
    assert spool.read() == []
