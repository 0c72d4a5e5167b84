"""What LoongForge needs and does not say until its GPUs are taken: looked at before that.

Every lack is told at once, each with what to do.
"""

import hashlib
import json
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lf_ray.errors import ConfigError, four_parts
from lf_ray.loongforge.knob_map import translated
from lf_ray.settings import SweepConfig

ENTRY_POINT = Path("loongforge") / "embodied" / "train.py"
DATA_VERSIONS = ("v2.0", "v2.1", "v3.0")
NEEDED = ("torch", "transformers", "diffusers", "omegaconf", "torchdata", "flash_attn", "lerobot")
_ASK_S = 60.0
# find_spec imports nothing but parent packages; LeRobot's file is read as text.
_QUESTION = """
import importlib.util, json, os, sys
names = sys.argv[1:]
missing = [name for name in names if importlib.util.find_spec(name) is None]
spec = importlib.util.find_spec("lerobot")
multi = False
for root in (spec.submodule_search_locations or []) if spec else []:
    path = os.path.join(root, "datasets", "lerobot_dataset.py")
    multi = multi or (os.path.isfile(path) and "MultiLeRobotDataset" in open(path).read())
print(json.dumps({"python": sys.version.split()[0], "missing": missing, "multi": multi}))
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkout:
    """A LoongForge that can be started; picklable.

    Attributes:
        flags: that follow from paths and data, not from knobs.
        dotlist: overrides of its YAML.
        environment: of every child.
    """

    path: Path
    python: str
    commit: str
    flags: tuple[str, ...]
    dotlist: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Lack:
    """Something missing: the rule, what was found, what to do."""

    rule: str
    got: str
    change: str


Ask = Callable[[str, Path], dict[str, Any]]


def asked_of(python: str, path: Path) -> dict[str, Any]:
    """Returns what the interpreter says of itself and its packages.

    Raises:
        OSError: it can't be started; ValueError: it answers otherwise or not in time.
    """
    try:
        done = subprocess.run(
            [python, "-c", _QUESTION, *NEEDED],
            env={**os.environ, "PYTHONPATH": str(path)},
            capture_output=True,
            text=True,
            timeout=_ASK_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ValueError(f"no answer in {_ASK_S:.0f} s") from None
    if done.returncode:
        raise ValueError((done.stderr.strip().splitlines() or ["no words"])[-1])
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def ready_checkout(config: SweepConfig, ask: Ask = asked_of) -> Checkout:
    """Returns the checkout that the settings name, or says all that it lacks.

    Args:
        config: its knobs are the baseline's.
        ask: asks the interpreter.

    Raises:
        ConfigError: LoongForge can't be started with these settings.
    """
    global_batch = config.batch.per_gpu * config.batch.accumulation * config.num_workers
    translated(config, global_batch, config.measure.max_steps)
    lacks = [
        *_model_lacks(config),
        *_checkout_lacks(config),
        *_data_lacks(config),
        *(() if _checkout_lacks(config) else _python_lacks(config, ask)),
    ]
    if lacks:
        words = [four_parts("checking LoongForge", x.rule, x.got, x.change) for x in lacks]
        raise ConfigError("\n".join(words))
    path = Path(str(config.loongforge.path)).expanduser().resolve()
    eagle = str(Path(_eagle(config)).expanduser().resolve())
    data = Path(config.data.paths[0]).expanduser().resolve()
    flags = ["--dataset-path", str(data), "--lerobotdataset-version", _data_version(data)]
    if config.model.weights:
        weights = str(Path(config.model.weights).expanduser().resolve())
        flags += ["--pretrained-checkpoint", weights]
    tag = config.data.embodiment
    return Checkout(
        path=path,
        python=str(config.loongforge.python),
        commit=commit_of(path),
        flags=tuple(flags),
        dotlist=(f"data.embodiment_tag={tag}",) if tag else (),
        environment={"EAGLE_LOCAL_PATH": eagle, "PYTHONPATH": str(path)},
    )


def commit_of(path: Path) -> str:
    """Returns the commit that is checked out, "unknown" where git can't tell."""
    try:
        done = subprocess.run(
            ["git", "-C", str(path), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def identity(checkout: Checkout, config: SweepConfig) -> str:
    """Returns an id that changes when the data set's description or LoongForge's commit does."""
    digest = hashlib.sha256()
    for file in sorted(Path(config.data.paths[0]).expanduser().glob("meta/*.json*")):
        digest.update(file.name.encode() + file.read_bytes())
    return f"loongforge-{checkout.commit[:8]}-{digest.hexdigest()[:12]}"


def _model_lacks(config: SweepConfig) -> list[Lack]:
    lacks: list[Lack] = []
    if config.model.size != "3b":
        lacks.append(
            Lack(
                rule="LoongForge trains the public 3B architecture",
                got=f"model.size={config.model.size}",
                change="Give model=3b.",
            )
        )
    eagle = _eagle(config)
    if "eagle" not in eagle or not (Path(eagle).expanduser() / "config.json").is_file():
        lacks.append(
            Lack(
                rule="it needs a folder with Eagle's config.json and tokenizer files, whose path"
                ' contains "eagle"',
                got=f"model.tokenizer={eagle or 'none'}",
                change="Give model.tokenizer=DIR (or EAGLE_LOCAL_PATH); rename it if need be.",
            )
        )
    weights = config.model.weights
    if weights and not Path(weights).expanduser().is_dir():
        lacks.append(
            Lack(
                rule="the checkpoint is a folder",
                got=f"model.weights={weights}",
                change="Give the folder of GR00T-N1.6-3B, or none for random weights.",
            )
        )
    return lacks


def _eagle(config: SweepConfig) -> str:
    return config.model.tokenizer or os.environ.get("EAGLE_LOCAL_PATH", "")


def _checkout_lacks(config: SweepConfig) -> list[Lack]:
    path = config.loongforge.path
    if not path or not Path(path).expanduser().is_dir():
        return [
            Lack(
                rule="loongforge.path is the folder of a LoongForge checkout",
                got=f"loongforge.path={path or 'none'}",
                change="Clone LoongForge and give loongforge.path=DIR.",
            )
        ]
    if not (Path(path).expanduser() / ENTRY_POINT).is_file():
        return [
            Lack(
                rule=f"its trainer is {ENTRY_POINT}",
                got=f"no such file in {path}",
                change="Check out a LoongForge that has GR00T N1.6.",
            )
        ]
    return []


def _python_lacks(config: SweepConfig, ask: Ask) -> list[Lack]:
    python = config.loongforge.python
    if not python:
        return [
            Lack(
                rule="LoongForge's pins conflict with lf-ray's, so it has its own interpreter",
                got="loongforge.python=none",
                change="Give loongforge.python=ENV/bin/python of LoongForge's environment.",
            )
        ]
    try:
        said = ask(python, Path(str(config.loongforge.path)).expanduser())
    except (OSError, ValueError) as error:
        return [
            Lack(
                rule="loongforge.python is an interpreter that runs",
                got=f"{python} ({error})",
                change="Give the python of LoongForge's environment.",
            )
        ]
    lacks = [_missing(name, python) for name in said["missing"]]
    if "lerobot" not in said["missing"] and not said["multi"]:
        lacks.append(
            Lack(
                rule="LoongForge imports MultiLeRobotDataset from LeRobot",
                got=f"a lerobot without it in {python}",
                change="Install a lerobot of the 0.4 series there.",
            )
        )
    return lacks


def _missing(name: str, python: str) -> Lack:
    change = f"Install {name} there, as LoongForge's requirements pin it."
    if name == "flash_attn":
        change = (
            "Install flash-attn there: without it the vision tower attends across all images of"
            " a batch, which is wrong and slow."
        )
    return Lack(rule=f"LoongForge needs {name}", got=f"none in {python}", change=change)


def _data_lacks(config: SweepConfig) -> list[Lack]:
    paths = config.data.paths
    if len(paths) != 1:
        return [
            Lack(
                rule="LoongForge trains on one LeRobot data set on disk",
                got=f"data.source={config.data.source}, data.path={config.data.path}",
                change="Give data.path=DIR.",
            )
        ]
    version = _data_version(Path(paths[0]).expanduser())
    if version not in DATA_VERSIONS:
        return [
            Lack(
                rule=f"LoongForge reads LeRobot data of {', '.join(DATA_VERSIONS)}",
                got=f"{version or 'no meta/info.json'} in {paths[0]}",
                change="Convert it with LeRobot's own script.",
            )
        ]
    return []


def _data_version(path: Path) -> str:
    try:
        return str(json.loads((path / "meta" / "info.json").read_text())["codebase_version"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
