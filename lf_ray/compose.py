"""conf/*.yaml and command-line overrides -> a typed SweepConfig. The only file with Hydra.

Below this module there are dataclasses only. YAML is data: nothing in it is ever executed.
"""

import dataclasses
from collections.abc import Sequence
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import ConfigCompositionException, HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lf_ray.errors import ConfigError, four_parts, nearest
from lf_ray.machine import Machine
from lf_ray.settings import SHARING_RANKS, SweepConfig, Switch, Trainer, plain

CONF_DIR = Path(__file__).resolve().parents[1] / "conf"
GROUPS = ("model", "cluster", "trainer", "data", "measure")
_READ = "reading the command line"
# Free text: quoted before Hydra sees it, so that a path may hold = , ( and spaces.
_TEXT_KEYS = (
    "data.path",
    "data.modality",
    "data.cache_dir",
    "data.embodiment",
    "model.weights",
    "model.tokenizer",
    "output.dir",
    "tracking.uri",
    "cluster.address",
    "loongforge.path",
    "loongforge.python",
    "memory.block_sizes",
    "resume",
)


def compose(name: str, overrides: Sequence[str], machine: Machine) -> SweepConfig:
    """Returns the configuration of the sweep `name` on `machine`, overrides applied.

    Where the command line does not choose, a machine with GPUs gets `model=3b` and
    `measure=standard`, one without gets `nano` and `smoke`; `data.path=` implies `data=lerobot`.

    Args:
        name: of the sweep; also its result folder's and MLflow experiment's.
        overrides: `group=option` and `key=value` words, as in sys.argv; `--config FILE` reads a
            best.yaml first, so that overrides change it.
        machine: what the choices above, workers and device follow from.

    Raises:
        ConfigError: a group, option, key or value that does not exist or does not fit.
    """
    found, words = _config_file(list(overrides))
    words = [_checked_word(word) for word in words]
    found = _without_chosen(found, words)
    words = [*_implied(words, machine, found), *words]
    config = _composed(words, found)
    config.name = name
    _resolve_cluster(config, machine)
    check(config)
    return config


def check(config: SweepConfig) -> None:
    """Refuses values that no machine could run.

    Raises:
        ConfigError: the first value out of its range, by its dotted name.
    """
    limit_gb = config.memory.limit_gb
    trials, minutes = config.sweep.trials, config.sweep.minutes
    is_sharded = config.update.sharded is Switch.on
    limits: list[tuple[str, Any, bool, str]] = [
        ("batch.per_gpu", config.batch.per_gpu, config.batch.per_gpu >= 1, "at least 1"),
        ("batch.accumulation", config.batch.accumulation, config.batch.accumulation >= 1, ">= 1"),
        ("overlap.ratio", config.overlap.ratio, 0 <= config.overlap.ratio <= 1, "from 0 to 1"),
        (
            "overlap.bucket_size_mb",
            config.overlap.bucket_size_mb,
            config.overlap.bucket_size_mb >= 1 / 64,
            "at least 1/64 MiB",
        ),
        ("data.workers", config.data.workers, 0 <= config.data.workers <= 256, "from 0 to 256"),
        ("data.prefetch", config.data.prefetch, 1 <= config.data.prefetch <= 256, "from 1 to 256"),
        (
            "data.decode_threads",
            config.data.decode_threads,
            1 <= config.data.decode_threads <= 64,
            "from 1 to 64",
        ),
        ("data.step_s", config.data.step_s, 0 < config.data.step_s <= 600, "above 0, in seconds"),
        ("train.lr", config.train.lr, 0 < config.train.lr < 1, "between 0 and 1"),
        (
            "train.warmup_ratio",
            config.train.warmup_ratio,
            0 <= config.train.warmup_ratio <= 1,
            "from 0 to 1",
        ),
        ("sweep.delta", config.sweep.delta, 0 < config.sweep.delta < 0.5, "between 0 and 0.5"),
        ("sweep.round_size", config.sweep.round_size, config.sweep.round_size >= 1, "at least 1"),
        ("sweep.trials", trials, trials is None or trials >= 1, "at least 1"),
        ("sweep.minutes", minutes, minutes is None or minutes > 0, "above 0"),
        ("cluster.workers", config.cluster.workers, config.num_workers >= 1, "at least 1"),
        ("memory.limit_gb", limit_gb, limit_gb is None or limit_gb > 0, "above 0"),
        (
            "memory.limit_gb",
            limit_gb,
            limit_gb is None or _has_limit(config),
            "left out with trainer=loongforge and on simulated clusters, which know no such limit",
        ),
        (
            "measure.min_steps",
            config.measure.min_steps,
            20 <= config.measure.min_steps <= config.measure.max_steps,
            "at least 20 (an interval needs them) and at most measure.max_steps",
        ),
        (
            "update.sharded",
            config.update.sharded.value,
            not is_sharded or config.num_workers in SHARING_RANKS,
            f"off where {config.num_workers} workers can't share every bucket evenly"
            f" ({', '.join(map(str, SHARING_RANKS[1:]))} can)",
        ),
        ("nccl.algo", config.nccl.algo, config.nccl.algo in ("default", "ring", "tree"), "a word"),
    ]
    for name, value, holds, rule in limits:
        if not holds:
            raise ConfigError(
                four_parts(
                    "checking the settings",
                    f"{name} must be {rule}",
                    f"{name}={value}",
                    f"Give {name} a value in that range.",
                )
            )


def _has_limit(config: SweepConfig) -> bool:
    return config.trainer is Trainer.native and not config.cluster.kind.startswith("sim_")


def as_nested(config: SweepConfig) -> dict[str, Any]:
    """Returns the configuration as nested plain values, as it stands in records and YAML files."""
    nested = plain(config)
    assert isinstance(nested, dict)
    return nested


def from_nested(nested: dict[str, Any]) -> SweepConfig:
    """Returns the configuration that `as_nested` gave.

    Raises:
        ConfigError: a key or value that this version does not know.
    """
    try:
        named = _with_member_names(nested)
        merged = OmegaConf.merge(OmegaConf.structured(SweepConfig), named)
        config = OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        raise _value_error(error) from None
    assert isinstance(config, SweepConfig)
    return config


def read_found(path: str) -> dict[str, Any]:
    """Returns the `found` block of a best.yaml: what it was found with; empty where it has none.

    Raises:
        ConfigError: the file can't be read.
    """
    found = _read_yaml(path).get("found", {})
    return found if isinstance(found, dict) else {}


@cache
def _store_schema() -> None:
    # Reading the dataclasses takes a sixth of a composition, and what is stored is only copied.
    ConfigStore.instance().store(name="schema", node=SweepConfig)


def _composed(words: list[str], found: dict[str, Any]) -> SweepConfig:
    _store_schema()
    GlobalHydra.instance().clear()
    base = [*_as_words(_with_member_names(found)), *words]
    try:
        with initialize_config_dir(str(CONF_DIR), version_base="1.3"):
            composed = hydra_compose("sweep", overrides=base)
        config = OmegaConf.to_object(composed)
    except (ConfigCompositionException, OmegaConfBaseException) as error:
        raise _value_error(error) from None
    except HydraException as error:
        raise _word_error(str(error).splitlines()[0]) from None
    assert isinstance(config, SweepConfig)
    return config


def _config_file(words: list[str]) -> tuple[dict[str, Any], list[str]]:
    """Splits `--config FILE` off the words and reads it."""
    rest: list[str] = []
    found: dict[str, Any] = {}
    items = iter(words)
    for word in items:
        if word == "--config" or word.startswith("--config="):
            path = word.partition("=")[2] or next(items, "")
            found = {key: value for key, value in _read_yaml(path).items() if key != "found"}
        else:
            rest.append(word)
    return found, rest


def _without_chosen(found: dict[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """Returns what was found without the keys that a group on the command line sets.

    A group is a choice of whole words: `cluster=` replaces everything about where workers run.
    """
    left = {key: dict(item) if isinstance(item, dict) else item for key, item in found.items()}
    for word in words:
        group, _, option = word.partition("=")
        if group not in GROUPS:
            continue
        path = CONF_DIR / group / f"{option}.yaml"
        chosen = _read_yaml(str(path))
        if "@package _global_" not in path.read_text().splitlines()[0]:
            chosen = {group: chosen}
        for key, values in chosen.items():
            if key == "cluster" or not isinstance(values, dict):
                left.pop(key, None)
            elif isinstance(left.get(key), dict):
                left[key] = {name: left[key][name] for name in left[key] if name not in values}
    return left


def _read_yaml(path: str) -> dict[str, Any]:
    try:
        loaded = yaml.safe_load(Path(path).expanduser().read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(
            four_parts(
                "reading a configuration",
                "--config takes a YAML file such as a sweep's best.yaml",
                f"{path or 'no path'} ({type(error).__name__})",
                "Give the path of a best.yaml or knee.yaml.",
            )
        ) from None
    if not isinstance(loaded, dict):
        raise ConfigError(
            four_parts(
                "reading a configuration",
                "a configuration is a mapping of groups",
                f"{path} holds a {type(loaded).__name__}",
                "Give the path of a best.yaml or knee.yaml.",
            )
        )
    return loaded


def _as_words(nested: dict[str, Any], prefix: str = "") -> list[str]:
    """Returns a nested mapping as `key=value` overrides."""
    words: list[str] = []
    for key, value in nested.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            words += _as_words(value, f"{name}.")
        elif name in ("name", "resume"):
            continue
        else:
            words.append(f"{name}={_literal(value)}")
    return words


def _literal(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ",".join(_literal(item) for item in value) + "]"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace("'", "\\'")
        return f"'{escaped}'"
    return str(value)


def _checked_word(word: str) -> str:
    """Returns a word as Hydra reads it; refuses what Hydra would answer with advice of its own."""
    name, equals, value = word.partition("=")
    if not equals or name.startswith(("+", "~", "-")):
        raise _word_error(repr(word))
    if name in GROUPS:
        known = sorted(path.stem for path in (CONF_DIR / name).glob("*.yaml"))
        if value not in known:
            raise ConfigError(
                four_parts(
                    _READ,
                    f"options of {name} are {', '.join(known)}",
                    repr(word),
                    f"Nearest: {nearest(value, known)}.",
                )
            )
        return word
    if name not in _known_keys():
        raise ConfigError(
            four_parts(
                _READ,
                "a setting is named by its dotted key",
                repr(word),
                f"Nearest: {nearest(name, _known_keys())}.",
            )
        )
    default = _known_keys()[name]
    if isinstance(default, Enum):
        return f"{name}={_member_name(name, default, value)}"
    if name in _TEXT_KEYS and value[:1] not in ("'", '"', "[") and value != "null":
        return f"{name}={_literal(value)}"
    return word


def _member_name(name: str, default: Enum, value: Any) -> str:
    """Returns an enum's member name, which OmegaConf wants, from its word, which people write."""
    word = {True: "on", False: "off"}.get(value, value) if isinstance(value, bool) else value
    for member in type(default):
        if member.value == word or member.name == word:
            return member.name
    words = [str(member.value) for member in type(default)]
    raise ConfigError(
        four_parts(
            _READ,
            f"{name} is one of {', '.join(words)}",
            f"{name}={value}",
            f"Nearest: {nearest(str(value), words)}.",
        )
    )


def _word_error(got: str) -> ConfigError:
    return ConfigError(
        four_parts(
            _READ,
            "overrides are group=option (model=3b) or key=value (overlap.ratio=0.8)",
            got,
            "Write it as one of these; --help lists all of them.",
        )
    )


def _value_error(error: Exception) -> ConfigError:
    key = getattr(error, "full_key", None) or "a setting"
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
    key = getattr(cause, "full_key", None) or key
    text = str(getattr(cause, "msg", None) or cause).strip().splitlines()[0]
    return ConfigError(
        four_parts(_READ, f"{key} has a type or a set of words", text, f"Give {key} such a value.")
    )


@cache
def _known_keys() -> dict[str, Any]:
    """Returns every dotted key with its default."""
    keys: dict[str, Any] = {}
    defaults = SweepConfig()
    for item in dataclasses.fields(SweepConfig):
        value = getattr(defaults, item.name)
        if dataclasses.is_dataclass(value):
            for inner in dataclasses.fields(value):
                keys[f"{item.name}.{inner.name}"] = getattr(value, inner.name)
        elif item.name != "name":
            keys[item.name] = value
    return keys


def _with_member_names(nested: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns a nested mapping with enum words replaced by what OmegaConf wants."""
    named: dict[str, Any] = {}
    for key, value in nested.items():
        name = f"{prefix}{key}"
        default = _known_keys().get(name)
        if isinstance(value, dict):
            named[key] = _with_member_names(value, f"{name}.")
        elif isinstance(default, Enum):
            named[key] = _member_name(name, default, value)
        else:
            named[key] = value
    return named


def _implied(words: list[str], machine: Machine, found: dict[str, Any]) -> list[str]:
    """Returns the group choices that the command line leaves open."""
    chosen = {word.partition("=")[0]: word.partition("=")[2] for word in words}
    has_gpus = bool(machine.gpus) and chosen.get("cluster", "auto") != "cpu"
    simulated = chosen.get("cluster", "auto").startswith("sim_")
    implied: list[str] = []
    if "model" not in chosen and not found:
        implied.append("model=3b" if has_gpus or simulated else "model=nano")
    if "measure" not in chosen:
        implied.append("measure=standard" if has_gpus or simulated else "measure=smoke")
    if "data" not in chosen:
        given = "data.path" in chosen or found.get("data", {}).get("path")
        implied.append("data=lerobot" if given else "data=sample")
    return implied


def _resolve_cluster(config: SweepConfig, machine: Machine) -> None:
    cluster = config.cluster
    num_gpus = 0 if cluster.kind == "cpu" else len(machine.gpus)
    cluster.device = "cuda" if num_gpus else "cpu"
    if cluster.workers is None:
        cluster.workers = num_gpus or 2
