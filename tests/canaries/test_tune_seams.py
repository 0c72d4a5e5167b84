"""What we lean on in Ray Tune. Re-audit lf_ray/search/sweep.py and searcher.py before changing."""

import inspect
import os
import signal
from collections.abc import Iterator

import pytest
from ray import tune
from ray.tune import tune as tune_module
from ray.tune.execution import tune_controller
from ray.tune.search import Searcher, SearchGenerator
from ray.tune.utils.object_cache import _ObjectCache


@pytest.fixture
def handlers() -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_sigusr1_ends_tunes_loop_in_order(handlers: None) -> None:
    event = tune_module._setup_signal_catching()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert event.is_set()


def test_tune_takes_sigint_for_itself_when_it_starts(handlers: None) -> None:
    """Why the searcher takes it back when it is first asked."""
    before = signal.getsignal(signal.SIGINT)
    tune_module._setup_signal_catching()
    assert signal.getsignal(signal.SIGINT) != before


def test_the_searchers_answers_mean_what_we_think() -> None:
    class Answers(Searcher):  # type: ignore[misc]
        answers = iter([None, Searcher.FINISHED])

        def suggest(self, trial_id: str) -> object:
            return next(self.answers)

        def on_trial_complete(self, trial_id: str, **_: object) -> None: ...

    generator = SearchGenerator(Answers())
    spec = {"run": "DURABLE", "config": {}}
    assert generator.create_trial_if_possible(spec) is None
    assert not generator._finished
    assert generator.create_trial_if_possible(spec) is None
    assert generator._finished


def test_an_idle_actor_is_kept_for_the_next_trial() -> None:
    """Why trials follow each other without an actor start, although none is pending."""
    cache = _ObjectCache(may_keep_one=True)
    assert cache.cache_object("resources", "actor")
    assert "_ObjectCache(may_keep_one=True)" in inspect.getsource(tune_controller)


def test_a_completed_trial_is_told_before_the_next_is_asked_for() -> None:
    source = inspect.getsource(tune_controller.TuneController.step)
    assert source.index("_maybe_update_trial_queue") < source.index("_actor_manager.next")


def test_checkpoints_at_the_end_can_be_left_out() -> None:
    assert tune.CheckpointConfig(checkpoint_at_end=False).checkpoint_at_end is False
