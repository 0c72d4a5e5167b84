"""Steady state, intervals and when to stop. numpy only."""

from lf_ray.measure.between import between_visits
from lf_ray.measure.drift import Drift, drift_of
from lf_ray.measure.interval import (
    ASSUMED_BETWEEN_FRAC,
    pooled,
    ratio,
    throughput,
    visit_interval,
)
from lf_ray.measure.reading import Reading, read_visit
from lf_ray.measure.steady import Steady, steady_state
from lf_ray.measure.stopping import Decision, decide, least_steps, tolerance

__all__ = [
    "ASSUMED_BETWEEN_FRAC",
    "Decision",
    "Drift",
    "Reading",
    "Steady",
    "between_visits",
    "decide",
    "drift_of",
    "least_steps",
    "pooled",
    "ratio",
    "read_visit",
    "steady_state",
    "throughput",
    "tolerance",
    "visit_interval",
]
