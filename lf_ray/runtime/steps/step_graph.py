"""A whole step over static inputs, played eagerly or captured as one CUDA graph.

The body is the same code either way. Pipelined, it starts from features that the last one left,
and runs the prefix of the next batch beside reduce, clip and update.
"""

import time
from typing import Any

import torch
from torch import Tensor

from lf_ray.errors import CaptureError
from lf_ray.runtime.draws import Draws
from lf_ray.runtime.memory.pool import capture_room
from lf_ray.runtime.parts import Batch, Features
from lf_ray.runtime.steps.diagnosis import HostWaits, diagnose
from lf_ray.runtime.steps.graph_nodes import num_nodes
from lf_ray.runtime.steps.laps import DeviceLaps, Laps, NoLaps, Reading
from lf_ray.runtime.steps.static_inputs import StaticInputs
from lf_ray.runtime.steps.train_step import Probe, StepInputs, TrainStep


class StepGraph:
    """One step's work at fixed addresses.

    Args:
        train_step: its pieces.
        example: inputs of a step; shapes and dtypes are what later ones are held to.
        with_update: clip and update are part of it.
        pipelined: the prefix works on the next batch; needs `with_update`.
    """

    def __init__(
        self,
        train_step: TrainStep,
        example: StepInputs,
        *,
        with_update: bool,
        pipelined: bool,
    ) -> None:
        assert with_update or not pipelined
        self._step = train_step
        self.with_update, self.pipelined = with_update, pipelined
        model = train_step.model
        self._prefix_fields, self._head_fields = model.prefix_fields, model.head_fields
        self._prefix_inputs = StaticInputs(self.prefix_part(example.batches))
        self._head_inputs = StaticInputs(self.head_part(example.batches, example.draws))
        self._features: list[Features] = []
        self._graph: Any = None
        self._reading: Reading | None = None
        device = train_step.loss.device
        self._device = device
        self._side: Any = None
        if device.type == "cuda":
            self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        if pipelined:
            self._hold_features()

    @property
    def emulated(self) -> bool:
        """Returns whether it is played eagerly."""
        return self._graph is None

    def prefix_part(self, batches: list[Batch]) -> list[Batch]:
        """Returns the fields that the prefix reads."""
        return [{name: batch[name] for name in self._prefix_fields} for batch in batches]

    def head_part(self, batches: list[Batch], draws: list[Draws]) -> list[Any]:
        """Returns the fields that the head reads, and the draws."""
        return [
            [{name: batch[name] for name in self._head_fields}, micro_draws]
            for batch, micro_draws in zip(batches, draws)
        ]

    def set_head(self, batches: list[Batch], draws: list[Draws]) -> None:
        """Copies in what the head reads.

        Raises:
            CaptureError: a shape or dtype is not the captured one.
        """
        self._head_inputs.copy_from(self.head_part(batches, draws))

    def set_prefix(self, batches: list[Batch]) -> None:
        """Copies in what the prefix reads: of this batch, or of the next one if pipelined."""
        self._prefix_inputs.copy_from(self.prefix_part(batches))

    def leave_features(self, batches: list[Batch]) -> None:
        """Runs the prefix of a batch, for a pipelined step that has none before it."""
        self.set_prefix(batches)
        self._run_prefix(NoLaps())

    def play(self, laps: Laps, probe: Probe | None) -> None:
        """Runs the step on the inputs that were copied in; a replay can't be probed inside."""
        if self._graph is None:
            self._body(laps, probe)
            return
        self._graph.replay()
        laps.skip()

    def phases_s(self) -> dict[str, float]:
        """Returns the phases inside the graph at its last replay; waits for it."""
        return self._reading.read()[1] if self._reading is not None else {}

    def capture(self, dropout: torch.Generator, num_warmup: int) -> dict[str, float]:
        """Warms up and captures; what the steps have changed is the caller's to restore.

        Raises:
            CaptureError: one of the article's four diagnoses, or another.
        """
        began_s = time.perf_counter()
        try:
            if self._device.type != "cuda":
                with HostWaits():  # type: ignore[no-untyped-call]
                    self._body(NoLaps())
                return {"capture_s": time.perf_counter() - began_s}
            for _ in range(num_warmup):
                self._body(NoLaps())
            captured = self._record(dropout)
        except CaptureError:
            raise
        except torch.OutOfMemoryError as error:
            raise torch.OutOfMemoryError(str(diagnose(error))) from None
        except Exception as error:
            raise diagnose(error) from error
        return {"capture_s": time.perf_counter() - began_s, **captured}

    def release(self) -> None:
        """Frees the graph; must happen before the process group goes."""
        if self._graph is not None:
            self._graph.reset()
        self._graph = self._reading = None
        self._features = []

    def _record(self, dropout: torch.Generator) -> dict[str, float]:
        before_bytes = torch.cuda.memory_reserved(self._device)
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        graph.register_generator_state(dropout)
        laps = DeviceLaps(in_graph=True)
        with (
            capture_room(self._device) as room,
            torch.cuda.graph(
                graph,
                # Its own, or the memory pool's in force. A handle of a released graph can't be
                # used again: its pool may outlive it (expandable segments), and torch then aborts.
                pool=room,
                stream=torch.cuda.current_stream(self._device),
                capture_error_mode="thread_local",
            ),
        ):
            laps.start()
            self._body(laps)
            self._reading = laps.stop()
        graph.instantiate()
        self._graph = graph
        return {
            "graph_pool_bytes": float(torch.cuda.memory_reserved(self._device) - before_bytes),
            "graph_nodes": float(num_nodes(graph)),
        }

    def _body(self, laps: Laps, probe: Probe | None = None) -> None:
        inputs = self._inputs()
        if not self.pipelined:
            features = self._step.prefix(inputs.batches, laps)
            self._step.forward_backward(features, inputs, laps)
            self._step.reduce(laps)
            if self.with_update:
                self._step.update(inputs.num_micro_batches, laps, probe)
            return
        self._step.forward_backward(self._features, inputs, laps)
        if self._side is None:
            self._reduce_and_update(inputs, laps, probe)
            self._run_prefix(laps)
            return
        main = torch.cuda.current_stream(self._device)
        self._side.wait_stream(main)
        with torch.cuda.stream(self._side):
            self._reduce_and_update(inputs, NoLaps(), probe)
        self._run_prefix(laps)
        main.wait_stream(self._side)
        # What is left of the update when the prefix is done.
        laps.lap("optimizer")

    def _reduce_and_update(self, inputs: StepInputs, laps: Laps, probe: Probe | None) -> None:
        self._step.reduce(laps)
        self._step.update(inputs.num_micro_batches, laps, probe)

    def _inputs(self) -> StepInputs:
        prefix, head = self._prefix_inputs.value, self._head_inputs.value
        batches = [{**prefix[index], **head[index][0]} for index in range(len(head))]
        return StepInputs(batches, [item[1] for item in head])

    @torch.no_grad()
    def _run_prefix(self, laps: Laps) -> None:
        fresh = self._step.prefix(self._prefix_inputs.value, laps)
        for kept, new in zip(_tensors(self._features), _tensors(fresh)):
            kept.copy_(new)

    @torch.no_grad()
    def _hold_features(self) -> None:
        fresh = self._step.prefix(self._prefix_inputs.value, NoLaps())
        self._features = [
            {name: item.clone() for name, item in features.items()}
            if isinstance(features, dict)
            else features.clone()
            for features in fresh
        ]


def _tensors(features: list[Features]) -> list[Tensor]:
    return [
        tensor
        for item in features
        for tensor in (item.values() if isinstance(item, dict) else [item])
    ]
