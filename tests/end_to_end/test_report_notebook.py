"""The notebook, executed on the shipped journal, and kept free of outputs."""

from pathlib import Path

import nbclient
import nbformat
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "notebooks" / "best_configs.ipynb"
JOURNAL = ROOT / "tests" / "data" / "overlap_journal" / "journal.jsonl"

pytestmark = [
    pytest.mark.filterwarnings("default"),  # Jupyter's own deprecations are not ours
    pytest.mark.timeout(300),
]


def _run(tmp_path: Path, **names: str) -> nbformat.NotebookNode:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    settings = {
        "JOURNALS": str(JOURNAL),
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


@pytest.mark.slow
def test_it_runs_on_a_journal_and_writes_the_choice(tmp_path: Path) -> None:
    notebook = _run(tmp_path)
    text = _text(notebook)
    assert "faster than the baseline" in text
    assert "economics" in text
    assert text.count("<svg") >= 6
    chosen = yaml.safe_load((tmp_path / "chosen.yaml").read_text())
    assert chosen["overlap"] == {"bucket_size_mb": 1.0, "ratio": 0.8, "comm_dtype": "fp32"}
    assert chosen["found"]["trial"] == "t004"
