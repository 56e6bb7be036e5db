"""What happens in distributed training, shown on two or more processes.

    python -m clusterddp.submit jobs/explain.yaml --launcher pytorch
    torchrun --nproc-per-node 2 examples/explain.py

A loop of its own: named by `script:` in the job file, or run by torchrun. One table
answers one question; docs/how-it-works.md tells the same in prose.
"""

import os
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import clusterddp
from clusterddp.dist import World, gather_json, new_group, shutdown

_STARTED = time.monotonic()


def main() -> None:
    """Answer the questions, one after another; all ranks call everything."""
    world = clusterddp.init_dist()
    page = Page(world)
    if world.rank == 0:
        page.say(f"{world.world_size} processes run this script from top to bottom.")
    show_who_is_who(page, world)
    show_work(page, world)
    show_missing_peer(page, world)
    page.save()
    shutdown()


class Page:
    """Tables of what each rank has; rank 0 alone prints them, and saves them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._lines: list[str] = []

    def say(self, line: str) -> None:
        """Print a line."""
        self._lines.append(line)
        print(line, flush=True)  # noqa: T201

    def table(self, question: str, heads: Sequence[str], row: Sequence[object]) -> None:
        """Show one row of each rank; all ranks must call it."""
        rows = gather_json([str(self._world.rank), *map(str, row)])
        if rows is None:
            return
        cells = [["rank", *heads], *rows]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        self.say(f"\n{question}")
        for line in cells:
            pairs = zip(line, widths, strict=True)
            self.say("  ".join(cell.ljust(width) for cell, width in pairs).rstrip())

    def save(self) -> None:
        """Write the page on rank 0, where a run has one: into its directory."""
        if self._world.rank == 0 and (run := os.environ.get("CLUSTERDDP_RUN_DIR")):
            (Path(run) / "explained.txt").write_text("\n".join(self._lines) + "\n")


def show_who_is_who(page: Page, world: World) -> None:
    """Show the processes, and where each learned its place."""
    page.table(
        "Who is there? Each process is one rank, with one GPU or some CPU cores.",
        ("local rank", "host", "pid", "started here after"),
        (world.local_rank, socket.gethostname(), os.getpid(), _age()),
    )
    by_slurm = world.launcher == "slurm"
    names = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS") if by_slurm else _TORCHRUN
    page.table(
        "Where do rank and world size come from? The launcher sets variables.",
        (*names, "launcher"),
        (*(os.environ.get(name, "-") for name in names), world.launcher),
    )
    where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    page.table(
        "Where do they meet? At an address of rank 0, which the others were told.",
        ("address",),
        (where,),
    )


_TORCHRUN = ("RANK", "WORLD_SIZE")


def show_work(page: Page, world: World) -> None:
    """Show one training step: losses, gradients and weights of each rank."""
    torch.manual_seed(world.rank)  # unequal on purpose: DDP spreads rank 0's weights
    model = DistributedDataParallel(nn.Linear(1, 1, bias=False))
    weight = next(model.parameters())
    x, y = share_of_data(world)
    page.table(
        "Who has which data? Each rank its own share of one global batch.",
        ("samples", "x", "weight before"),
        (len(x), x.flatten().tolist(), f"{weight.item():.6f}"),
    )
    errors = (model(x) - y).square()
    page.table(
        "What is the loss? Each rank sees its own; the global one is the sum of all "
        "errors\nover the number of all samples, not the mean of the means.",
        ("sum of errors", "samples", "local mean", "global mean", "mean of means"),
        (*_losses(errors, world),),
    )
    weighted = errors.mean() * len(x) * world.world_size / total_of(len(x))
    own = torch.autograd.grad(weighted, weight, retain_graph=True)[0]
    weighted.backward()
    assert weight.grad is not None  # noqa: S101
    page.table(
        "What happens to gradients? backward() averages them over all ranks.",
        ("own gradient", "after the all-reduce"),
        (f"{own.item():.6f}", f"{weight.grad.item():.6f}"),
    )
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    page.table(
        "Why do the models stay equal? Equal weights, equal gradients, equal update.",
        ("weight after", "its bits"),
        (f"{weight.item():.6f}", f"{weight.detach().view(torch.int32).item():08x}"),
    )


def share_of_data(world: World) -> tuple[Tensor, Tensor]:
    """Give unequal shares: rank 0 has three samples, every other rank one."""
    first = 0 if world.rank == 0 else world.rank + 2
    x = torch.arange(first, first + (3 if world.rank == 0 else 1)) + 1.0
    return x[:, None], 2 * x[:, None]


def total_of(value: float) -> float:
    """Give the sum over all ranks; all must call it."""
    total = torch.tensor(float(value), dtype=torch.float64)
    dist.all_reduce(total)
    return total.item()


def _losses(errors: Tensor, world: World) -> list[str]:
    total, count = errors.sum().item(), len(errors)
    right = total_of(total) / total_of(count)
    wrong = total_of(total / count) / world.world_size
    figures = (total / count, right, wrong)
    return [f"{total:.4f}", str(count), *(f"{figure:.4f}" for figure in figures)]


def show_missing_peer(page: Page, world: World) -> None:
    """Show what a collective does when the last rank does not come."""
    group = new_group(timeout="2s")
    began = time.monotonic()
    said = "did not call all_reduce"
    if world.rank < world.world_size - 1:
        try:
            dist.all_reduce(torch.ones(1), group=group)
            said = "went through"
        except RuntimeError as error:
            said = f"{type(error).__name__}: {str(error).splitlines()[0][-70:]}"
    elif world.world_size > 1:
        time.sleep(3)
    page.table(
        "What if one rank does not come? The others wait, until the timeout.",
        ("after", "what happened"),
        (f"{time.monotonic() - began:.0f} s", said),
    )


def _age() -> str:
    return f"{time.monotonic() - _STARTED:.1f} s"


if __name__ == "__main__":
    main()
    sys.exit(0)
