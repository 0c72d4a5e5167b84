"""Every command: it is listed, its --help has an example, and the README's lines work as typed."""

import re
import runpy
import shlex
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from lf_ray.__main__ import INDEX
from lf_ray.compose import compose
from lf_ray.machine import Machine

ROOT = Path(__file__).resolve().parents[2]
SWEEPS = sorted(path.name for path in (ROOT / "sweeps").glob("*.py"))
BENCHES = ("step", "overhead", "search", "data", "memory", "comm", "grid", "live")
COMMANDS = [
    *(["python", f"sweeps/{name}"] for name in SWEEPS),
    *(
        ["python", "-m", f"lf_ray.{name}"]
        for name in ("train", "predict", "data", "record", "bench")
    ),
    *(["python", "-m", "lf_ray.bench", name] for name in BENCHES),
    ["python", "-m", "models.groot_n1_6.weights"],
    ["python", "-m", "lf_ray.data", "check"],
    ["python", "-m", "lf_ray.record", "rebuild"],
    ["python", "-m", "models.groot_n1_6.weights", "keys"],
    ["python", "-m", "models.groot_n1_6.weights", "check"],
]
MACHINE = Machine(
    gpus=("NVIDIA H200",) * 8, num_cores=128, memory_bytes=2**40, shm_bytes=2**36, driver="580"
)

Run = Callable[[list[str]], str]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in this process, as `python ...` would, and returns what it printed."""
    monkeypatch.setenv("COLUMNS", "100")

    def run_it(words: list[str]) -> str:
        script = words[1] != "-m"
        arguments = words[2:] if script else words[3:]
        monkeypatch.setattr(sys, "argv", [words[1 if script else 2], *arguments])
        code: object = 0
        try:
            if script:
                runpy.run_path(str(ROOT / words[1]), run_name="__main__")
            else:
                name = words[2]
                package = (ROOT / Path(*name.split("."))).is_dir()
                code = import_module(f"{name}.__main__" if package else name).main()
        except SystemExit as left:
            code = left.code
        assert code in (0, None), words
        return capsys.readouterr().out

    return run_it


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_has_an_example_that_can_be_copied(run: Run, command: list[str]) -> None:
    text = run([*command, "--help"])
    examples = [line.strip() for line in text.splitlines() if " ".join(command) in line]
    shown = [line for line in examples if not line.startswith(("usage:", "`")) and "|" not in line]
    assert shown, text


def test_the_list_has_every_command() -> None:
    listed = INDEX.split()
    assert sorted(word for word in listed if word in SWEEPS) == SWEEPS, "each once"
    for command in COMMANDS[len(SWEEPS) :]:
        if len(command) == 3:
            assert command[2] in listed
    (line,) = (line for line in INDEX.splitlines() if "lf_ray.bench" in line)
    assert set(BENCHES) <= set(re.split(r"[ |]", line))


def readme_commands() -> list[list[str]]:
    """Returns the words of each command line in the README's code blocks."""
    text = (ROOT / "README.md").read_text().replace("\\\n", " ")
    blocks = re.findall(r"```\n(.*?)```", text, re.DOTALL)
    lines = [line.split("#")[0].strip() for block in blocks for line in block.splitlines()]
    inline = re.findall(r"`(python (?:-m|sweeps)[^`]*)`", text)
    found = [line for line in [*lines, *inline] if re.match(r"python (-m|sweeps/)", line)]
    return [shlex.split(line) for line in dict.fromkeys(found)]


def test_the_readme_has_commands() -> None:
    assert len(readme_commands()) >= 10


@pytest.mark.parametrize("words", readme_commands(), ids=" ".join)
def test_a_command_of_the_readme_is_one_that_there_is(run: Run, words: list[str]) -> None:
    command = next(
        (item for item in reversed(COMMANDS) if words[: len(item)] == item), ["python", "-m", "no"]
    )
    if words[:3] == ["python", "-m", "lf_ray"]:
        return
    text = run([*command, "--help"])
    rest = words[len(command) :]
    sub = [rest[0]] if rest and rest[0] in ("check", "rebuild", "keys") else []
    text += run([*command, *sub, "--help"]) if sub else ""
    flags = {word.split("=")[0] for word in rest if word.startswith("--")}
    assert [flag for flag in flags if flag not in text] == []
    overrides = [word for word in rest if re.match(r"[a-z_.]+=", word)]
    if command[1].startswith("sweeps/") or command[2] in ("lf_ray.train", "lf_ray.predict"):
        compose(Path(command[1]).stem if command[1] != "-m" else "train", overrides, MACHINE)


def test_settings_of_the_readme_compose() -> None:
    text = (ROOT / "README.md").read_text()
    found = re.findall(r"`((?:[a-z_]+\.)?[a-z_]+=[^`]*)`", text)
    words = [word for cell in found for word in cell.split() if re.match(r"[a-z_.]+=", word)]
    settings = [word for word in words if not re.search(r"[<|]|\.\.\.|TORCH_INDEX", word)]
    assert len(settings) > 15
    # Choices of a group stand alone, since some rule out others; the rest shares as few command
    # lines as hold each key once: a composition takes a third of a second.
    lines: list[dict[str, str]] = []
    for word in dict.fromkeys(settings):
        # In pairs that belong together the other one is not asked for.
        if word.startswith(("resume=", "trainer=loongforge", "cluster.address=")):
            continue
        key = word.partition("=")[0]
        if "." not in key or key.startswith("cluster."):
            compose("overlap", ["cluster=ray" if "." in key else word], MACHINE)
            continue
        line = next((line for line in lines if key not in line), None)
        if line is None:
            lines.append(line := {})
        line[key] = word
    for line in lines:
        compose("overlap", list(line.values()), MACHINE)
