"""What follows the last step: the model in the public layout, and its action error."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lf_ray.data.batches.training_set import TrainingSet
from lf_ray.errors import CheckpointError, four_parts
from lf_ray.settings import SweepConfig
from lf_ray.training.actions.action_error import action_error, last_episodes
from lf_ray.training.actions.observation import open_whole
from lf_ray.training.checkpoint.folder import complete_checkpoints
from lf_ray.training.plan import TrainingPlan
from lf_ray.training.rank import Finisher, TrainableSession
from models.groot_n1_6.checkpoint.files import read_document
from models.groot_n1_6.weights import save_weights

EXPORT_NAME = "export"
STATISTICS_NAME = "statistics.json"
_PASSED_ON = ("config.json", "processor_config.json", "embodiment_id.json")


def export(session: TrainableSession, plan: TrainingPlan) -> dict[str, Any]:
    """Writes the model as it stands to <folder>/export, whole or not at all.

    Raises:
        CheckpointError: it can't be written, on a full disk for one; nothing half written stays.
    """
    final = plan.folder / EXPORT_NAME
    partial = final.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        save_weights(session.model, partial, documents=export_documents(plan.config))
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
    except Exception as error:
        # Half an export keeps the room that the books and the next try need.
        shutil.rmtree(partial, ignore_errors=True)
        raise CheckpointError(_not_exported(plan, final, error)) from error
    num_bytes = sum(path.stat().st_size for path in final.iterdir())
    return {"path": str(final), "num_bytes": num_bytes}


def _not_exported(plan: TrainingPlan, final: Path, error: Exception) -> str:
    saved = complete_checkpoints(plan.checkpoints)
    safe = f"what was trained is safe in {saved[-1]}" if saved else "no checkpoint was written"
    return four_parts(
        f"exporting the trained model to {final}",
        "an export is written whole, beside the checkpoints",
        f"{type(error).__name__}: {error}; {safe}",
        f"Free disk there, or mend what is named, then go on with resume={plan.folder.name}: only "
        "export and action error are made again.",
    )


def export_documents(config: SweepConfig) -> dict[str, Any]:
    """Returns the JSON files of an export: those it started from, with the data's statistics."""
    base = None if config.model.weights is None else Path(config.model.weights).expanduser()
    documents: dict[str, Any] = {}
    if base is not None and base.is_dir():
        for name in (*_PASSED_ON, STATISTICS_NAME):
            document = read_document(base, name)
            if document:
                documents[name] = document
    if config.data.source != "synthetic":
        source = open_whole(config)
        try:
            own = statistics_document(source)
        finally:
            source.close()
        documents[STATISTICS_NAME] = {**documents.get(STATISTICS_NAME, {}), **own}
    return documents


def statistics_document(source: TrainingSet) -> dict[str, Any]:
    """Returns statistics.json: by embodiment, by part (state, action, relative_action), by group.

    A second data set of an embodiment is scaled by its own statistics and stands beside the first.
    """
    document: dict[str, Any] = {}
    for part in source.parts:
        found = part.dataset.statistics()
        relative = {group.name for group in part.dataset.modality.action if group.is_relative}
        action = found["action"]
        values: dict[str, Any] = {
            "state": found["state"],
            "action": {name: item for name, item in action.items() if name not in relative},
            "relative_action": {name: item for name, item in action.items() if name in relative},
        }
        tag, number = part.embodiment.tag, 2
        while tag in document:
            tag, number = f"{part.embodiment.tag}:{number}", number + 1
        document[tag] = {name: item for name, item in values.items() if item}
    return document


def scale_as_trained(source: TrainingSet, part: int, folder: Path) -> bool:
    """Scales a data set by the statistics beside the weights; returns whether there are any.

    A model that acts on new recordings must see them as it saw those that it learnt from.
    """
    document = read_document(folder, STATISTICS_NAME) if folder.is_dir() else None
    known = (document or {}).get(source.parts[part].embodiment.tag)
    if not known:
        return False
    arrays = {
        kind: {
            group: {name: np.array(values, np.float64) for name, values in stats.items()}
            for group, stats in groups.items()
        }
        for kind, groups in known.items()
    }
    action = {**arrays.get("action", {}), **arrays.get("relative_action", {})}
    source.parts[part].dataset.scale_by(arrays.get("state", {}), action)
    return True


def measure_action_error(session: TrainableSession, plan: TrainingPlan) -> dict[str, Any]:
    """Returns the action error in plain values, or in words why there is none."""
    config = plan.config
    if config.data.source == "synthetic":
        return {"error": "synthetic data has no actions to reproduce"}
    try:
        source = open_whole(config)
        try:
            num_held_out = config.data.holdout_episodes or 0
            episodes = last_episodes(source, num_held_out)
            found = action_error(session.model, source, episodes, config.sweep.seed)
            return {**found.to_plain(), "held_out": num_held_out > 0}
        finally:
            source.close()
    except Exception as error:
        # Checkpoint and export are there: a training does not fail over a number about it.
        return {"error": f"{type(error).__name__}: {error}"}


FINISHERS: Mapping[str, Finisher] = {"exported": export, "action_error": measure_action_error}
