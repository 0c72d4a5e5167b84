"""Says in seconds, without a GPU, whether data can be trained on, and what to fix where not."""

import tempfile
from pathlib import Path

from lf_ray.data.batches.sizes import groot_config
from lf_ray.data.checks.content import check_episodes, check_tables, check_views
from lf_ray.data.checks.layout import check_modality, check_sizes
from lf_ray.data.checks.problem import Findings, Problem, raise_problems, unwritable
from lf_ray.data.lerobot.embodiments import choose_embodiment, choose_modality
from lf_ray.data.lerobot.meta import Info, Meta, read_episodes, read_info, read_tasks
from lf_ray.data.lerobot.modality import Modality
from lf_ray.data.lerobot.statistics import read_statistics
from lf_ray.settings import DataSettings, ModelSettings
from models.groot_n1_6.config import GrootConfig

ORDERS = ("auto", "shuffle", "block")
SOURCES = ("sample", "lerobot", "synthetic")

__all__ = ["Problem", "check_dataset", "raise_problems"]


def check_dataset(data: DataSettings, model: ModelSettings) -> list[Problem]:
    """Returns everything that is wrong with the data, and things worth knowing; raises nothing."""
    found = Findings()
    _check_settings(found, data)
    if data.source == "sample":
        _check_cache(found, Path(data.cache_dir).expanduser())
    if data.source != "lerobot":
        return found.problems
    config = groot_config(model)
    modalities = [_check_path(found, Path(path).expanduser(), data, config) for path in data.paths]
    num_views = {len(modality.views) for modality in modalities if modality is not None}
    if len(num_views) > 1:
        found.add(
            "comparing the data sets",
            "all must have the same number of views",
            " and ".join(map(str, sorted(num_views))),
            "Name the same cameras in each modality.json.",
        )
    return found.problems


def _check_settings(found: Findings, data: DataSettings) -> None:
    doing = "reading the data settings"
    if data.source not in SOURCES:
        rule = f"data is one of {', '.join(SOURCES)}"
        found.add(doing, rule, repr(data.source), "Use one of them.")
    if data.source == "lerobot" and not data.paths:
        rule = "data=lerobot needs the folder of a data set"
        found.add(doing, rule, "no data.path", "Set data.path=DIR, or use data=sample.")
    if data.order not in ORDERS:
        found.add(doing, f"data.order is one of {', '.join(ORDERS)}", repr(data.order), "Use one.")
    if data.weights is not None and (
        len(data.weights) != max(len(data.paths), 1) or min(data.weights, default=0) <= 0
    ):
        found.add(
            doing,
            "data.weights needs a number above 0 for each path",
            f"{data.weights} for {len(data.paths)} paths",
            "Give one weight a path, or none.",
        )


def _check_cache(found: Findings, cache_dir: Path) -> None:
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=cache_dir):
            pass
    except OSError as error:
        found.problems.append(Problem(str(unwritable(cache_dir, error))))


def _check_path(
    found: Findings, root: Path, data: DataSettings, config: GrootConfig
) -> Modality | None:
    info = found.attempt(lambda: read_info(root))
    if info is None:
        return None
    episodes = found.attempt(lambda: read_episodes(info))
    tasks = found.attempt(lambda: read_tasks(info))
    found.attempt(lambda: read_statistics(info))
    modality = _modality(found, info, data, config)
    if modality is None:
        return None
    check_modality(found, info, modality)
    check_sizes(found, modality, config)
    if episodes is not None and tasks is not None:
        meta = Meta(info, episodes, tasks)
        check_episodes(found, meta, modality)
        check_tables(found, meta, modality)
        check_views(found, meta, modality)
    return modality


def _modality(
    found: Findings, info: Info, data: DataSettings, config: GrootConfig
) -> Modality | None:
    embodiment = found.attempt(lambda: choose_embodiment(info, data.embodiment, dict(config.slots)))
    if embodiment is None:
        return None
    return found.attempt(lambda: choose_modality(info, embodiment, data.modality))
