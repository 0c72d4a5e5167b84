"""MLflow's own pages on a finished sweep: `mlflow ui` in the folder, Compare in a real browser."""

import contextlib
import json
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lf_ray.record.history import read_journal
from lf_ray.record.mlflow_sink import replay

pytestmark = [
    pytest.mark.filterwarnings("default"),  # MLflow's and playwright's deprecations are not ours
    pytest.mark.slow,
    pytest.mark.timeout(600),
]
MAKER = Path(__file__).resolve().parents[1] / "data" / "make_journal.py"
START_S = 300.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with mlflow.db, as the repository's root after a sweep."""
    made = tmp_path_factory.mktemp("root")
    runpy.run_path(str(MAKER))["write_sweep"](made / "journal.jsonl", "interrupted", 0)
    events = read_journal(made / "journal.jsonl").events
    replay(events, f"sqlite:///{made}/mlflow.db", made)
    return made


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with (folder / "ui.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", "ui", "--port", str(port)],
            cwd=folder,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"},
        )
    found = f"http://127.0.0.1:{port}"
    try:
        deadline_s = time.monotonic() + START_S
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{found}/health", timeout=2).close()
                break
            assert time.monotonic() < deadline_s, (folder / "ui.log").read_text()
            time.sleep(0.3)
        yield found
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("needs Debian's chromium: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=program,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        yield opened
        opened.close()


@pytest.mark.night
def test_compare_opens_on_knobs_against_throughput(
    browser: Any, address: str, folder: Path
) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{folder}/mlflow.db")
    experiment = client.get_experiment_by_name("overlap").experiment_id
    trials = [
        run.info.run_id
        for run in client.search_runs([experiment], "tags.outcome = 'completed'")
        if run.data.tags["lf_ray.purpose"] in ("baseline", "search")
    ]
    assert len(trials) == 9
    runs, experiments = (urllib.parse.quote(json.dumps(item)) for item in (trials, [experiment]))
    page = browser.new_page(viewport={"width": 1500, "height": 1800})
    page.goto(f"{address}/#/compare-runs?runs={runs}&experiments={experiments}")
    # The axes of the parallel coordinates, in the order in which the page chose them.
    labels = page.locator(".js-plotly-plot .axis-title")
    labels.first.wait_for(timeout=120_000)
    axes = labels.all_text_contents()  # SVG text has no inner text
    assert axes[:2] == ["bucket_size_mb", "overlap_ratio"]
    assert axes[-1] == "Samples per second"
    text = page.inner_text("body")
    assert "Comparing 9 Runs" in text
    assert "t004 bucket_size_mb=1 overlap_ratio=0.8" in text
    page.close()
