"""Every kind of bad data is named, with the file and what to change, and nothing raises."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from lf_ray.data.__main__ import main
from lf_ray.data.check import check_dataset, raise_problems
from lf_ray.errors import DataError
from lf_ray.settings import DataSettings, ModelSettings

VIDEO = "videos/chunk-000/observation.images.front/episode_000001.mp4"
TABLE = "data/chunk-000/episode_000001.parquet"
LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n"


def problems(root: Path, **settings: object) -> list[str]:
    data = DataSettings(source="lerobot", path=str(root), **settings)  # type: ignore[arg-type]
    found = check_dataset(data, ModelSettings())
    return [problem.message for problem in found if problem.is_fatal]


def test_a_good_set_has_no_problem(tiny_set: Path) -> None:
    assert problems(tiny_set) == []


def test_the_real_set_is_fine_though_it_lists_a_camera_without_files(gr1_path: Path) -> None:
    started_s = time.monotonic()
    data = DataSettings(source="lerobot", path=str(gr1_path))
    found = check_dataset(data, ModelSettings())
    assert time.monotonic() - started_s < 5
    assert [problem.is_fatal for problem in found] == [False]
    assert "observation.images.egoview" in found[0].message


def _set(name: str, text: str) -> Callable[[Path], object]:
    return lambda root: (root / name).write_text(text)


def _remove(name: str) -> Callable[[Path], object]:
    return lambda root: (root / name).unlink()


def _truncate(name: str) -> Callable[[Path], object]:
    def cut(root: Path) -> None:
        data = (root / name).read_bytes()
        (root / name).write_bytes(data[: len(data) // 2])

    return cut


def _json(name: str, **changes: object) -> Callable[[Path], object]:
    def change(root: Path) -> None:
        value = json.loads((root / name).read_text())
        for key, item in changes.items():
            *parents, last = key.split("__")
            target = value
            for parent in parents:
                target = target[parent]
            target[last] = item
        (root / name).write_text(json.dumps(value))

    return change


def _drop_column(root: Path) -> None:
    pq.write_table(pq.read_table(root / TABLE).drop_columns(["action"]), root / TABLE)


def _nan_row(root: Path) -> None:
    table = pq.read_table(root / TABLE).to_pydict()
    table["action"][3][0] = float("nan")
    pq.write_table(pq.read_table(root / TABLE).from_pydict(table), root / TABLE)


def _scramble(root: Path) -> None:
    data = bytearray((root / VIDEO).read_bytes())
    start = data.find(b"mdat") + 4
    data[start : start + 400] = bytes(400)
    (root / VIDEO).write_bytes(data)


BROKEN: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "info missing": (_remove("meta/info.json"), ["info.json", "no such file"]),
    "info empty": (_set("meta/info.json", ""), ["info.json", "an empty file"]),
    "info no JSON": (_set("meta/info.json", "{"), ["info.json", "valid JSON"]),
    "info a list": (_set("meta/info.json", "[]"), ["info.json", "JSON object", "list"]),
    "info a pointer": (_set("meta/info.json", LFS), ["info.json", "git lfs pull"]),
    "old version": (_json("meta/info.json", codebase_version="v1.6"), ["v2.1", "'v1.6'"]),
    "fps zero": (_json("meta/info.json", fps=0), ["'fps'", "0.0"]),
    "chunk pattern": (
        _json("meta/info.json", data_path="data/{chunk_index}/e.parquet"),
        ["chunk_index", "data_path"],
    ),
    "episodes missing": (_remove("meta/episodes.jsonl"), ["episodes.jsonl", "no such file"]),
    "episodes empty": (_set("meta/episodes.jsonl", ""), ["episodes.jsonl", "an empty file"]),
    "episodes without length": (
        _set("meta/episodes.jsonl", '{"episode_index": 0}\n'),
        ["episodes.jsonl", "'length'"],
    ),
    "tasks missing": (_remove("meta/tasks.jsonl"), ["tasks.jsonl", "no such file"]),
    "task unknown": (
        _set("meta/tasks.jsonl", '{"task_index": 0, "task": "a"}\n'),
        ["task_index", "index 1"],
    ),
    "stats NaN": (
        _json("meta/stats.json", action__max=[0, float("nan"), 1]),
        ["stats.json", "max"],
    ),
    "stats empty": (_set("meta/stats.json", ""), ["stats.json", "an empty file"]),
    "modality missing": (_remove("meta/modality.json"), ["modality.json", "--write-modality"]),
    "modality empty": (_json("meta/modality.json", video={}), ["'video'"]),
    "modality end": (
        _json("meta/modality.json", action__gripper__end=9),
        ["action.gripper", "3 values", "end 9"],
    ),
    "modality reversed": (
        _json("meta/modality.json", action__gripper__end=1),
        ["'gripper'", "start < end"],
    ),
    "modality column": (
        _json("meta/modality.json", state__touch__original_key="observation.stat"),
        ["state.touch", "observation.state"],
    ),
    "modality camera": (
        _json("meta/modality.json", video__front__original_key="observation.images.fron"),
        ["'front'", "observation.images.front"],
    ),
    "relative without state": (
        _json("meta/modality.json", action__velocity__relative=True),
        ["'velocity'", "position, touch"],
    ),
    "horizon": (_json("meta/modality.json", action_horizon=50), ["1 to 16", "50"]),
    "too wide": (
        _json(
            "meta/modality.json",
            state={f"s{i}": {"start": 0, "end": 3} for i in range(30)},
        ),
        ["64 values", "90"],
    ),
    "table missing": (_remove(TABLE), ["episode_000001.parquet", "1 of 3"]),
    "table empty": (_set(TABLE, ""), ["episode_000001.parquet", "are empty"]),
    "table truncated": (_truncate(TABLE), ["episode_000001.parquet", "whole parquet"]),
    "table a pointer": (_set(TABLE, LFS), ["episode_000001.parquet", "git lfs pull"]),
    "table lacks a column": (_drop_column, ["episode_000001.parquet", "without action"]),
    "table NaN": (_nan_row, ["episode_000001.parquet", "row 3"]),
    "table rows": (
        _set(
            "meta/episodes.jsonl",
            "".join(f'{{"episode_index": {i}, "length": 25}}\n' for i in range(3)),
        ),
        ["25 frames", "24 rows"],
    ),
    "video missing": (_remove(VIDEO), ["episode_000001.mp4", "1 of 3"]),
    "video empty": (_set(VIDEO, ""), ["episode_000001.mp4", "are empty"]),
    "video truncated": (_truncate(VIDEO), ["episode_000001.mp4", "whole file"]),
    "video a pointer": (_set(VIDEO, LFS), ["episode_000001.mp4", "git lfs pull"]),
    "video scrambled": (_scramble, ["episode_000001.mp4", "frames 0 to"]),
    "episodes too short": (
        _set(
            "meta/episodes.jsonl",
            "".join(f'{{"episode_index": {i}, "length": 15}}\n' for i in range(3)),
        ),
        ["action horizon's 16 frames", "15 frames"],
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_set_is_named(case: str, own_set: Path) -> None:
    break_it, words = BROKEN[case]
    break_it(own_set)
    found = problems(own_set)
    assert any(all(word in message for word in words) for message in found), found
    for message in found:
        assert message.startswith("While "), message
        assert ": " in message, message
        assert " Got " in message, message
    assert main(["check", str(own_set)]) == 2


def test_unknown_embodiment_lists_the_nearest(tiny_set: Path) -> None:
    (message,) = problems(tiny_set, embodiment="libero_pandas")
    assert "libero_panda" in message
    assert "'libero_pandas'" in message


def test_missing_and_empty_paths(tmp_path: Path) -> None:
    assert "no folder" in problems(tmp_path / "nowhere")[0]
    assert "empty" in problems(tmp_path)[0]
    assert "data.path" in check_dataset(DataSettings(source="lerobot"), ModelSettings())[0].message
    unknown = check_dataset(DataSettings(source="lerobots"), ModelSettings())
    assert "'lerobots'" in unknown[0].message


def test_all_problems_come_at_once(own_set: Path) -> None:
    (own_set / VIDEO).unlink()
    (own_set / TABLE).unlink()
    found = problems(own_set)
    assert len(found) == 2
    with pytest.raises(DataError, match=r"episode_000001.parquet[\s\S]*episode_000001.mp4"):
        raise_problems(
            check_dataset(DataSettings(source="lerobot", path=str(own_set)), ModelSettings())
        )


def test_modality_is_drafted_once_and_trains(
    own_set: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (own_set / "meta/modality.json").unlink()
    assert main(["check", str(own_set), "--write-modality"]) == 0
    draft = json.loads((own_set / "meta/modality.json").read_text())
    assert draft["action"] == {"action": {"start": 0, "end": 3, "original_key": "action"}}
    assert main(["check", str(own_set), "--write-modality"]) == 2
    assert "not overwritten" in capsys.readouterr().out


def test_check_never_imports_torch(tiny_set: Path) -> None:
    code = (
        "import sys; from lf_ray.data.__main__ import main; "
        f"code = main(['check', {str(tiny_set)!r}]); "
        "sys.exit(9 if 'torch' in sys.modules else code)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
