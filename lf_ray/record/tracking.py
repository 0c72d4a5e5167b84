"""Tracking URIs: which ones can be used, told before anything starts. Imports no MLflow."""

import os
import re
import socket
from pathlib import Path
from urllib.parse import urlsplit

from lf_ray.errors import ConfigError, four_parts

SCHEMES = ("sqlite", "http", "https")
_SQLITE = "sqlite:///"
_READING = "reading tracking.uri"


def check_uri(uri: str) -> None:
    """Refuses a tracking URI that MLflow can't use; whether a server answers is not asked.

    Raises:
        ConfigError: a scheme that is not known, a folder where a database is wanted, no host,
            or a database that can't be made there.
    """
    if "://" not in uri or uri.startswith("file:"):
        _refuse_no_scheme(uri)
    scheme = uri.split("://", 1)[0]
    if scheme not in SCHEMES:
        raise ConfigError(
            four_parts(
                _READING,
                f"its scheme is one of {', '.join(SCHEMES)}",
                repr(uri),
                "Use sqlite:///mlflow.db, or http://HOST:PORT of a tracking server.",
            )
        )
    if scheme == "sqlite":
        _check_database(uri)
    else:
        _check_server(uri)


def database_path(uri: str) -> Path | None:
    """Returns the file of a sqlite URI, None for any other."""
    return Path(uri.removeprefix(_SQLITE)).absolute() if uri.startswith(_SQLITE) else None


def server_error(uri: str, timeout_s: float = 1.0) -> str:
    """Returns why nothing listens at a server's URI, "" where something does or it is no server."""
    if uri.startswith("sqlite"):
        return ""
    parts = urlsplit(uri)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname or "", port), timeout=timeout_s).close()
    except OSError as error:
        return f"{parts.hostname}:{port}: {error}"
    return ""


def _refuse_no_scheme(uri: str) -> None:
    looks_like_folder = uri.startswith("file:") or re.fullmatch(r"[\w./~-]+", uri)
    rule = (
        "MLflow no longer keeps runs in a folder; a database file or a server does"
        if looks_like_folder
        else "it is a URI: scheme://place"
    )
    raise ConfigError(
        four_parts(
            _READING,
            rule,
            repr(uri),
            "Use tracking.uri=sqlite:///mlflow.db, or http://HOST:PORT of a tracking server.",
        )
    )


def _check_database(uri: str) -> None:
    name = uri.removeprefix(_SQLITE) if uri.startswith(_SQLITE) else ""
    if not name or name.endswith("/") or "?" in name:
        raise ConfigError(
            four_parts(
                _READING,
                "a database is named sqlite:///FILE, with four slashes for an absolute path",
                repr(uri),
                "Use for instance sqlite:///mlflow.db.",
            )
        )
    path = Path(name).absolute()
    folder = next(parent for parent in path.parents if parent.exists())
    usable = os.access(path if path.exists() else folder, os.W_OK) and folder.is_dir()
    if path.is_dir() or not usable:
        raise ConfigError(
            four_parts(
                _READING,
                "the database file must be writable",
                f"{path}, which is {'a folder' if path.is_dir() else 'not'}",
                "Give a file in a folder that you can write.",
            )
        )


def _check_server(uri: str) -> None:
    try:
        parts = urlsplit(uri)
        port_is_number = parts.port is None or parts.port > 0
    except ValueError:
        parts, port_is_number = urlsplit("http://"), False
    if not parts.hostname or not port_is_number or " " in uri:
        raise ConfigError(
            four_parts(
                _READING,
                "a server is named http://HOST:PORT",
                repr(uri),
                "Use for instance http://localhost:5000.",
            )
        )
