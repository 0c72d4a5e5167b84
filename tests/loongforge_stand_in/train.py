"""Stands in for LoongForge's trainer: the same flags, environment and metrics.jsonl, no model.

Written for this project from the trainer's documented behaviour. Ranks meet once a step over
MASTER_ADDR:MASTER_PORT. STAND_IN_FAULT="kind@step:rank" fails on demand: oom, exception, hang,
skip (an iteration thrown away), slow (time that step_time does not tell of, from that step on).
STAND_IN_FAULT_BATCH limits it to one per-device batch size. An all-reduce inside the graph can't be
captured where STAND_IN_NO_CAPTURE is set.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

_WORDS = [
    "model-name",
    "trainer-type",
    "distributed-strategy",
    "dtype",
    "optimizer",
    "lr-decay-style",
    "dataset-format",
    "dataloader-multiprocessing-context",
    "dataset-path",
    "lerobotdataset-version",
    "pretrained-checkpoint",
    "output-dir",
    "cuda-graph-impl",
    "cuda-graph-scope",
    "cuda-graph-grad-sync-impl",
    "cuda-graph-grad-sync-dtype",
    "ddp-comm-hook",
]
_NUMBERS = [
    "per-device-batch-size",
    "gradient-accumulation-steps",
    "train-iters",
    "num-workers",
    "seed",
    "lr-base",
    "lr-warmup-iters",
    "min-lr",
    "weight-decay",
    "clip-grad",
    "log-interval",
    "detail-log-interval",
    "save-interval",
    "cuda-graph-pad-length",
    "cuda-graph-warmup-steps",
    "cuda-graph-grad-sync-bucket-mb",
    "ddp-bucket-cap-mb",
]
_SWITCHES = (
    "ddp-find-unused-parameters",
    "check-for-nan-in-loss-and-grad",
    "cuda-graph-ddp-sync-in-graph",
)


_CAN_NOT_CAPTURE = "STAND_IN_NO_CAPTURE" in os.environ


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in _WORDS:
        parser.add_argument(f"--{name}")
    for name in _NUMBERS:
        parser.add_argument(f"--{name}", type=float)
    for name in _SWITCHES:
        parser.add_argument(f"--{name}", action=argparse.BooleanOptionalAction)
    parser.add_argument("dotlist", nargs="*")
    return parser.parse_args()


class Ranks:
    """All ranks of the run, which wait for each other once a step."""

    def __init__(self) -> None:
        self.rank = int(os.environ["RANK"])
        self.size = int(os.environ["WORLD_SIZE"])
        place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        if self.rank == 0:
            with socket.create_server(place) as server:
                self.lines = [server.accept()[0] for _ in range(self.size - 1)]
        else:
            self.lines = [_joined(place)]

    def meet(self) -> None:
        """Returns when every rank has come here."""
        if self.rank:
            self.lines[0].sendall(b".")
        for line in self.lines:
            if not line.recv(1):
                raise ConnectionError("Connection closed by peer")
        if self.rank == 0:
            for line in self.lines:
                line.sendall(b".")


def _joined(place: tuple[str, int]) -> socket.socket:
    for _ in range(500):
        try:
            return socket.create_connection(place)
        except OSError:
            time.sleep(0.02)
    raise ConnectionError(f"nobody at {place}")


def _fault(arguments: argparse.Namespace, rank: int, step: int) -> str:
    kind, _, place = os.environ.get("STAND_IN_FAULT", "").partition("@")
    if not kind:
        return ""
    at, where = (int(part) for part in place.split(":"))
    batch = os.environ.get("STAND_IN_FAULT_BATCH")
    if batch and int(batch) != arguments.per_device_batch_size:
        return ""
    here = rank == where and (step >= at if kind in ("slow", "skip") else step == at)
    if not here:
        return ""
    if kind == "oom":
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
    if kind == "exception":
        raise ValueError("the planned end of this run")
    if kind == "hang":
        time.sleep(3600)
    return kind


def _step_s(arguments: argparse.Namespace, step: int) -> float:
    bucket_mb = arguments.cuda_graph_grad_sync_bucket_mb or arguments.ddp_bucket_cap_mb
    base_s = 0.012 if 64 <= bucket_mb <= 256 else 0.016
    graphed = arguments.cuda_graph_impl == "local"
    slow = step <= (arguments.cuda_graph_warmup_steps if graphed else 0)
    return base_s + (0.05 if slow else 0.0)


def main() -> None:
    """Trains nothing, at the speed that the flags deserve."""
    arguments = _arguments()
    if arguments.dataloader_multiprocessing_context and not arguments.num_workers:
        raise ValueError("multiprocessing_context needs num_workers > 0")
    ranks = Ranks()
    sys.stdout.write(f"sees {os.environ.get('CUDA_VISIBLE_DEVICES', 'no list')}\n")
    sys.stdout.flush()
    folder = Path(arguments.output_dir)
    if arguments.num_workers:
        worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        (folder / f"worker.rank{ranks.rank}").write_text(str(worker.pid))
    local = arguments.per_device_batch_size * arguments.gradient_accumulation_steps
    skipped = 0
    for step in range(int(arguments.train_iters)):
        began_s = time.perf_counter()
        in_graph = arguments.cuda_graph_impl == "local" and arguments.cuda_graph_ddp_sync_in_graph
        if in_graph and step == arguments.cuda_graph_warmup_steps and _CAN_NOT_CAPTURE:
            raise RuntimeError("CUDA error: operation would make the legacy stream depend on it")
        kind = _fault(arguments, ranks.rank, step)
        skipped += kind == "skip"
        time.sleep(_step_s(arguments, step))
        ranks.meet()
        step_s = time.perf_counter() - began_s
        line = {
            "step_time": step_s,
            "step": step + 1,
            "action_loss": 1.0 / (step + 1),
            "lr": arguments.lr_base,
            "consumed_samples": int((step + 1) * local * ranks.size),
            "samples_per_sec": local / step_s,
            "grad_norm": 1.0,
            "nan_iterations": 0,
            "skipped_iterations": skipped,
        }
        if kind == "slow":
            time.sleep(step_s / 2)
        if ranks.rank == 0:
            with (folder / "metrics.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
