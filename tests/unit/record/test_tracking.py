"""Tracking URIs are judged before anything starts, without importing MLflow."""

import subprocess
import sys
from pathlib import Path

import pytest

from lf_ray.errors import ConfigError
from lf_ray.record.tracking import check_uri, database_path, server_error


@pytest.mark.parametrize(
    "uri", ["http://localhost:5000", "https://mlflow.example.org/prefix", "http://user:pw@host:1"]
)
def test_servers_are_taken_as_they_are(uri: str) -> None:
    check_uri(uri)


def test_databases_may_be_relative_or_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check_uri("sqlite:///mlflow.db")
    check_uri(f"sqlite:///{tmp_path}/new/folder/mlflow.db")
    assert database_path("sqlite:///mlflow.db") == tmp_path / "mlflow.db"
    assert database_path("http://host") is None


@pytest.mark.parametrize("uri", ["./mlruns", "mlruns", "file:///tmp/mlruns", "file:./x", "~/runs"])
def test_a_folder_is_refused_with_what_replaces_it(uri: str) -> None:
    with pytest.raises(ConfigError) as found:
        check_uri(uri)
    assert "no longer keeps runs in a folder" in str(found.value)
    assert "sqlite:///mlflow.db" in str(found.value)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("ftp://host/x", "sqlite, http, https"),
        ("postgresql://host/db", "sqlite, http, https"),
        ("", "scheme://place"),
        ("http//localhost:5000", "MLflow no longer|scheme://place"),
        ("http:localhost", "scheme://place"),
        ("http://", "http://HOST:PORT"),
        ("http://host:port", "http://HOST:PORT"),
        ("http://ho st:1", "http://HOST:PORT"),
        ("sqlite://mlflow.db", "four slashes"),
        ("sqlite:///", "four slashes"),
    ],
)
def test_what_is_malformed_is_refused(uri: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_uri(uri)


def test_a_database_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path, tmp_path / "file" / "mlflow.db"):
        with pytest.raises(ConfigError, match="writable"):
            check_uri(f"sqlite:///{place}")


def test_a_closed_port_is_told_fast() -> None:
    assert server_error("sqlite:///mlflow.db") == ""
    assert "127.0.0.1:9" in server_error("http://127.0.0.1:9")


def test_checking_and_observing_import_no_mlflow() -> None:
    program = (
        "import sys, lf_ray.record.mlflow_sink as sink\n"
        "sink.check_uri('sqlite:///mlflow.db')\n"
        "assert not {'mlflow', 'torch', 'pandas'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
