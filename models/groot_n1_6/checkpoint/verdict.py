"""Says whether a checkpoint is this model's, and if not, everything that is wrong with it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from models.groot_n1_6.checkpoint.files import StoredTensor
from models.groot_n1_6.config import GrootConfig

VERSION_MARKS = (
    ("GR00T N1.7", ("backbone.model.model.", "backbone.model.visual.")),
    (
        "GR00T N1.5",
        ("backbone.eagle_model.", "backbone.eagle_linear.", "action_head.future_tokens."),
    ),
    ("GR00T N1", ("backbone.linear.",)),
)
VERSION_TYPES = {
    "gr00t_n1": "GR00T N1",
    "gr00t_n1_5": "GR00T N1.5",
    "gr00tn1d5": "GR00T N1.5",
    "gr00tn1d7": "GR00T N1.7",
}
MAY_BE_ABSENT = (
    "backbone.model.language_model.lm_head.weight",  # tied to the embedding, never run
    "action_head.mask_token",  # starts fresh with state dropout
)
NUM_NAMED = 6


@dataclass(frozen=True)
class Verdict:
    """What a checkpoint lacks and has too much; loadable when nothing is listed."""

    version: str | None = None
    missing: list[str] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)
    misshapen: list[str] = field(default_factory=list)
    settings: list[str] = field(default_factory=list)

    @property
    def loadable(self) -> bool:
        """Returns whether the checkpoint is the model's."""
        return self.num_problems == 0

    @property
    def num_problems(self) -> int:
        """Returns how many keys and settings do not fit."""
        found = (self.missing, self.extra, self.misshapen, self.settings)
        return sum(map(len, found)) + (self.version is not None)

    def describe(self) -> str:
        """Returns every kind of problem, a few names of each."""
        parts = [] if self.version is None else [f"a {self.version} checkpoint"]
        kinds = {
            "missing": self.missing,
            "unknown": self.extra,
            "of another shape": self.misshapen,
            "settings that differ": self.settings,
        }
        for kind, names in kinds.items():
            if names:
                rest = f", and {len(names) - NUM_NAMED} more" if len(names) > NUM_NAMED else ""
                parts.append(f"{len(names)} {kind}: {', '.join(names[:NUM_NAMED])}{rest}")
        return "; ".join(parts)


def judge(
    stored: Mapping[str, StoredTensor],
    expected: Mapping[str, tuple[int, ...]],
    config: GrootConfig,
    document: Mapping[str, Any] | None = None,
) -> Verdict:
    """Returns what differs between stored tensors (and config.json) and the model."""
    missing = [key for key in expected if key not in stored and key not in MAY_BE_ABSENT]
    extra = [key for key in stored if key not in expected]
    misshapen = [
        f"{key} {list(stored[key].shape)} instead of {list(shape)}"
        for key, shape in expected.items()
        if key in stored and stored[key].shape != tuple(shape)
    ]
    version = None
    if missing or extra or misshapen:
        version = _other_version(stored, document or {})
    return Verdict(version, missing, extra, misshapen, _other_settings(config, document or {}))


def _other_version(keys: Collection[str], document: Mapping[str, Any]) -> str | None:
    named = VERSION_TYPES.get(str(document.get("model_type", "")).lower())
    if named is not None:
        return named
    for version, marks in VERSION_MARKS:
        if any(key.startswith(marks) for key in keys):
            return version
    return None


def _other_settings(config: GrootConfig, document: Mapping[str, Any]) -> list[str]:
    """Returns settings that no tensor's shape shows."""
    wanted = {
        "action_horizon": config.action_horizon,
        "num_timestep_buckets": config.num_time_buckets,
    }
    return [
        f"config.json {name} {document[name]} instead of {value}"
        for name, value in wanted.items()
        if name in document and document[name] != value
    ]
