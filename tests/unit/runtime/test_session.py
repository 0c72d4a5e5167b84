"""A session on one rank: order of calls, effective values, errors that leave it usable."""

from typing import Any

import pytest
import torch
from torch import Tensor

from lf_ray.errors import CheckpointError, ConfigError, GroupError
from lf_ray.protocol import KnobValue
from lf_ray.runtime.draws import Draws
from lf_ray.runtime.readings.settings_in_force import settings_in_force
from lf_ray.runtime.session import Session
from lf_ray.settings import MemoryBackend, SweepConfig
from lf_ray.testing.toy import ToyModel, ToyParts, toy_config, toy_request

PIPELINED: dict[str, KnobValue] = {"pipeline.prefix": "on", "graph.scope": "step+optimizer"}


def _session(parts: ToyParts | None = None) -> Session:
    return Session(toy_config(1), 0, 1, "cpu", None, None, parts or ToyParts())


def _trial(session: Session, knobs: dict[str, KnobValue] | None = None) -> tuple[Any, ...]:
    effective = session.prepare(toy_request(toy_config(1), knobs))
    session.rehearse()
    samples = session.run(1)
    session.capture()
    samples += session.run(4)
    result = [s.loss for s in samples], [s.grad_norm for s in samples], session.weights_checksum()
    gate = session.gate()
    assert gate.passed, gate.reason
    session.reset()
    return (*result, effective)


def test_pipelined_order_gives_the_plain_orders_bits() -> None:
    session = _session()
    plain, pipelined = _trial(session), _trial(session, PIPELINED)
    assert plain[:3] == pipelined[:3]
    assert (plain[3]["prefix"], pipelined[3]["prefix"]) == ("plain", "pipelined")


def test_prefix_that_learns_is_not_pipelined() -> None:
    session = _session(ToyParts(frozen_prefix=False))
    _trial(session)
    with pytest.raises(ConfigError, match=r"model\.tune_visual"):
        session.prepare(toy_request(toy_config(1), PIPELINED))


def test_parameter_that_gets_no_gradient_is_neither_sent_nor_decayed() -> None:
    session = _session()
    _trial(session)
    assert "unused" not in {gradient.name for gradient in session.gradients}
    assert {gradient.layer for gradient in session.gradients} == {
        "out",
        *(f"blocks.{index}" for index in range(4)),
    }


def test_phases_cover_the_step() -> None:
    session = _session()
    session.prepare(toy_request(toy_config(1)))
    session.rehearse()
    samples = session.run(6)
    assert set(samples[-1].phases_s) == {
        "data_wait",
        "host_to_device",
        "prefix",
        "forward",
        "backward",
        "exposed_comm",
        "clip",
        "optimizer",
    }
    assert [sample.step for sample in samples] == list(range(6))
    covered = [sum(sample.phases_s.values()) / sample.wall_s for sample in samples]
    assert max(covered) <= 1.0
    assert sorted(covered)[3] >= 0.5  # a busy machine may stop between two phases
    assert len(session.lr) == 6
    assert session.samples_per_step == 4


class HungryModel(ToyModel):
    """Runs out of memory on batches above two samples."""

    def head_loss(self, features: Tensor, batch: dict[str, Tensor], draws: Draws) -> Tensor:
        loss = super().head_loss(features, batch, draws)
        if len(features) > 2:
            loss.register_hook(self._fail)  # type: ignore[no-untyped-call]
        return loss

    def _fail(self, gradient: Tensor) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


class HungryParts(ToyParts):
    """A model with little memory."""

    def model(self, config: SweepConfig, device: torch.device) -> Any:
        return HungryModel()


def test_out_of_memory_leaves_a_session_that_goes_on() -> None:
    small: dict[str, KnobValue] = {"batch.per_gpu": 2}
    session = _session(HungryParts())
    with pytest.raises(torch.OutOfMemoryError):
        session.prepare(toy_request(toy_config(1)))
    session.reset()
    first = _trial(session, small)
    session.prepare(toy_request(toy_config(1)))
    with pytest.raises(torch.OutOfMemoryError):
        session.rehearse()
    session.reset()
    assert _trial(session, small) == first


def test_tensor_that_outlives_a_trial_is_found() -> None:
    session = _session()
    _trial(session)
    session.prepare(toy_request(toy_config(1)))
    session.run(2)
    leak = torch.zeros(2**23)
    with pytest.raises(GroupError, match=r"32\.\d MiB more"):
        session.reset()
    del leak
    session.reset()


def test_close_is_safe_at_any_time_and_ends_the_loader() -> None:
    session = _session()
    session.close()
    session = _session()
    _trial(session)
    assert session._feed is not None
    loader = session._feed.loader
    session.close()
    session.close()
    assert getattr(loader, "is_closed", False)


def test_settings_that_did_not_reach_the_worker_are_named() -> None:
    config = SweepConfig()
    cuda = torch.device("cuda")
    assert settings_in_force(config, torch.device("cpu"))["settings_mismatch"] == ""
    config.memory.backend = MemoryBackend.expandable
    config.nccl.algo = "ring"
    asked = {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "NCCL_ALGO": "Ring"}
    assert settings_in_force(config, cuda, None, asked)["settings_mismatch"] == ""
    found = settings_in_force(config, cuda, None, {})["settings_mismatch"]
    assert "allocator is caching, asked expandable" in str(found)
    assert "nccl_algo is default, asked ring" in str(found)


@pytest.mark.parametrize(
    "knobs", [{}, {"batch.accumulation": 2}, PIPELINED, {"graph.scope": "step"}]
)
def test_resume_goes_on_as_if_it_had_not_stopped(knobs: dict[str, KnobValue]) -> None:
    request = toy_request(toy_config(1), knobs)
    straight = _session()
    straight.prepare(request)
    straight.capture()
    straight.run(4)
    state = straight.state()
    expected = [(sample.step, sample.loss) for sample in straight.run(4)]
    resumed = _session()
    resumed.prepare(request)
    resumed.capture()
    resumed.resume(state)
    assert [(sample.step, sample.loss) for sample in resumed.run(4)] == expected
    assert resumed.weights_checksum() == straight.weights_checksum()


def test_state_of_another_model_is_refused() -> None:
    session = _session()
    session.prepare(toy_request(toy_config(1)))
    wide = _session(ToyParts(width=32))
    wide.prepare(toy_request(toy_config(1)))
    with pytest.raises(CheckpointError, match=r"master\.out\.bias has shape \[24\]"):
        session.resume(wide.state())
