"""The knee on objectives whose answer is known."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest

from lf_ray.analysis.knee import Knee, KneeStatus, knee_estimate, knee_index
from lf_ray.analysis.points import best_of, points_of
from lf_ray.analysis.slices import Slice, cheapest_first, slice_of
from lf_ray.protocol import KnobValue, OutcomeKind, TrialRecord
from lf_ray.record.history import DeadPoint

Make = Callable[..., TrialRecord]
BUCKETS = [1.0, 2.0, 4.0, 8.0, 16.0, 25.0, 32.0, 64.0]
KNOB = "overlap.bucket_size_mb"


def _knobs(value: KnobValue, knob: str = KNOB) -> dict[str, KnobValue]:
    return {KNOB: 25.0, "overlap.ratio": 0.5, knob: value}


def _slice(
    make: Make,
    curve: Mapping[KnobValue, float | None],
    *,
    knob: str = KNOB,
    noise_frac: float = 0.0005,
    between_frac: float = 0.0,
    visits: int = 3,
    seed: int = 0,
    best: KnobValue | None = None,
    ladder: Sequence[KnobValue] | None = None,
    dead: Sequence[DeadPoint] = (),
) -> Slice:
    rng = np.random.default_rng(seed)
    records = []
    for index, (value, throughput) in enumerate(curve.items()):
        for visit in range(visits):
            if throughput is None:
                continue
            factor = 1 + between_frac * rng.standard_normal()
            records.append(
                make(
                    f"t{index:03d}" + (f"r{visit}" if visit else ""),
                    throughput * factor,
                    knobs=_knobs(value, knob),
                    replicate_of=f"t{index:03d}" if visit else None,
                    noise_frac=noise_frac,
                    seed=int(rng.integers(1 << 30)),
                )
            )
    points = points_of(records)
    chosen = best_of(points)
    if best is not None:
        chosen = next(p for p in points if p.knobs[knob] == best)
    assert chosen is not None
    return slice_of(points, chosen, knob, ladder or list(curve), baseline_value=25.0, dead=dead)


def _peaked(best: float, floor: float = 80.0) -> dict[KnobValue, float | None]:
    """Falls off smoothly on both sides of a plateau of two ladder steps."""
    place = BUCKETS.index(best)
    return {
        value: max(floor, 100.0 - (0.5 if i == place + 1 else 4.0 * max(0, abs(i - place))))
        for i, value in enumerate(BUCKETS)
    }


def test_cheaper_is_fewer_collectives_and_smaller_everything_else() -> None:
    assert cheapest_first(KNOB, [1.0, 64.0, 25.0, 64.0]) == [64.0, 25.0, 1.0]
    assert cheapest_first("overlap.ratio", [1.0, 0.0]) == [0.0, 1.0]
    assert cheapest_first("graph.scope", ["step+optimizer", "off", "step"])[0] == "off"
    assert cheapest_first("memory.block_sizes", ["1-2", "none", "4-8"]) == ["none", "1-2", "4-8"]


def test_the_cheapest_value_within_delta_is_the_knee(make_record: Make) -> None:
    knee = knee_estimate(_slice(make_record, _peaked(8.0), noise_frac=0.005))
    assert (knee.value, knee.best_value, knee.status) == (16.0, 8.0, KneeStatus.RESOLVED)
    assert (knee.lo, knee.hi) == (16.0, 16.0)
    assert knee.advised == 16.0
    assert "25 MiB is cheaper but" in knee.reason


def test_every_value_between_knee_and_best_must_be_within_delta() -> None:
    values = np.array([100.0, 100.0, 90.0, 99.5, 100.0, 80.0])
    assert knee_index(values, 4, 0.02) == 3
    assert knee_index(np.array([100.0, np.nan, 100.0]), 2, 0.02) == 2


def test_a_flat_ladder_keeps_the_baselines_value(make_record: Make) -> None:
    curve: dict[KnobValue, float | None] = {value: 100.0 + i / 4 for i, value in enumerate(BUCKETS)}
    knee = knee_estimate(_slice(make_record, curve, noise_frac=0.003))
    assert (knee.value, knee.status, knee.advised) == (25.0, KneeStatus.FLAT, 25.0)
    assert (knee.lo, knee.hi) == (1.0, 64.0)


def test_a_ladder_that_still_rises_at_its_open_end_is_an_edge(make_record: Make) -> None:
    curve: dict[KnobValue, float | None] = {
        value: 100.0 - 5.0 * i for i, value in enumerate(BUCKETS)
    }
    knee = knee_estimate(_slice(make_record, curve, noise_frac=0.003))
    assert (knee.value, knee.status) == (1.0, KneeStatus.EDGE)
    assert "still rises" in knee.reason


def test_a_cheapest_value_that_would_do_is_an_edge_unless_nothing_is_cheaper(
    make_record: Make,
) -> None:
    curve: dict[KnobValue, float | None] = {
        value: 100.0 if i > 3 else 70.0 for i, value in enumerate(BUCKETS)
    }
    assert knee_estimate(_slice(make_record, curve)).status is KneeStatus.EDGE
    ratios: dict[KnobValue, float | None] = {0.0: 100.0, 0.5: 95.0, 1.0: 90.0}
    knee = knee_estimate(_slice(make_record, ratios, knob="overlap.ratio"))
    assert (knee.value, knee.status) == (0.0, KneeStatus.RESOLVED)


def test_a_bucket_that_could_hardly_be_larger_is_no_edge(make_record: Make) -> None:
    records = [
        make_record(
            f"t{index:03d}",
            100.0 if value > 16 else 80.0,
            knobs=_knobs(value),
            effective={"bytes_on_wire": 40 * 2**20},
            seed=index,
        )
        for index, value in enumerate([8.0, 16.0, 25.0, 32.0])
    ]
    points = points_of(records)
    along = slice_of(points, points[3], KNOB, [8.0, 16.0, 25.0, 32.0], baseline_value=25.0)
    assert along.closed == (True, False)
    knee = knee_estimate(along)
    assert (knee.value, knee.status) == (32.0, KneeStatus.RESOLVED)


def test_noise_beyond_delta_is_undetermined_and_advises_the_best(make_record: Make) -> None:
    knee = knee_estimate(
        _slice(make_record, _peaked(8.0, 95.0), noise_frac=0.4, visits=1, best=8.0)
    )
    assert knee.status is KneeStatus.UNDETERMINED
    assert knee.advised == knee.best_value
    assert knee.lo != knee.hi


def test_a_best_that_is_best_by_chance_pins_no_knee(make_record: Make) -> None:
    curve: dict[KnobValue, float | None] = {
        value: 100.0 - i for i, value in enumerate(reversed(BUCKETS))
    }
    along = _slice(make_record, curve, noise_frac=0.6, visits=1, best=64.0)
    # Nothing is cheaper than the largest bucket, so the walk itself can't show the doubt.
    knee = knee_estimate(along)
    assert knee.status is KneeStatus.UNDETERMINED, knee
    assert "another value may well be over 2% faster" in knee.reason


def test_the_interval_counts_that_another_value_may_be_the_best(make_record: Make) -> None:
    curve: dict[KnobValue, float | None] = {64.0: 100.0, 32.0: 100.5, 16.0: 100.5, 8.0: 100.0}
    along = _slice(make_record, curve, noise_frac=0.15, visits=2, best=64.0)
    # From the largest bucket nothing is cheaper: held to it, every resample would say 64.
    knee = knee_estimate(along)
    assert (knee.lo, knee.hi) == (8.0, 64.0), knee
    assert knee.status is KneeStatus.UNDETERMINED, knee
    surer = knee_estimate(_slice(make_record, {**curve, 8.0: 90.0}, best=64.0))
    assert (surer.value, surer.lo, surer.hi) == (64.0, 64.0, 64.0), surer


def test_a_hole_next_to_the_walk_is_undetermined(make_record: Make) -> None:
    curve = {**_peaked(8.0), 25.0: None}
    slice_ = _slice(make_record, curve, ladder=BUCKETS)
    knee = knee_estimate(slice_)
    assert slice_.missing == (25.0,)
    assert knee.status is KneeStatus.UNDETERMINED
    assert "25 MiB was not measured" in knee.reason


def test_a_hole_beyond_the_drop_does_not_matter(make_record: Make) -> None:
    curve = {**_peaked(8.0), 64.0: None}
    knee = knee_estimate(_slice(make_record, curve, ladder=BUCKETS))
    assert (knee.value, knee.status) == (16.0, KneeStatus.RESOLVED)


def test_a_hole_beyond_the_best_is_undetermined(make_record: Make) -> None:
    """A sweep cut short has not looked whether more of the knob is faster still."""
    curve: dict[KnobValue, float | None] = {64.0: 80.0, 32.0: 100.0, 16.0: None}
    knee = knee_estimate(_slice(make_record, curve, ladder=[64.0, 32.0, 16.0]))
    assert knee.status is KneeStatus.UNDETERMINED
    assert "16 MiB was not measured and may be faster" in knee.reason
    only: dict[KnobValue, float | None] = {64.0: 100.0, 32.0: None, 16.0: 90.0}
    assert knee_estimate(_slice(make_record, only)).status is KneeStatus.UNDETERMINED


def test_a_knob_that_changes_nothing_is_dead(make_record: Make) -> None:
    dead = [
        DeadPoint(knobs=_knobs(value), same_as="t000", reason="same buckets")
        for value in BUCKETS[1:]
    ]
    knee = knee_estimate(_slice(make_record, {1.0: 100.0}, ladder=BUCKETS, dead=dead))
    assert (knee.status, knee.advised) == (KneeStatus.DEAD, 25.0)


def test_a_twin_of_a_measured_value_counts_as_measured(make_record: Make) -> None:
    curve = {**_peaked(8.0), 25.0: None}
    same = "t004"  # 16 MiB gives the same buckets as 25
    dead = [DeadPoint(knobs=_knobs(25.0), same_as=same, reason="same buckets")]
    knee = knee_estimate(_slice(make_record, curve, ladder=BUCKETS, dead=dead, noise_frac=0.004))
    assert (knee.value, knee.status) == (25.0, KneeStatus.RESOLVED)


def test_a_value_that_silences_another_knob_is_read_where_that_one_is_off(
    make_record: Make,
) -> None:
    """A captured, pipelined best: without capture nothing is pipelined, whatever was asked for."""

    def at(scope: str, prefix: str) -> dict[str, KnobValue]:
        return {"graph.scope": scope, "pipeline.prefix": prefix}

    rates = {("off", "off"): 50.0, ("step", "off"): 90.0, ("step+optimizer", "on"): 100.0}
    records = [
        make_record(
            f"t{index:03d}" + (f"r{visit}" if visit else ""),
            rate,
            knobs=at(*setting),
            replicate_of=f"t{index:03d}" if visit else None,
            seed=7 * index + visit,
        )
        for index, (setting, rate) in enumerate(rates.items())
        for visit in range(3)
    ]
    points = points_of(records)
    ladder = ["off", "step", "step+optimizer"]
    along = slice_of(points, points[2], "graph.scope", ladder, baseline_value="off")
    assert along.missing == ()
    knee = knee_estimate(along)
    assert (knee.status, knee.value) == (KneeStatus.RESOLVED, "step+optimizer")


def test_one_value_is_no_ladder(make_record: Make) -> None:
    assert knee_estimate(_slice(make_record, {8.0: 100.0})).status is KneeStatus.UNDETERMINED


@pytest.mark.parametrize("wrong", [False, True])
def test_a_value_that_fails_or_computes_wrong_stops_the_walk(
    make_record: Make, wrong: bool
) -> None:
    at_16 = (
        make_record("t001", 100.0, knobs=_knobs(16.0), gate=False)
        if wrong
        else make_record("t001", knobs=_knobs(16.0), kind=OutcomeKind.INFEASIBLE, reason="memory")
    )
    points = points_of(
        [
            make_record("t000", 100.0, knobs=_knobs(8.0)),
            at_16,
            make_record("t002", 100.0, knobs=_knobs(25.0)),
            make_record("t003", 90.0, knobs=_knobs(4.0)),
        ]
    )
    ladder = [4.0, 8.0, 16.0, 25.0]
    knee = knee_estimate(slice_of(points, points[0], KNOB, ladder, baseline_value=25.0))
    assert (knee.value, knee.status) == (8.0, KneeStatus.RESOLVED)
    assert ("differ from the reference" if wrong else "infeasible (memory)") in knee.reason


@pytest.mark.parametrize("curve_name", ["peaked", "saturating"])
def test_doubling_the_range_does_not_move_the_knee(make_record: Make, curve_name: str) -> None:
    def value_at(bucket: float) -> float:
        if curve_name == "peaked":
            return float(100.0 - 3.0 * abs(np.log2(bucket / 4.0)))
        return float(100.0 * min(1.0, 0.9 + 0.05 * np.log2(64.0 / bucket)))

    short = [float(2**i) for i in range(0, 7)]
    long = [float(2**i) for i in range(-5, 14)]
    knees = [
        knee_estimate(_slice(make_record, {b: value_at(b) for b in ladder}, noise_frac=0.004))
        for ladder in (short, long)
    ]
    assert [knee.status for knee in knees] == [KneeStatus.RESOLVED] * 2
    assert knees[0].value == knees[1].value


def test_the_seed_decides_the_interval_and_wire_keeps_it(make_record: Make) -> None:
    slice_ = _slice(make_record, _peaked(8.0, 95.0), noise_frac=0.03)
    first = knee_estimate(slice_, seed=3)
    assert first == knee_estimate(slice_, seed=3)
    assert Knee.from_json(first.to_json()) == first


def test_the_interval_holds_the_true_knee(make_record: Make) -> None:
    """95 % intervals must cover at least 93 % of the time, and not by covering everything."""
    truth = {float(2**i): 100.0 - 1.3 * abs(i - 2) for i in range(7)}
    ladder = cheapest_first(KNOB, list(truth))
    best_index = ladder.index(4.0)
    true_knee = ladder[knee_index(np.array([truth[float(v)] for v in ladder]), best_index, 0.02)]
    covered, widths = [], []
    for seed in range(120):
        slice_ = _slice(
            make_record,
            {value: truth[value] for value in truth},
            noise_frac=0.02,
            between_frac=0.003,
            seed=seed,
            best=4.0,
        )
        knee = knee_estimate(slice_, seed=seed)
        covered.append(float(knee.lo) <= float(true_knee) <= float(knee.hi))
        widths.append(np.log2(float(knee.hi) / float(knee.lo)))
    assert np.mean(covered) >= 0.93
    assert np.mean(widths) < 2.0


def test_values_that_need_workers_of_their_own_carry_the_error_of_a_start(
    make_record: Make,
) -> None:
    knees = {}
    for knob, values in (
        ("pipeline.prefix", ("off", "on")),
        ("memory.backend", ("caching", "expandable")),
    ):
        curve: dict[KnobValue, float | None] = {values[0]: 95.6, values[1]: 100.0}
        along = _slice(make_record, curve, knob=knob, between_frac=0.015, visits=12, best=values[1])
        knees[knob] = knee_estimate(along), along
    same, apart = knees["pipeline.prefix"], knees["memory.backend"]
    # The same readings: twelve visits of one start are twelve readings, but one of the start.
    means = [
        [v.throughput.value for r in along.readings for v in r.visits] for _, along in (same, apart)
    ]
    assert means[0] == means[1]
    assert all(reading.start_frac == 0 for reading in same[1].readings)
    assert all(reading.start_frac > 0.005 for reading in apart[1].readings)
    assert (same[0].lo, same[0].hi) == ("on", "on")
    assert (apart[0].lo, apart[0].hi) == ("caching", "expandable")
    assert apart[0].confidence_frac < same[0].confidence_frac
