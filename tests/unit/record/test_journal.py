"""The journal: durable lines, torn tails cut, damage named, nothing written lost."""

import errno
import json
import os
from pathlib import Path

import pytest

from lf_ray.clock import FakeClock
from lf_ray.errors import RecordError
from lf_ray.protocol import (
    Interval,
    OutcomeKind,
    Purpose,
    TrialOutcome,
    TrialRecord,
    TrialRequest,
)
from lf_ray.record.journal import Journal, read_journal

KNOBS = {"overlap.bucket_size_mb": 25.0, "overlap.ratio": 1.0}


def _request(name: str = "t000", purpose: Purpose = Purpose.BASELINE) -> TrialRequest:
    return TrialRequest(id=name, knobs=KNOBS, seed=0, purpose=purpose)


def _record(name: str = "t000", purpose: Purpose = Purpose.BASELINE) -> TrialRecord:
    return TrialRecord(
        request=_request(name, purpose),
        outcome=TrialOutcome(kind=OutcomeKind.COMPLETED, stop_rule="settled"),
        throughput_samples_per_s=Interval(value=10.0, lo=9.9, hi=10.1, num_steps=20, num_visits=1),
        metrics={"overlap_hidden": float("nan")},
    )


def _header() -> dict[str, object]:
    return {
        "id": "s1",
        "name": "overlap",
        "config": {"name": "overlap"},
        "space": {"overlap.ratio": [0.0, 1.0]},
        "space_hash": "abc",
        "baseline_knobs": KNOBS,
        "machine": {"device": "cpu"},
        "versions": {"lf_ray": "0.1"},
        "data_id": "d",
        "seed": 0,
    }


def _written(path: Path) -> Path:
    with Journal(path, FakeClock()) as journal:
        journal.append("sweep", **_header())
        journal.append("round", index=0, suggestions=[KNOBS], sampler_seed=7)
        journal.append("started", request=_request())
        journal.append("finished", record=_record())
    return path


def test_events_come_back_typed(tmp_path: Path) -> None:
    path = _written(tmp_path / "new" / "journal.jsonl")
    with Journal(path, FakeClock()) as journal:
        journal.append("dead", knobs=KNOBS, same_as="t000", reason="same buckets")
        journal.append("stage", name="graph")
        journal.append("replicate", request=_request("t000r1", Purpose.REPLICATE))
        journal.append("ended", reason="trials", exit_code=0)
    history = read_journal(path)
    assert history.header.space == {"overlap.ratio": (0.0, 1.0)}
    assert history.rounds[0].suggestions == (KNOBS,)
    assert history.records[0].throughput_samples_per_s == _record().throughput_samples_per_s
    assert history.dead[0].same_as == "t000"
    assert [request.id for request in history.unfinished] == ["t000r1"]
    assert history.num_trials == 1
    assert history.ended is not None
    assert history.ended.exit_code == 0


def test_every_line_is_json_without_bare_nan(tmp_path: Path) -> None:
    path = _written(tmp_path / "journal.jsonl")
    for line in path.read_text().splitlines():
        json.loads(line, parse_constant=lambda word: pytest.fail(f"bare {word}"))


def test_torn_at_every_byte_of_the_last_line_loses_only_that_line(tmp_path: Path) -> None:
    whole = _written(tmp_path / "whole.jsonl").read_bytes()
    start = whole[:-1].rindex(b"\n") + 1
    path = tmp_path / "journal.jsonl"
    for length in range(start, len(whole) + 1):
        path.write_bytes(whole[:length])
        kept = 1 if length >= len(whole) - 1 else 0  # only the line feed is missing: whole
        assert len(read_journal(path).records) == kept, length
        if length % 16 and length < len(whole) - 2:
            continue  # reopening syncs the disk; the cut is the same everywhere inside the line
        with Journal(path, FakeClock()) as journal:
            assert journal.cut_bytes == (0 if kept else length - start)
            journal.append("finished", record=_record("t001"))
        history = read_journal(path)
        assert [r.request.id for r in history.records] == ["t000", "t001"][1 - kept :], length
        assert any("torn" in note for note in history.notes) == (journal.cut_bytes > 0)
        assert path.read_bytes().startswith(whole[:start])


@pytest.mark.parametrize("tail", [b'{"event": "fin\n', b"\x00\x00\x00\x00", b'"text"\n', b"\xff\n"])
def test_rubbish_at_the_end_is_a_torn_tail(tmp_path: Path, tail: bytes) -> None:
    path = _written(tmp_path / "journal.jsonl")
    path.write_bytes(path.read_bytes() + tail)
    assert read_journal(path).torn_bytes == len(tail)
    with Journal(path, FakeClock()) as journal:
        assert journal.cut_bytes == len(tail)


@pytest.mark.parametrize("rubbish", [b"{", b"", b"[]", b'{"event": "sweep"}'])
def test_damage_before_the_end_names_file_and_line(tmp_path: Path, rubbish: bytes) -> None:
    path = _written(tmp_path / "journal.jsonl")
    lines = path.read_bytes().split(b"\n")
    lines[1] = rubbish
    path.write_bytes(b"\n".join(lines))
    for attempt in (lambda: read_journal(path), lambda: Journal(path, FakeClock())):
        with pytest.raises(RecordError, match=rf"{path}:2"):
            attempt()


def test_a_payload_of_another_shape_names_file_and_line(tmp_path: Path) -> None:
    path = _written(tmp_path / "journal.jsonl")
    path.write_text(path.read_text().replace('"sampler_seed"', '"other"'))
    with pytest.raises(RecordError, match=rf"{path}:2"):
        read_journal(path)


def test_text_that_looks_like_code_stays_text(tmp_path: Path) -> None:
    path = _written(tmp_path / "journal.jsonl")
    with Journal(path, FakeClock()) as journal:
        journal.append("note", text="__import__('os').abort()")
    assert read_journal(path).notes == ("__import__('os').abort()",)


def test_full_disk_says_so_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _written(tmp_path / "journal.jsonl")
    before = path.read_bytes()
    real = os.pwrite

    def half_then_full(fd: int, content: bytes, offset: int) -> int:
        if len(content) > 10:
            return real(fd, content[: len(content) - 10], offset)
        raise OSError(errno.ENOSPC, "No space left on device")

    with Journal(path, FakeClock()) as journal:
        monkeypatch.setattr(os, "pwrite", half_then_full)
        with pytest.raises(RecordError, match=r"No space left.*Free disk space"):
            journal.append("note", text="lost")
        assert path.read_bytes() == before
        monkeypatch.setattr(os, "pwrite", real)
        journal.append("note", text="kept")
    assert read_journal(path).notes == ("kept",)


def test_a_path_that_cannot_be_a_journal_is_refused(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(RecordError, match="must be writable"):
        Journal(blocked / "journal.jsonl", FakeClock())


def test_two_writers_are_refused(tmp_path: Path) -> None:
    path = _written(tmp_path / "journal.jsonl")
    with Journal(path, FakeClock()), pytest.raises(RecordError, match="one process"):
        Journal(path, FakeClock())


def test_a_journal_without_a_sweep_or_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="result folder holds"):
        read_journal(tmp_path / "journal.jsonl")
    (tmp_path / "journal.jsonl").write_text("")
    with pytest.raises(RecordError, match="begins with the sweep event"):
        read_journal(tmp_path / "journal.jsonl")


def test_an_end_counts_only_when_nothing_follows(tmp_path: Path) -> None:
    path = _written(tmp_path / "journal.jsonl")
    with Journal(path, FakeClock()) as journal:
        journal.append("ended", reason="interrupted", exit_code=130)
        journal.append("note", text="resumed")
    assert read_journal(path).ended is None
