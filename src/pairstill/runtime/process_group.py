"""Several processes on one distillation, started by torchrun: each passes its share of every batch through the network.

All else (students, losses, updates) is the same small work in every process, from the same seed, so the processes stay
equal without exchanging anything but the network's outputs and the images' gradients. Process 0 writes; the others
work in a folder of their own that is thrown away.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Network = Callable[[Tensor], Tensor]


def world_size() -> int:
    """How many processes work together; 1 without torchrun."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Which of them this is."""
    return dist.get_rank() if world_size() > 1 else 0


@contextlib.contextmanager
def process_group(device: str) -> Iterator[None]:
    """Inside, the processes that torchrun started work together; without torchrun nothing happens."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or world_size() > 1:
        yield
        return
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


def data_parallel(network: Network, inputs: Tensor) -> Tensor:
    """`network(inputs)` [N, d] for inputs [N, ...] that every process has: each computes its rows, all have the result.

    The gradient of the inputs is whole in every process, if what is made of the result is the same in all of them.
    """
    if world_size() == 1 or len(inputs) < world_size():
        return network(inputs)
    mine = _MyRows.apply(inputs)  # type: ignore[no-untyped-call]
    return torch.as_tensor(_AllRows.apply(network(mine), len(inputs)))  # type: ignore[no-untyped-call]


def broadcast_from_first(compute: Callable[[], Any]) -> Any:
    """What process 0 computes, in all of them."""
    if world_size() == 1:
        return compute()
    found = [compute() if rank() == 0 else None]
    dist.broadcast_object_list(found)
    return found[0]


@contextlib.contextmanager
def rank_folder(out: Path) -> Iterator[Path]:
    """`out` itself in process 0; in the others a copy of what a run goes on from, for as long as the run takes."""
    if rank() == 0:
        barrier()
        yield out
        return
    with tempfile.TemporaryDirectory(prefix="pairstill-") as name:
        folder = Path(name)
        if (out / "run").exists():
            shutil.copytree(out / "run", folder / "run")
        barrier()  # nothing is written before all have read
        yield folder


def barrier() -> None:
    """Wait for the others."""
    if world_size() > 1:
        dist.barrier()


def _bounds(count: int) -> list[int]:
    """Where each process's rows begin, and where the last one's end."""
    return [count * number // world_size() for number in range(world_size() + 1)]


class _MyRows(torch.autograd.Function):
    """This process's rows; the gradients of all are gathered."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        ctx.count = len(inputs)
        begin, end = _bounds(len(inputs))[rank() :][:2]
        return inputs[begin:end].clone(memory_format=torch.preserve_format)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return _gather(grads[0], ctx.count)


class _AllRows(torch.autograd.Function):
    """The rows of all processes; each passes back the gradient of its own."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, count: int) -> Tensor:
        ctx.count = count
        return _gather(rows, count)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        begin, end = _bounds(ctx.count)[rank() :][:2]
        return grads[0][begin:end], None


def _gather(mine: Tensor, count: int) -> Tensor:
    """The rows of all processes in order; shares differ by one row at most, so all are sent with room for one more."""
    lengths = [end - begin for begin, end in itertools.pairwise(_bounds(count))]
    padded = mine.new_zeros((max(lengths), *mine.shape[1:]))
    padded[: len(mine)] = mine
    parts = [torch.empty_like(padded) for _ in range(world_size())]
    dist.all_gather(parts, padded)
    return torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])
