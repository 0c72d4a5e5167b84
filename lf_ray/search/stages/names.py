"""Ids of a stage, which count from zero in each, and ids of the journal, which are unique."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, overload

from lf_ray.protocol import TrialRecord, TrialRequest
from lf_ray.record.events import JournalEvent

_ID_KEYS = ("same_as", "best")


@overload
def outer(value: TrialRequest, stage: str) -> TrialRequest: ...


@overload
def outer(value: Mapping[str, Any], stage: str) -> dict[str, Any]: ...


def outer(value: Any, stage: str) -> Any:
    """Returns a request, or what a line says, with the stage's name before every id."""
    if isinstance(value, TrialRequest):
        again = f"{stage}.{value.replicate_of}" if value.replicate_of else None
        return replace(value, id=f"{stage}.{value.id}", replicate_of=again)
    said = dict(value)
    for key in _ID_KEYS:
        if key in said:
            said[key] = f"{stage}.{said[key]}"
    record = said.get("record")
    if isinstance(record, TrialRecord):
        said["record"] = replace(record, request=outer(record.request, stage))
    return said


def inner(event: JournalEvent, stage: str, gradients: Any = None) -> JournalEvent:
    """Returns an event of the journal as the stage's own books know it.

    Args:
        event: as it was kept.
        stage: whose it is.
        gradients: what is sent, as JSON; a group tells it once, each stage's books need it.
    """
    data = {
        key: _without(item, stage) if key in _ID_KEYS else item for key, item in event.data.items()
    }
    if "request" in data:
        data["request"] = _request(data["request"], stage)
    if "record" in data:
        record = {**data["record"], "request": _request(data["record"]["request"], stage)}
        if gradients and not record.get("gradients"):
            record["gradients"] = gradients
        data["record"] = record
    return replace(event, data=data)


def brief(event: JournalEvent) -> JournalEvent:
    """Returns an event without steps and gradients, for books that only count."""
    if event.kind != "finished":
        return event
    record = {**event.data["record"], "trace": None, "gradients": []}
    return replace(event, data={**event.data, "record": record})


def _request(request: Mapping[str, Any], stage: str) -> dict[str, Any]:
    again = request.get("replicate_of")
    return {
        **request,
        "id": _without(request["id"], stage),
        "replicate_of": _without(again, stage) if again else None,
    }


def _without(name: Any, stage: str) -> Any:
    return str(name).removeprefix(f"{stage}.")
