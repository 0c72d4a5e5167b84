"""The article's GraphCapture: forward and backward of any module as one graph.

On a GPU a CUDA graph; elsewhere the same checks, the same static inputs and the same meaning, with
every replay run eagerly (`emulated`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lf_ray.errors import CaptureError, four_parts
from lf_ray.runtime.article.replayed_loss import replayed_loss
from lf_ray.runtime.memory.pool import capture_room
from lf_ray.runtime.steps.diagnosis import HostWaits, diagnose
from lf_ray.runtime.steps.static_inputs import StaticInputs, named_tensors, shapes_of

DEFAULT_WARMUP_STEPS = 3


class CapturedGraph:
    """One captured shape. Its loss and gradients live at fixed addresses.

    Args:
        capture: whose model it is of.
        inputs: at fixed addresses.
    """

    def __init__(self, capture: "GraphCapture", inputs: StaticInputs) -> None:
        self._capture: GraphCapture | None = capture
        self.inputs = inputs
        self.graph: Any = None
        self.loss: Tensor | None = None
        self._gradients: dict[nn.Parameter, Tensor] = {}

    @property
    def emulated(self) -> bool:
        """Returns whether replays run eagerly."""
        return self.graph is None

    def replay(self, batch: Any) -> Tensor:
        """Runs forward and backward on a batch of the captured shape and returns its loss.

        Gradients are there when it returns; `loss.backward()` on what it returns does nothing.
        The loss is a copy: it stays when the next replay overwrites the graph's own.

        Raises:
            CaptureError: the batch differs from the captured input, or the graph was released.
        """
        capture = self._capture
        if capture is None:
            raise CaptureError(
                four_parts(
                    "replaying a captured step",
                    "its GraphCapture holds it until release()",
                    "a released graph",
                    "Capture again.",
                )
            )
        self.inputs.copy_from(batch)
        if self.graph is None:
            self.loss = capture.forward_backward(self.inputs.value)
            self.hold_gradients(capture.model)
        else:
            self.graph.replay()
            self.attach_gradients()
        assert self.loss is not None
        return replayed_loss(self.loss, self.attach_gradients)

    def attach_gradients(self) -> None:
        """Puts the gradients back on the parameters, from which zero_grad() has taken them."""
        for parameter, gradient in self._gradients.items():
            parameter.grad = gradient

    def hold_gradients(self, model: nn.Module) -> None:
        """Keeps the gradients that the graph writes to."""
        self._gradients = {
            parameter: parameter.grad
            for parameter in model.parameters()
            if parameter.grad is not None
        }

    def release(self) -> None:
        """Frees the graph; must happen before the process group goes."""
        if self.graph is not None:
            self.graph.reset()
        self.graph = self.loss = self._capture = None
        self._gradients = {}


class GraphCapture:
    """Captures forward and backward of a module that returns a loss.

    Args:
        model: called with the input; a mapping is passed as one argument.
        optimizer: its state is made before capture, so that no address dies after it.
        preallocate_optimizer_state: see optimizer; off shows the article's second error.
        max_graphs: shapes that may be captured before a further one is refused.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        preallocate_optimizer_state: bool = True,
        max_graphs: int = 8,
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self.max_graphs = max_graphs
        self._device = next(model.parameters()).device
        self._graphs: dict[Any, CapturedGraph] = {}
        self._is_warm = False
        self._is_poisoned = False
        self._stream: Any = None
        self._pool: Any = None
        if self._device.type == "cuda":
            # One stream for warm-up and capture: autograd nodes remember the stream that they
            # were made on, and a capture must not depend on another one.
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        if preallocate_optimizer_state:
            preallocate(optimizer)

    @property
    def emulated(self) -> bool:
        """Returns whether replays run eagerly because there is no GPU."""
        return self._stream is None

    def warmup(self, dummy_input: Any, steps: int = DEFAULT_WARMUP_STEPS) -> None:
        """Runs steps so that allocations settle, and undoes what they changed."""
        if steps < 1:
            raise CaptureError(
                four_parts(
                    "warming up for a capture", "steps is at least 1", f"{steps}", "Use 3 to 5."
                )
            )
        with self._undone(), self._on_stream():
            for _ in range(steps):
                self._drop_gradients()
                self.forward_backward(dummy_input)
            self._drop_gradients()
        self._is_warm = True

    def capture(self, dummy_input: Any) -> CapturedGraph:
        """Captures the shape of the input and returns its graph; an equal shape is not taken again.

        Raises:
            CaptureError: one of the four diagnoses. On a GPU the process is then no longer fit to
                capture anything.
        """
        self._refuse_poisoned()
        key = shapes_of(named_tensors(dummy_input))
        if key in self._graphs:
            return self._graphs[key]
        if len(self._graphs) >= self.max_graphs:
            raise CaptureError(
                four_parts(
                    "capturing a further shape",
                    f"at most {self.max_graphs} shapes are captured (max_graphs)",
                    ", ".join(f"{name} {list(shape)}" for name, shape, _ in key),
                    "Pad variable lengths to few sizes.",
                )
            )
        if not self._is_warm:
            self.warmup(dummy_input)
        graph = CapturedGraph(self, StaticInputs(dummy_input))
        with self._undone():
            try:
                self._record(graph)
            except CaptureError:
                raise
            except Exception as error:
                self._is_poisoned = not self.emulated
                raise diagnose(error) from error
        self._graphs[key] = graph
        return graph

    def replay(self, batch: Any) -> Tensor:
        """Replays the graph of the batch's shape; with one graph, that one checks the batch."""
        key = shapes_of(named_tensors(batch))
        graphs = list(self._graphs.values())
        if not graphs:
            raise CaptureError(
                four_parts("replaying", "capture comes first", "no graph", "Call capture(dummy).")
            )
        return self._graphs.get(key, graphs[-1]).replay(batch)

    def release(self) -> None:
        """Frees all graphs; must happen before the process group goes."""
        for graph in self._graphs.values():
            graph.release()
        self._graphs.clear()
        # Graphs that live together share a pool; what comes after them must not name it again.
        self._pool = None

    def forward_backward(self, value: Any) -> Tensor:
        """Runs the module and its backward; gradients replace the last ones."""
        self._drop_gradients()
        loss = self.model(value)
        loss.backward()
        detached: Tensor = loss.detach()
        return detached

    def _record(self, graph: CapturedGraph) -> None:
        self._drop_gradients()
        if self._stream is None:
            with HostWaits():  # type: ignore[no-untyped-call]
                self.forward_backward(graph.inputs.value)
            self._drop_gradients()
            return
        cuda_graph = torch.cuda.CUDAGraph()
        with capture_room(self._device) as room:
            pool: Any = room or self._shared_pool()
            with torch.cuda.graph(
                cuda_graph, pool=pool, stream=self._stream, capture_error_mode="thread_local"
            ):
                graph.loss = self.forward_backward(graph.inputs.value)
        graph.graph = cuda_graph
        graph.hold_gradients(self.model)

    def _shared_pool(self) -> Any:
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        return self._pool

    def _drop_gradients(self) -> None:
        for parameter in self.model.parameters():
            parameter.grad = None

    def _refuse_poisoned(self) -> None:
        if self._is_poisoned:
            raise CaptureError(
                four_parts(
                    "capturing after a failed capture",
                    "a failed capture leaves allocator and stream of its process unusable",
                    "a second try",
                    "Start a new process.",
                )
            )

    @contextmanager
    def _on_stream(self) -> Iterator[None]:
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            yield
        torch.cuda.current_stream(self._device).wait_stream(self._stream)

    @contextmanager
    def _undone(self) -> Iterator[None]:
        """Restores buffers and random state after what runs inside."""
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        devices = [self._device] if self._device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            try:
                yield
            finally:
                if not self._is_poisoned:
                    for name, buffer in self.model.named_buffers():
                        buffer.copy_(buffers[name])


@torch.no_grad()
def preallocate(optimizer: torch.optim.Optimizer) -> None:
    """Makes the optimizer's state as if no step had been taken, without moving a parameter."""
    parameters = [item for group in optimizer.param_groups for item in group["params"]]
    if any(optimizer.state.get(item) for item in parameters):
        return
    kept = [(item, item.detach().clone(), item.grad) for item in parameters]
    for item in parameters:
        item.grad = torch.zeros_like(item)
    optimizer.step()
    for item, value, gradient in kept:
        item.copy_(value)
        item.grad = gradient
        for state in optimizer.state[item].values():
            if isinstance(state, Tensor):
                state.zero_()
