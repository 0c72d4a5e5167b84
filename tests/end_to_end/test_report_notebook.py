"""The notebook, executed on journals that recorded commands made, and kept free of outputs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest
import yaml

from lf_ray.analysis.answer import answer_of
from lf_ray.analysis.report.folder import write_result
from lf_ray.record.history import read_journal
from lf_ray.record.mlflow_sink import replay

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "notebooks" / "best_configs.ipynb"
JOURNALS = ROOT / "tests" / "data" / "journals"

pytestmark = [
    pytest.mark.filterwarnings("default"),  # Jupyter's own deprecations are not ours
    pytest.mark.timeout(300),
]


def _run(tmp_path: Path, **names: str) -> nbformat.NotebookNode:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    settings = {
        "JOURNALS": str(JOURNALS / "*" / "journal.jsonl"),
        "TRACKING_URI": "",
        "CHOSEN_FILE": str(tmp_path / "chosen.yaml"),
        **names,
    }
    notebook.cells[1].source = "\n".join(f"{name} = {text!r}" for name, text in settings.items())
    nbclient.NotebookClient(
        notebook, timeout=240, resources={"metadata": {"path": str(NOTEBOOK.parent)}}
    ).execute()
    return notebook


def _text(notebook: nbformat.NotebookNode) -> str:
    return "\n".join(
        str(part)
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        for part in (output.get("text", ""), *output.get("data", {}).values())
    )


def test_outputs_are_stripped() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in code)
    assert not any("def " in cell.source or "class " in cell.source for cell in code)
    assert all(name in code[0].source for name in ("JOURNALS", "TRACKING_URI", "CHOSEN_FILE"))


def test_the_journals_are_of_sweeps_that_were_run() -> None:
    folders = sorted(JOURNALS.iterdir())
    assert len(folders) == 2
    for folder in folders:
        header = read_journal(folder / "journal.jsonl").header
        assert "simulated" not in str(header.machine["label"])
        words = (folder / "command.txt").read_text().split()
        assert words[:2] == ["python", "sweeps/overlap.py"]
        settings = {**settings_of(header.config), **header.config["sweep"]}
        for word in words[2:]:
            key, _, value = word.partition("=")
            assert str(settings[key.removeprefix("sweep.")]) == value


def settings_of(config: Mapping[str, Any]) -> dict[str, object]:
    """The settings of a journal by their dotted names."""
    return {
        f"{group}.{key}": value
        for group, values in config.items()
        if isinstance(values, dict)
        for key, value in values.items()
    }


@pytest.mark.slow
def test_it_compares_two_sweeps_and_writes_the_choice(tmp_path: Path) -> None:
    notebook = _run(tmp_path)
    text = _text(notebook)
    histories = [read_journal(path) for path in sorted(JOURNALS.glob("*/journal.jsonl"))]
    for history in histories:
        assert history.header.id in text
    assert "same place" in text
    assert "economics" in text
    assert "swing" in text
    assert text.count("<svg") >= 6
    latest = answer_of(max(histories, key=lambda history: history.header.wall_s))
    assert latest.winner is not None
    chosen = yaml.safe_load((tmp_path / "chosen.yaml").read_text())
    for name, value in latest.winner.knobs.items():
        group, key = name.split(".")
        assert chosen[group][key] == value
    assert chosen["found"]["trial"] == latest.winner.id


@pytest.mark.slow
def test_it_reads_the_same_sweeps_from_mlflow(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    ids = []
    for path in sorted(JOURNALS.glob("*/journal.jsonl")):
        folder = tmp_path / path.parent.name
        folder.mkdir()
        (folder / "journal.jsonl").write_bytes(path.read_bytes())
        history = read_journal(folder / "journal.jsonl")
        ids.append(history.header.id)
        write_result(folder, history)
        replay(history.events, uri, folder)
    text = _text(_run(tmp_path, TRACKING_URI=uri, JOURNALS="nothing"))
    assert all(name in text for name in ids)
