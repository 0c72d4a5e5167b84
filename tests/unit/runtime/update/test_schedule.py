"""The learning-rate rule is applied to the global batch, once."""

import math

import pytest

from lf_ray.runtime.update.schedule import lr_schedule
from lf_ray.settings import LrRule, TrainSettings

ARTICLE = TrainSettings(lr=1e-4, warmup_ratio=0.05, max_steps=10_000)


def test_linear_rule_gives_the_articles_numbers() -> None:
    schedule = lr_schedule(ARTICLE, LrRule.linear, 96, 64)
    assert schedule.peak == pytest.approx(1.5e-4)
    assert schedule.warmup_steps == 750


@pytest.mark.parametrize(
    ("rule", "scale"), [(LrRule.linear, 2.0), (LrRule.sqrt, math.sqrt(2)), (LrRule.none, 1.0)]
)
def test_rules_scale_peak_and_warmup(rule: LrRule, scale: float) -> None:
    schedule = lr_schedule(ARTICLE, rule, 128, 64)
    assert schedule.peak == pytest.approx(1e-4 * scale)
    assert schedule.warmup_steps == round(500 * scale)


def test_base_batch_is_left_alone_by_every_rule() -> None:
    assert len({lr_schedule(ARTICLE, rule, 64, 64) for rule in LrRule}) == 1


def test_rises_then_falls_to_zero() -> None:
    schedule = lr_schedule(ARTICLE, LrRule.none, 64, 64)
    assert schedule.lr(0) == pytest.approx(1e-4 / 500)
    assert schedule.lr(499) == schedule.lr(500) == pytest.approx(1e-4)
    assert schedule.lr(5250) == pytest.approx(0.5e-4)
    assert schedule.lr(10_000) == pytest.approx(0.0)
    assert schedule.lr(20_000) == pytest.approx(0.0)


def test_length_in_samples_follows_the_batch() -> None:
    settings = TrainSettings(max_samples=6400)
    assert lr_schedule(settings, LrRule.none, 64, 64).num_steps == 100
    assert lr_schedule(settings, LrRule.none, 128, 64).num_steps == 50
