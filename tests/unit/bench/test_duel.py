"""Two searches against each other: whose winner is faster, as measured in turn."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from lf_ray.bench.contest.duel import Search, best_plain, in_turn, judged, returned, table
from lf_ray.bench.live import main, with_baseline
from lf_ray.clock import FakeClock
from lf_ray.protocol import (
    Knobs,
    KnobValue,
    OutcomeKind,
    TrialOutcome,
    TrialRecord,
    TrialRequest,
)
from lf_ray.search.space import space_from_literal
from lf_ray.settings import SweepConfig, knobs_of
from lf_ray.testing.objectives import KneeObjective

BASE: Mapping[str, KnobValue] = knobs_of(SweepConfig())
SPACE = space_from_literal({"overlap.bucket_size_mb": [25.0, 64.0, 256.0]}, BASE)
RATES = {25.0: 100.0, 64.0: 110.0, 256.0: 120.0}


def at(bucket: float) -> dict[str, KnobValue]:
    return {**BASE, "overlap.bucket_size_mb": bucket}


def rate(knobs: Knobs) -> float:
    return RATES[float(knobs["overlap.bucket_size_mb"])]


def found(bucket: float, claimed: float = 100.0) -> Search:
    return Search(
        knobs=at(bucket), claimed_samples_per_s=claimed, num_trials=9, num_without=1, wall_s=240.0
    )


def measured(
    *buckets: float, unsteady: float | None = None, restless: float | None = None
) -> list[TrialRecord]:
    def fate(request: TrialRequest) -> TrialOutcome | None:
        if request.knobs["overlap.bucket_size_mb"] != unsteady:
            return None
        return TrialOutcome(
            kind=OutcomeKind.FAILED, reason="its steps wander", error_kind="unsteady"
        )

    moods = iter([0.8, 1.0, 1.2])

    def mood(knobs: Knobs) -> float:
        restless_now = knobs["overlap.bucket_size_mb"] == restless
        return rate(knobs) * (next(moods) if restless_now else 1.0)

    objective = KneeObjective(true_rate=mood, fate=fate, clock=FakeClock())
    visits = in_turn(SweepConfig(), [at(bucket) for bucket in buckets], 3)
    return list(map(objective, visits))


def test_sides_are_visited_to_and_fro_and_the_first_is_the_baseline() -> None:
    visits = in_turn(SweepConfig(), [at(25.0), at(64.0), at(256.0)], 2)
    assert [item.id for item in visits] == ["t000", "t001", "t002", "t002r1", "t001r1", "t000r1"]
    assert {item.replicate_of for item in visits[3:]} == {"t000", "t001", "t002"}
    assert {item.purpose for item in visits if item.id.startswith("t000")} == {"baseline"}


@pytest.mark.parametrize(
    ("ours", "plain", "verdict"),
    [(256.0, 64.0, "faster"), (64.0, 256.0, "slower"), (256.0, 25.0, "faster")],
)
def test_the_winners_are_held_against_each_other(ours: float, plain: float, verdict: str) -> None:
    said = judged(found(ours), found(plain), measured(25.0, 64.0, 256.0), num_workers=2)
    assert said["verdict"] == verdict
    assert said["ratio"]["lo"] < RATES[ours] / RATES[plain] < said["ratio"]["hi"]
    assert said["ours"]["over_baseline"]["value"] == pytest.approx(RATES[ours] / 100.0, rel=0.02)
    assert said["ours"]["worker_s"] == 480.0
    assert json.loads(json.dumps(said)) == said


def test_a_restless_baseline_does_not_blur_the_winners() -> None:
    records = measured(25.0, 64.0, 256.0, restless=25.0)
    said = judged(found(256.0), found(64.0), records, num_workers=1)
    assert said["verdict"] == "faster"
    assert said["ours"]["over_baseline"]["hi"] - said["ours"]["over_baseline"]["lo"] > 0.1


def test_what_an_interrupted_confirmation_brought_back_is_judged() -> None:
    """After Ctrl-C Tune gives results of visits that never ran, without a record."""
    visits = measured(25.0, 64.0, 256.0)
    results = [{"record": json.dumps(record.to_json())} for record in visits[:5]]
    records = returned([*results, {"trial_id": "x"}])
    assert [record.request.id for record in records] == [item.request.id for item in visits[:5]]
    said = judged(found(256.0), found(64.0), records, num_workers=1)
    assert len(said["ours"]["visits_samples_per_s"]) == 2
    assert len(said["plain"]["visits_samples_per_s"]) == 2


def test_a_restless_winner_decides_nothing() -> None:
    records = measured(25.0, 64.0, 256.0, restless=256.0)
    said = judged(found(256.0), found(64.0), records, num_workers=1)
    assert said["verdict"] == "undetermined"


def test_what_each_claims_decides_nothing() -> None:
    records = measured(25.0, 64.0, 256.0)
    said = judged(found(64.0, claimed=500.0), found(256.0, claimed=90.0), records, num_workers=1)
    assert said["verdict"] == "slower"
    assert said["ours"]["claimed_samples_per_s"] == 500.0


def test_one_setting_has_no_ratio_to_itself() -> None:
    said = judged(found(64.0), found(64.0), measured(25.0, 64.0), num_workers=1)
    assert (said["ratio"], said["verdict"]) == (None, "the same setting")
    said = judged(found(25.0), found(25.0), measured(25.0), num_workers=1)
    assert said["verdict"] == "the same setting"


def test_a_side_that_does_not_settle_is_undetermined() -> None:
    records = measured(25.0, 64.0, 256.0, unsteady=64.0)
    said = judged(found(256.0), found(64.0), records, num_workers=1)
    assert said["verdict"] == "undetermined: its steps wander"
    assert said["plain"]["samples_per_s"] is None
    assert "undetermined" in table(said)


def result(bucket: float, samples_per_s: float | None) -> tuple[dict[str, Any], dict[str, Any]]:
    metrics = {} if samples_per_s is None else {"samples_per_s": samples_per_s}
    return {"overlap.bucket_size_mb": bucket}, metrics


def test_the_plain_winner_is_what_reported_the_most() -> None:
    results = [result(25.0, 100.0), result(64.0, 130.0), result(256.0, None)]
    best = best_plain(results, SPACE, wall_s=100.0)
    assert best.knobs == at(64.0)
    assert (best.claimed_samples_per_s, best.num_trials, best.num_without) == (130.0, 3, 1)


def test_a_plain_search_without_a_number_keeps_the_baseline() -> None:
    best = best_plain([result(64.0, None)], SPACE, wall_s=100.0)
    assert (best.knobs, best.claimed_samples_per_s) == (BASE, 0.0)


def test_the_table_names_what_each_changed() -> None:
    lines = table(judged(found(256.0), found(64.0), measured(25.0, 64.0, 256.0), 2)).splitlines()
    assert "ours: overlap.bucket_size_mb=256.0" in lines
    assert lines[-1].startswith("ours over plain: 1.0")
    assert lines[-1].endswith("faster")


def test_both_sides_can_begin_at_the_baseline() -> None:
    axes: dict[str, list[KnobValue]] = {
        "overlap.bucket_size_mb": [1.0, 64.0],
        "overlap.ratio": [0.0, 1.0],
        "batch.per_gpu": [4],
    }
    assert with_baseline(axes, BASE) == {
        "overlap.bucket_size_mb": [1.0, 64.0, 25.0],
        "overlap.ratio": [0.0, 1.0],
    }


@pytest.mark.parametrize("word", ["cluster=sim_2xh200", "resume=20260101-000000"])
def test_what_the_sides_can_not_share_is_refused(
    word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--batches", "4", "cluster=cpu", word]) == 2
    assert "comparing with a plain Ray Tune sweep" in capsys.readouterr().err
