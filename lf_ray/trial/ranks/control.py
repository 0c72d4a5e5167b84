"""The ranks' control line over gloo: small JSON values, one collective each in the usual case.

Its timeout is the last resort: deadlines by phase are the owner's, who can say which rank is late.
"""

import json
import socket
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

_INLINE_BYTES = 4096
_HEADER_BYTES = 8
_LOOPBACK = "127.0.0.1"


class GlooControl:
    """Gathers and broadcasts JSON values over a gloo group of all ranks."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self._rank = dist.get_rank(group)
        self._size = dist.get_world_size(group)

    @property
    def rank(self) -> int:
        """Returns this rank."""
        return self._rank

    @property
    def size(self) -> int:
        """Returns the number of ranks."""
        return self._size

    def gather(self, value: Any) -> list[Any]:
        """Returns every rank's value, in rank order, on every rank."""
        data = json.dumps(value).encode()
        rows = self._gather_rows(_framed(data, _INLINE_BYTES))
        longest = max(_length(row) for row in rows)
        if longest > _INLINE_BYTES:
            rows = self._gather_rows(_framed(data, longest))
        return [json.loads(_payload(row)) for row in rows]

    def broadcast(self, value: Any) -> Any:
        """Returns rank 0's value on every rank."""
        data = json.dumps(value).encode() if self._rank == 0 else b""
        row = _framed(data, _INLINE_BYTES)
        dist.broadcast(row, group_src=0, group=self.group)
        if _length(row) > _INLINE_BYTES:
            row = _framed(data, _length(row))
            dist.broadcast(row, group_src=0, group=self.group)
        return json.loads(_payload(row))

    def _gather_rows(self, row: torch.Tensor) -> list[torch.Tensor]:
        rows = [torch.empty_like(row) for _ in range(self._size)]
        dist.all_gather(rows, row, group=self.group)
        return rows


def open_store(timeout_s: float) -> tuple[Store, int]:
    """Returns the store by which the ranks of one node find each other, and its port.

    On the loopback address: left to itself torch would listen to the outside.
    """
    with socket.socket() as listener:
        listener.bind((_LOOPBACK, 0))
        listener.listen()
        port = listener.getsockname()[1]
        store = dist.TCPStore(  # type: ignore[attr-defined]
            _LOOPBACK,
            port,
            is_master=True,
            timeout=timedelta(seconds=timeout_s),
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
    return store, port


def join_store(port: int, timeout_s: float) -> Store:
    """Returns another rank's end of the store at a port."""
    timeout = timedelta(seconds=timeout_s)
    return dist.TCPStore(_LOOPBACK, port, timeout=timeout)  # type: ignore[attr-defined]


def work_group(
    backend: str, store: Store, rank: int, world_size: int, timeout_s: float
) -> dist.ProcessGroup:
    """Returns the group of all ranks that carries gradients: torch's default one.

    `backend` is "nccl" or "gloo".
    """
    dist.init_process_group(
        backend,
        store=store,
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=timeout_s),
    )
    assert dist.group.WORLD is not None
    return dist.group.WORLD


def control_group(timeout_s: float) -> dist.ProcessGroup:
    """Returns a new gloo group of all ranks, apart from the one that carries gradients."""
    group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
    assert isinstance(group, dist.ProcessGroup)
    return group


def _framed(data: bytes, num_bytes: int) -> torch.Tensor:
    """Returns length and data as one row; data that does not fit is left out, its length is not."""
    row = torch.zeros(_HEADER_BYTES + num_bytes, dtype=torch.uint8)
    header = bytearray(len(data).to_bytes(_HEADER_BYTES, "little"))
    row[:_HEADER_BYTES] = torch.frombuffer(header, dtype=torch.uint8)
    if 0 < len(data) <= num_bytes:
        body = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        row[_HEADER_BYTES : _HEADER_BYTES + len(data)] = body
    return row


def _length(row: torch.Tensor) -> int:
    return int.from_bytes(bytes(row[:_HEADER_BYTES].tolist()), "little")


def _payload(row: torch.Tensor) -> bytes:
    return row[_HEADER_BYTES : _HEADER_BYTES + _length(row)].numpy().tobytes()
