"""What a sweep says of one step, and of the input path alone."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest

from lf_ray.analysis.answer import Answer, answer_of
from lf_ray.analysis.report.core import busy_frac, core_table, core_words
from lf_ray.analysis.report.feeding import feeding_settings, feeding_words, is_feeding
from lf_ray.analysis.report.markdown import markdown
from lf_ray.analysis.report.page import page
from lf_ray.analysis.report.tables import commands
from lf_ray.analysis.report.words import headline, sentences
from lf_ray.protocol import KnobValue, Purpose, TrialRecord
from lf_ray.record.history import SweepHistory

History = Callable[..., SweepHistory]
MakeRecord = Callable[..., TrialRecord]
PHASES = {"forward": 0.03, "backward": 0.04, "exposed_comm": 0.02, "data_wait": 0.005}


def answer_from(
    history: SweepHistory, space: Mapping[str, tuple[KnobValue, ...]], *records: TrialRecord
) -> Answer:
    baseline = dict(records[0].request.knobs)
    header = replace(history.header, space=space, baseline_knobs=baseline)
    return answer_of(replace(history, header=header, records=records, stages=(), dead=()))


@pytest.fixture
def baseline_answer(seeded_history: History, make_record: MakeRecord) -> Answer:
    visits = [
        make_record(
            name,
            80.0,
            purpose=Purpose.BASELINE if place == 0 else Purpose.REPLICATE,
            replicate_of="t000" if place else None,
            phases_s=PHASES,
            memory_bytes={"peak": 3 * 2.0**30},
            seed=place,
        )
        for place, name in enumerate(("t000", "t000r1", "t000r2"))
    ]
    return answer_from(seeded_history("flat"), {}, *visits)


def test_a_baseline_alone_is_told_by_its_four_figures(baseline_answer: Answer) -> None:
    assert headline(baseline_answer) == "The baseline's step takes 100.0 ms."
    time, phases, busy, memory = core_words(baseline_answer)
    assert time.startswith("Step time: 100.0 ms")
    assert "backward 40.0%" in phases
    assert "data wait 5.0%" in phases
    assert busy == "Utilisation: 70% of the step in phases that compute."
    assert memory.startswith("Peak memory: 3.00 GiB")
    assert {time, phases, busy, memory} <= set(sentences(baseline_answer))
    assert baseline_answer.exit_code == 0


def test_the_reports_show_them(baseline_answer: Answer) -> None:
    for text in (page(baseline_answer, {}), markdown(baseline_answer, {})):
        assert "Core figures" in text
        assert "3.00 GiB" in text


def test_the_drivers_own_utilisation_goes_first(
    seeded_history: History, make_record: MakeRecord
) -> None:
    record = make_record(
        "t000",
        80.0,
        purpose=Purpose.BASELINE,
        phases_s=PHASES,
        metrics={"gpu_utilisation_frac": 0.93},
    )
    answer = answer_from(seeded_history("flat"), {}, record)
    assert answer.baseline is not None
    assert busy_frac(answer.baseline) == 0.93
    assert "as the driver reports it" in core_words(answer)[2]


def test_another_sweep_has_the_table_with_its_winner_and_no_such_words(
    seeded_history: History,
) -> None:
    answer = answer_of(seeded_history("peaked"))
    table = core_table(answer)
    assert table.columns == ("figure", "baseline", "best")
    (hidden,) = (row for row in table.rows if row[0] == "hidden communication")
    assert "not measur" in hidden[1], "a CPU can't tell it, and nothing was measured elsewhere"
    assert core_words(answer) == []
    assert feeding_words(answer) == []


def feeding_answer(
    history: SweepHistory,
    make_record: MakeRecord,
    waits: Mapping[int, float],
    *,
    uncached: Sequence[int] = (),
) -> Answer:
    records = []
    for place, (workers, wait_frac) in enumerate(waits.items()):
        cache = {"data.cache": workers not in uncached} if uncached else {}
        record = make_record(
            f"t{place:03d}",
            40.0 * (1 - wait_frac),
            knobs={"data.workers": workers, "data.prefetch": 2} | cache,
            purpose=Purpose.SEARCH if place else Purpose.BASELINE,
            effective={"fed_step_s": 0.2},
        )
        assert record.trace is not None
        waited = tuple(wall_s * wait_frac for wall_s in record.trace.wall_s)
        records.append(replace(record, trace=replace(record.trace, wait_s=waited)))
    space: dict[str, tuple[KnobValue, ...]] = {"data.workers": (0, 1, 2, 4), "data.prefetch": (2,)}
    return answer_from(history, space, *records)


def test_the_fewest_workers_that_never_starve_the_step_are_named(
    seeded_history: History, make_record: MakeRecord
) -> None:
    waits = {0: 0.5, 1: 0.1, 2: 0.004, 4: 0.0}
    (said,) = feeding_words(feeding_answer(seeded_history("flat"), make_record, waits))
    assert said.startswith("Fewest workers that never starve a step of 200 ms: data.workers 2,")
    assert "0.40% (95 %: 0.40% to 0.40%) of the time" in said


def test_the_knobs_that_feed_the_step_are_given_for_the_command_line(
    seeded_history: History, make_record: MakeRecord
) -> None:
    answer = feeding_answer(seeded_history("flat"), make_record, {0: 0.5, 2: 0.0})
    assert feeding_settings(answer) == "data.workers=2 data.prefetch=2"
    use, command = commands(answer)[0]
    assert "Feed" in use
    assert command == "python sweeps/overlap.py data.workers=2 data.prefetch=2"
    other = answer_of(seeded_history("peaked"))
    assert not is_feeding(other)
    assert "lf_ray.train" in commands(other)[0][1]


def test_what_is_possible_without_the_cache_is_said_beside_it(
    seeded_history: History, make_record: MakeRecord
) -> None:
    answer = feeding_answer(
        seeded_history("flat"), make_record, {0: 0.0, 1: 0.4, 2: 0.0}, uncached=(1, 2)
    )
    with_cache, without = feeding_words(answer)
    assert "data.workers 0, data.prefetch 2, data.cache true" in with_cache
    assert without.startswith("Without the frame cache: data.workers 2,")
    none = feeding_answer(seeded_history("flat"), make_record, {0: 0.0, 1: 0.4}, uncached=(1,))
    assert "the least wait is 40%" in feeding_words(none)[1]


def test_skipped_samples_are_in_the_words_of_any_sweep(
    seeded_history: History, make_record: MakeRecord
) -> None:
    record = make_record("t000", 80.0, purpose=Purpose.BASELINE, metrics={"samples_skipped": 3.0})
    lacking = replace(record, bad_frames=("frame 7 of a.mp4: broken", "frame 8 of a.mp4: broken"))
    said = " ".join(sentences(answer_from(seeded_history("flat"), {}, lacking)))
    assert "3 samples were skipped" in said
    assert "frame 7 of a.mp4: broken and 1 more" in said
    assert "skipped" not in " ".join(sentences(answer_of(seeded_history("peaked"))))


def test_a_step_that_nothing_feeds_is_said(
    seeded_history: History, make_record: MakeRecord
) -> None:
    waits = {0: 0.5, 4: 0.2}
    (said,) = feeding_words(feeding_answer(seeded_history("flat"), make_record, waits))
    assert said.startswith("No setting tried feeds a step of 200 ms: the least wait is 20%")
    assert "data.workers 4" in said
