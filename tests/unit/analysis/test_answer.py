"""The answer of whole sweeps whose truth is known."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from lf_ray.analysis.answer import Verdict, answer_of
from lf_ray.analysis.knee import KneeStatus
from lf_ray.analysis.report.words import headline, sentences
from lf_ray.analysis.seconds import seconds_of, spans_of
from lf_ray.protocol import Knobs, KnobValue, OutcomeKind, Purpose, TrialRecord
from lf_ray.record.history import SweepEnd, SweepHistory

History = Callable[..., SweepHistory]
Make = Callable[..., TrialRecord]
BUCKET, RATIO = "overlap.bucket_size_mb", "overlap.ratio"


def test_a_peaked_sweep_finds_best_knee_and_gain(seeded_history: History) -> None:
    answer = answer_of(seeded_history("peaked"))
    assert answer.verdict is Verdict.IMPROVED
    assert answer.winner is not None
    assert (answer.winner.knobs[BUCKET], answer.winner.knobs[RATIO]) == (1.0, 0.8)
    knees = {knee.knob: knee for knee in answer.knees}
    assert (knees[BUCKET].value, knees[RATIO].value) == (2.0, 0.6)
    assert {knee.status for knee in answer.knees} == {KneeStatus.RESOLVED}
    assert (answer.knee_knobs[BUCKET], answer.knee_knobs[RATIO]) == (2.0, 0.6)
    assert answer.knee_point is not None
    assert answer.gain is not None
    truth = 0.1402 / 0.10588  # of make_journal's objective, without noise
    assert answer.gain.lo <= truth <= answer.gain.hi
    assert answer.exit_code == 0
    assert answer.outcomes == {
        "completed": 9,
        "pruned": 0,
        "infeasible": 1,
        "failed": 1,
        "invalid": 1,
    }


def test_a_flat_sweep_keeps_the_baseline(seeded_history: History) -> None:
    answer = answer_of(seeded_history("flat"))
    assert answer.verdict is Verdict.KEEP_BASELINE
    assert answer.winner is answer.baseline
    assert answer.knee_knobs == answer.history.header.baseline_knobs
    assert all(knee.status is KneeStatus.FLAT for knee in answer.knees)
    assert answer.exit_code == 0


def ungated(history: SweepHistory, of: Knobs) -> SweepHistory:
    """Returns the sweep, the gate's verdict on one setting lost."""
    records = [
        replace(record, gate=None) if dict(record.request.knobs) == dict(of) else record
        for record in history.records
    ]
    return replace(history, records=tuple(records))


def test_in_a_gated_sweep_neither_baseline_nor_knee_passes_without_the_gate(
    seeded_history: History,
) -> None:
    history = seeded_history("peaked")
    gated = answer_of(history)
    assert gated.baseline is not None
    assert gated.knee_point is not None
    assert gated.winner is not None
    bare = answer_of(ungated(history, gated.baseline.knobs))
    assert (bare.verdict, bare.exit_code) == (Verdict.NO_BASELINE, 1)
    assert "not compared with the reference's" in headline(bare)
    bare = answer_of(ungated(history, gated.knee_point.knobs))
    assert bare.verdict is Verdict.IMPROVED
    assert bare.knee_knobs == gated.winner.knobs
    bare = answer_of(
        replace(history, records=tuple(replace(r, gate=None) for r in history.records))
    )
    assert bare.verdict is Verdict.IMPROVED, "no point of this sweep is gated"


def test_a_data_bound_sweep_declares_no_bucket_the_winner(seeded_history: History) -> None:
    answer = answer_of(seeded_history("data_bound"))
    assert answer.verdict is Verdict.DATA_BOUND
    assert answer.winner is answer.baseline
    assert answer.roofline is not None
    assert answer.roofline.wait_frac > 0.2
    assert all(knee.status is KneeStatus.UNDETERMINED for knee in answer.knees)
    assert answer.knee_knobs[BUCKET] == 25.0
    assert answer.exit_code == 0


def with_waits(history: SweepHistory, wait_frac: float, knobs: Knobs | None = None) -> SweepHistory:
    """Returns the sweep, its steps waiting for data, and these knobs at all but the baseline."""
    records = []
    for record in history.records:
        trace, request = record.trace, record.request
        if trace is not None:
            waited = tuple(wall_s * wait_frac for wall_s in trace.wall_s)
            trace = replace(trace, wait_s=waited)
        if record.point_id != "t000":
            request = replace(request, knobs={**request.knobs, **(knobs or {})})
        records.append(replace(record, trace=trace, request=request))
    return replace(history, records=tuple(records))


def test_nothing_faster_is_no_verdict_on_a_bucket_while_all_wait_for_data(
    seeded_history: History,
) -> None:
    answer = answer_of(with_waits(seeded_history("flat"), 0.4))
    assert answer.verdict is Verdict.DATA_BOUND
    assert all(knee.status is KneeStatus.UNDETERMINED for knee in answer.knees)
    said = sentences(answer)
    assert said[0].startswith("Data-bound: the step waits for its data 40%")
    assert any("raise data.workers" in text for text in said)


def test_a_better_input_path_that_still_starves_the_step_leaves_the_bucket_open(
    seeded_history: History,
) -> None:
    fed = with_waits(seeded_history("peaked"), 0.3, {"data.workers": 4})
    answer = answer_of(fed)
    assert answer.verdict is Verdict.IMPROVED
    knees = {knee.knob: knee for knee in answer.knees}
    assert knees[BUCKET].status is KneeStatus.UNDETERMINED
    assert knees[BUCKET].advised == 25.0
    assert not any(text.startswith(f"{BUCKET}: stopping") for text in sentences(answer))


def waiting(history: SweepHistory, baseline_frac: float, **knobs: KnobValue) -> SweepHistory:
    """Returns the sweep with the knobs set at all but the baseline, which waits so long itself."""
    dotted = {name.replace("__", "."): value for name, value in knobs.items()}
    others = with_waits(history, 0.3, dotted).records
    own = with_waits(history, baseline_frac).records
    records = [a if a.point_id == "t000" else b for a, b in zip(own, others)]
    return replace(history, records=tuple(records))


@pytest.mark.parametrize(
    ("baseline_frac", "knobs", "verdict"),
    [
        (0.3, {}, Verdict.DATA_BOUND),  # only buckets differ, and all wait
        (0.05, {}, Verdict.IMPROVED),  # tuning has brought it to where data is the limit
        (0.3, {"graph__scope": "step"}, Verdict.IMPROVED),
        (0.3, {"batch__accumulation": 2}, Verdict.IMPROVED),
    ],
)
def test_a_certainly_faster_point_wins_though_it_waits_for_data_unless_it_is_a_bucket_alone(
    seeded_history: History, baseline_frac: float, knobs: Knobs, verdict: Verdict
) -> None:
    answer = answer_of(waiting(seeded_history("peaked"), baseline_frac, **knobs))
    assert answer.verdict is verdict
    assert answer.gain is not None
    said = headline(answer)
    if verdict is Verdict.DATA_BOUND:
        assert answer.winner is answer.baseline
        assert said.startswith("Data-bound")
        return
    assert answer.winner is answer.fastest
    assert answer.gain.lo > 1
    assert "faster than the baseline" in said
    waits = "Data-bound: it waits for its data 30% (95 %: 30% to 30%) of the time."
    assert said.endswith(waits)
    knees = {knee.knob: knee for knee in answer.knees}
    assert knees[BUCKET].status is KneeStatus.UNDETERMINED
    assert knees[BUCKET].advised == (25.0 if baseline_frac > 0.2 else 1.0)


def test_the_words_say_what_tuning_can_still_give_and_when_it_has_paid(
    seeded_history: History,
) -> None:
    answer = answer_of(seeded_history("peaked"))
    assert answer.roofline is not None
    assert answer.break_even_steps is not None
    said = " ".join(sentences(answer))
    assert f"at most {answer.roofline.bound:.2f}x" in said
    assert f"won back after {answer.break_even_steps:,.0f} training steps" in said
    assert "At the baseline a step of" in said


def test_without_a_valid_baseline_there_is_no_answer(seeded_history: History) -> None:
    answer = answer_of(seeded_history("no_baseline"))
    assert (answer.verdict, answer.exit_code) == (Verdict.NO_BASELINE, 1)
    assert answer.gain is None
    assert answer.knees == ()


def test_an_interrupted_sweep_keeps_what_it_has(seeded_history: History) -> None:
    answer = answer_of(seeded_history("interrupted"))
    assert answer.exit_code == 130
    assert answer.verdict is Verdict.IMPROVED
    assert all(knee.status is KneeStatus.UNDETERMINED for knee in answer.knees)
    assert answer.winner is not None
    assert answer.knee_knobs == answer.winner.knobs


def _with(history: SweepHistory, *records: TrialRecord) -> SweepHistory:
    return replace(history, records=records, ended=SweepEnd(reason="", exit_code=0, wall_s=0.0))


def test_every_other_trial_lost_is_no_answer(seeded_history: History, make_record: Make) -> None:
    history = seeded_history("no_baseline")
    base = make_record("t000", 100.0, purpose=Purpose.BASELINE)
    lost = make_record("t001", kind=OutcomeKind.FAILED, reason="died")
    too_large = make_record("t002", kind=OutcomeKind.INFEASIBLE, reason="memory")
    assert answer_of(_with(history, base, lost)).exit_code == 1
    assert answer_of(_with(history, base, lost, too_large)).exit_code == 0
    assert answer_of(_with(history, base)).exit_code == 0


def test_a_baseline_beyond_its_gate_is_no_baseline(
    seeded_history: History, make_record: Make
) -> None:
    base = make_record("t000", 100.0, purpose=Purpose.BASELINE, gate=False)
    answer = answer_of(_with(seeded_history("no_baseline"), base))
    assert (answer.verdict, answer.exit_code) == (Verdict.NO_BASELINE, 1)


def test_a_joint_knee_that_is_slower_than_its_parts_is_not_advised(
    seeded_history: History, make_record: Make
) -> None:
    history = seeded_history("peaked")
    joint = {**history.header.baseline_knobs, BUCKET: 2.0, RATIO: 0.6}
    kept = [r for r in history.records if r.request.knobs != joint]
    slow = [
        make_record("s039", 50.0, knobs=joint),
        make_record("s040", 50.0, knobs=joint, replicate_of="s039"),
    ]
    answer = answer_of(replace(history, records=(*kept, *slow)))
    assert answer.winner is not None
    assert answer.knee_knobs == answer.winner.knobs


def test_what_the_first_request_waits_for_ray_is_start_up(seeded_history: History) -> None:
    history = seeded_history("peaked")
    before = seconds_of(history)
    header, first, *rest = history.events
    assert first.kind == "started"
    waited = (
        replace(header, wall_s=header.wall_s - 30.0),
        replace(first, wall_s=first.wall_s - 30.0),
        *rest,
    )
    after = seconds_of(replace(history, events=waited))
    assert after.total == pytest.approx(before.total + 30.0)
    assert after.startup == pytest.approx(before.startup + 30.0)
    assert after.between == pytest.approx(before.between)
    parts = spans_of(replace(history, events=waited))[0].parts_s
    assert next(iter(parts)) == "start"
    assert parts["start"] == pytest.approx(30.0)
    assert all("start" not in span.parts_s for span in spans_of(history)[1:])


def test_seconds_add_up_and_leave_out_the_pause_before_a_resume(seeded_history: History) -> None:
    history = seeded_history("peaked")
    seconds = answer_of(history).seconds
    parts = seconds.measured + seconds.warmup + seconds.startup + seconds.between
    assert parts + seconds.searcher == pytest.approx(seconds.total)
    assert seconds.measured == pytest.approx(
        sum(r.outcome.costs_s.get("measured", 0.0) for r in history.records)
    )
    head, tail = history.events[:20], history.events[20:]
    resumed = replace(
        head[-1], kind="note", data={"resumed": True}, wall_s=head[-1].wall_s + 5000.0
    )
    later = tuple(replace(event, wall_s=event.wall_s + 5000.0) for event in tail)
    paused = replace(history, events=(*head, resumed, *later))
    assert answer_of(paused).seconds.total == pytest.approx(seconds.total)


def test_a_knob_without_a_say_at_the_best_is_dead(seeded_history: History) -> None:
    history = seeded_history("peaked")
    header = replace(
        history.header, space={**history.header.space, "pipeline.prefix": ("off", "on")}
    )
    answer = answer_of(replace(history, header=header))
    prefix = answer.knees[-1]
    assert (prefix.knob, prefix.status) == ("pipeline.prefix", KneeStatus.DEAD)
    assert "has no say" in prefix.reason
    assert answer.knee_knobs["pipeline.prefix"] == "off"


def test_a_space_that_holds_a_rule_is_read_from_what_was_walked_or_tried(
    seeded_history: History,
) -> None:
    history = seeded_history("peaked")
    rule = {**history.header.space, BUCKET: ("powers of two",)}
    ruled = replace(history, header=replace(history.header, space=rule))
    assert answer_of(ruled).knees[0].value == 2.0
    assert answer_of(replace(ruled, stages=())).knees[0].value == 2.0
