"""`python -m lf_ray.data check PATH`: is this data set trainable, and if not, what to fix.

python -m lf_ray.data check my_so100 --embodiment new_embodiment --modality modality.json
python -m lf_ray.data check my_so100 --write-modality       drafts a modality.json
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from lf_ray.data.check import check_dataset
from lf_ray.data.lerobot.meta import read_info
from lf_ray.data.lerobot.modality import draft_modality
from lf_ray.errors import DataError, four_parts
from lf_ray.settings import DataSettings, ModelSettings


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code: 0 trainable, 2 not."""
    options = _parser().parse_args(argv)
    if options.write_modality:
        try:
            written = write_modality(Path(options.path[0]).expanduser(), options.modality)
        except DataError as error:
            _say(str(error))
            return 2
        _say(f"Drafted {written}: split state and action into the robot's parts there.")
    data = DataSettings(
        source="lerobot",
        path=options.path,
        embodiment=options.embodiment,
        modality=options.modality,
    )
    size = options.model
    model = ModelSettings(size=size, image_px=252) if size == "3b" else ModelSettings(size=size)
    problems = check_dataset(data, model)
    fatal = [problem for problem in problems if problem.is_fatal]
    for problem in problems:
        _say(f"{'problem' if problem.is_fatal else 'note'}: {problem.message}")
    _say(f"{len(fatal)} problems." if fatal else "Trainable.")
    return 2 if fatal else 0


def write_modality(root: Path, target: str | None) -> Path:
    """Drafts a modality.json for a data set and returns where it was written.

    Raises:
        DataError: there is one already, or the place can't be written.
    """
    path = root / "meta" / "modality.json" if target is None else Path(target).expanduser()
    if path.exists():
        raise DataError(
            four_parts(
                "drafting a modality",
                "one that is there is not overwritten",
                f"{path}",
                "Move it away first, or name another file with --modality.",
            )
        )
    draft = draft_modality(read_info(root))
    try:
        path.write_text(json.dumps(draft, indent=2) + "\n")
    except OSError as error:
        raise DataError(
            four_parts(
                "drafting a modality",
                f"{path} must be writable",
                f"{error.strerror}",
                "Name another file with --modality, and train with data.modality=FILE.",
            )
        ) from error
    return path


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lf_ray.data", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser(
        "check",
        help="say whether data sets can be trained on",
        epilog="example: python -m lf_ray.data check my_so100 --embodiment new_embodiment",
    )
    check.add_argument("path", nargs="+", help="folder of a LeRobot data set")
    check.add_argument("--write-modality", action="store_true", help="draft meta/modality.json")
    check.add_argument("--modality", help="modality.json to use, or to write the draft to")
    check.add_argument("--embodiment", help="embodiment tag")
    check.add_argument("--model", default="nano", choices=("nano", "3b"), help="model to fit")
    return parser


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
