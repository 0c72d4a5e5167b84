"""What the step benchmark's rows say together: what each mode bought, scaling, gaps to the floor.

Pure: rows in, lines of text or numbers out. A row's rate is the mean over its visits.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, NamedTuple

Row = Mapping[str, Any]


class Setting(NamedTuple):
    """What makes two rows visits of one thing."""

    image_px: int
    num_ranks: int
    batch: int
    mode: str
    comm: str


@dataclass(frozen=True)
class Rate:
    """Throughput of one setting over all its visits, in samples/s.

    Attributes:
        lo, hi: lowest and highest end of a visit's own interval.
    """

    value: float
    lo: float
    hi: float
    num_visits: int


def rates(rows: Sequence[Row]) -> dict[Setting, Rate]:
    """Returns the rate of each setting over its visits, in the order of the rows."""
    visits: dict[Setting, list[Row]] = {}
    for row in rows:
        if "samples_per_s" in row:
            setting = Setting(*(row[name] for name in Setting._fields))
            visits.setdefault(setting, []).append(row["samples_per_s"])
    return {
        setting: Rate(
            statistics.fmean(item["value"] for item in found),
            min(item["lo"] for item in found),
            max(item["hi"] for item in found),
            len(found),
        )
        for setting, found in visits.items()
    }


def bought(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Returns each mode's rate over the one before it and over the first, in the order tried.

    Modes are compared at one dtype on the wire; plain DDP, which has fp32 alone, begins each.
    An interval is that of a ratio of two rates at the ends of theirs: wide, but safe.
    """
    ladders: dict[tuple[int, int, int, str], list[tuple[str, Rate]]] = {}
    known = rates(rows)
    wires = list(dict.fromkeys(setting.comm for setting in known if setting.mode != "ddp"))
    for setting, rate in known.items():
        for comm in wires if setting.mode == "ddp" else (setting.comm,):
            shape = (setting.image_px, setting.num_ranks, setting.batch, comm)
            ladders.setdefault(shape, []).append((setting.mode, rate))
    found = []
    for shape, steps in ladders.items():
        for (_, before), (name, now) in pairwise(steps):
            found.append(
                dict(zip(("image_px", "num_ranks", "batch", "comm"), shape))
                | {
                    "mode": name,
                    "over_previous": now.value / before.value,
                    "lo": now.lo / before.hi,
                    "hi": now.hi / before.lo,
                    "over_first": now.value / steps[0][1].value,
                }
            )
    return found


def scaling(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Returns samples/s a rank over those of the fewest ranks that ran the same setting."""
    by_setting: dict[Setting, list[tuple[int, Rate]]] = {}
    for setting, rate in rates(rows).items():
        alike = setting._replace(num_ranks=0)
        by_setting.setdefault(alike, []).append((setting.num_ranks, rate))
    found = []
    for setting, runs in by_setting.items():
        runs.sort(key=lambda run: run[0])
        fewest, base = runs[0]
        for num_ranks, rate in runs[1:]:
            share = fewest / num_ranks
            found.append(
                setting._replace(num_ranks=num_ranks)._asdict()
                | {
                    "against": fewest,
                    "efficiency": rate.value / base.value * share,
                    "lo": rate.lo / base.hi * share,
                    "hi": rate.hi / base.lo * share,
                }
            )
    return found


def gaps(row: Row) -> list[dict[str, Any]]:
    """Returns milliseconds a step by kernel class, its floor where it has one, and what is left."""
    floors = row.get("floors_ms", {})
    return [
        {
            "class": name,
            "ms": value,
            "floor_ms": floors.get(name),
            "gap_ms": value - floors.get(name, 0.0),
        }
        for name, value in row.get("classes_ms", {}).items()
    ]


def words(rows: Sequence[Row]) -> list[str]:
    """Returns all of it as lines for people; none where there is nothing to compare."""
    lines: list[str] = []
    items = bought(rows)
    if items:
        lines.append("\nWhat each bought, in the order tried (ratio of samples/s)")
        lines += [
            f"{item['image_px']:4} px {item['num_ranks']:4} ranks, batch {item['batch']:4}, "
            f"{item['comm']}: {item['mode']:14} "
            f"x{item['over_previous']:.3f} [{item['lo']:.3f}, {item['hi']:.3f}] over the one "
            f"before, x{item['over_first']:.2f} over the first"
            for item in items
        ]
    items = scaling(rows)
    if items:
        lines.append("\nScaling efficiency (samples/s a GPU, over those of the fewest)")
        lines += [
            f"{item['image_px']:4} px {item['num_ranks']:4} ranks against {item['against']}, batch "
            f"{item['batch']:4}, {item['mode']} {item['comm']}: {item['efficiency']:.1%} "
            f"[{item['lo']:.1%}, {item['hi']:.1%}]"
            for item in items
        ]
    for row in rows:
        if row.get("classes_ms"):
            lines += _class_lines(row)
    lines += [
        f"start of {row['mode']} {row['comm']} at batch {row['batch']}: "
        + ", ".join(f"{name} {value:.1f} s" for name, value in row["costs_s"].items())
        + (f"; {row['graph_nodes']:.0f} kernels in the graph" if row["graph_nodes"] else "")
        for row in rows
        if row.get("costs_s")
    ]
    return lines


def to_plain(rows: Sequence[Row]) -> dict[str, Any]:
    """Returns the same as plain values."""
    return {
        "rates": [setting._asdict() | asdict(rate) for setting, rate in rates(rows).items()],
        "bought": bought(rows),
        "scaling": scaling(rows),
    }


def _class_lines(row: Row) -> list[str]:
    head = f"\nBatch {row['batch']}, {row['mode']} {row['comm']}: ms on the device by kernel class"
    launched = f" ({row['launches']:.0f} launches a step)" if row["launches"] else ""
    lines = [head + launched]
    for item in gaps(row):
        floor = "" if item["floor_ms"] is None else f", floor {item['floor_ms']:.1f}"
        lines.append(f"  {item['class']:14} {item['ms']:8.2f}{floor}, gap {item['gap_ms']:.2f}")
    return lines
