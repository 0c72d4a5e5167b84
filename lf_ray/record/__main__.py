"""`python -m lf_ray.record rebuild JOURNAL [--uri URI]`: make MLflow's copy of a sweep again."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from lf_ray.errors import LfRayError, RecordError, four_parts
from lf_ray.record.events import parse_events
from lf_ray.record.history import read_journal
from lf_ray.record.mlflow_sink import check_uri, replay


def main(argv: Sequence[str] | None = None) -> int:
    """Rebuilds, and returns the exit code: 0 done, 1 the server is away, 2 refused."""
    arguments = _parser().parse_args(argv)
    try:
        history = read_journal(arguments.journal)
        uri = arguments.uri or history.header.config.get("tracking", {}).get("uri", "")
        check_uri(uri)
        events, _ = parse_events(arguments.journal.read_bytes(), arguments.journal)
    except LfRayError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    try:
        num_updates = replay(events, uri, arguments.journal.parent)
    except Exception as error:
        # Whatever the client raises, in our own shape: this command's only reader is a person.
        message = four_parts(
            f"sending {arguments.journal} to MLflow",
            f"{uri} must answer and take the runs",
            f"{type(error).__name__}: {error}",
            "Start the server, or give another one with --uri.",
        )
        sys.stderr.write(f"{RecordError(message)}\n")
        return 1
    sys.stdout.write(
        f"Sweep {history.header.name} {history.header.id}: {num_updates} updates sent to {uri}.\n"
    )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lf_ray.record",
        description="MLflow is a view of the journal; this makes it again.",
        epilog="example: python -m lf_ray.record rebuild outputs/overlap/ID/journal.jsonl "
        "--uri sqlite:///mlflow.db",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    rebuild = commands.add_parser(
        "rebuild", help="send a sweep's journal to MLflow", epilog=parser.epilog
    )
    rebuild.add_argument("journal", type=Path, help="journal.jsonl of a result folder")
    rebuild.add_argument("--uri", help="tracking URI; the sweep's own when left out")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
