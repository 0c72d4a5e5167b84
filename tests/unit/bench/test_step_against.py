"""How our step and LoongForge's are held against each other: pooled visits, ratio, verdict."""

import pytest

from lf_ray.bench.step import main
from lf_ray.bench.steps.against import LOONGFORGE, VisitTimes, against_words, compared


def visit(step_s: float, num_ranks: int = 2, **metrics: float) -> list[VisitTimes]:
    times_s = [step_s * (1 + 0.001 * (index % 3)) for index in range(30)]
    times = VisitTimes(times_s=times_s, samples_per_step=32, loss=1.0, metrics=metrics)
    return [times] * num_ranks


def test_the_ratio_is_of_throughputs_and_says_who_is_faster() -> None:
    ours, theirs = compared(
        {
            "pipelined": [visit(0.1), visit(0.1002)],
            LOONGFORGE: [visit(0.2, wall_mismatch_frac=0.1), visit(0.2004)],
        },
        16,
        "bf16",
    )
    assert ours["ratio"]["value"] == pytest.approx(2.0, rel=0.01)
    assert ours["ratio"]["lo"] < 2.0 < ours["ratio"]["hi"]
    assert ours["verdict"] == "faster"
    assert ours["ratio"]["num_visits"] == 2
    assert "ratio" not in theirs
    text = "\n".join(against_words([ours, theirs]))
    assert "x LoongForge (95 %:" in text
    assert "by the wall clock -10.0%" in text


@pytest.mark.parametrize(("step_s", "verdict"), [(0.2001, "undetermined"), (0.4, "slower")])
def test_no_difference_and_worse_are_results(step_s: float, verdict: str) -> None:
    ours, _ = compared({"graph": [visit(step_s)], LOONGFORGE: [visit(0.2)]}, 16, "fp32")
    assert ours["verdict"] == verdict


def test_the_slowest_rank_counts() -> None:
    (ours,) = compared({"graph": [[*visit(0.1, 1), *visit(0.3, 1)]]}, 16, "fp32")
    assert ours["step_s"]["value"] == pytest.approx(0.3, rel=0.01)
    assert ours["verdict"] == "undetermined"


def test_a_lost_visit_is_told_and_the_rest_counts() -> None:
    lost = [VisitTimes(times_s=[], error="TrainerError: no capture")]
    ours, theirs = compared({"graph": [visit(0.1)], LOONGFORGE: [lost, visit(0.2)]}, 16, "fp32")
    assert ours["verdict"] == "faster"
    assert theirs["lost_visits"] == ["TrainerError: no capture"]
    ours, theirs = compared({"graph": [visit(0.1)], LOONGFORGE: [lost]}, 16, "fp32")
    assert ours["verdict"] == "undetermined"
    assert theirs["error"] == "TrainerError: no capture"
    assert "no capture" in "\n".join(against_words([ours, theirs]))


def test_plain_ddp_is_no_side(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--against", "loongforge", "--modes", "ddp"]) == 2
    assert "got ddp" in capsys.readouterr().err
    assert main(["data.path=x"]) == 2
