"""Updates that could not be delivered yet, in a file beside the journal, in order."""

import json
import logging
import threading
from contextlib import suppress
from pathlib import Path

from lf_ray.errors import RecordError
from lf_ray.record.mirror.updates import RunUpdate

_log = logging.getLogger(__name__)


class Spool:
    """A JSONL file of updates; it exists only while something is undelivered.

    MLflow is a view of the journal, so what can't be spooled (disk full) is not lost: it is
    dropped here with a word in the log, and `rebuild` makes it again.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()

    def add(self, update: RunUpdate) -> None:
        """Appends one update."""
        line = json.dumps(update.to_json(), separators=(",", ":"))
        with self._lock:
            try:
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(line + "\n")
            except OSError as error:
                _log.warning("%s: an update was not spooled: %s", self.path, error)

    def read(self) -> list[RunUpdate]:
        """Returns what waits, oldest first; half a line at the end is left out."""
        with self._lock:
            try:
                lines = self.path.read_text(encoding="utf-8").splitlines()
            except OSError:
                return []
        updates: list[RunUpdate] = []
        for line in lines:
            try:
                updates.append(RunUpdate.from_json(json.loads(line)))
            except (ValueError, RecordError):
                _log.warning("%s: a line that is no update is left out", self.path)
        return updates

    def keep(self, updates: list[RunUpdate]) -> None:
        """Replaces what waits; with nothing left the file goes."""
        with self._lock:
            if not updates:
                self.path.unlink(missing_ok=True)
                return
            beside = self.path.with_suffix(".tmp")
            text = "".join(json.dumps(u.to_json(), separators=(",", ":")) + "\n" for u in updates)
            try:
                beside.write_text(text, encoding="utf-8")
                beside.replace(self.path)
            except OSError as error:
                _log.warning("%s: the spool was not shortened: %s", self.path, error)
                with suppress(OSError):
                    beside.unlink(missing_ok=True)
