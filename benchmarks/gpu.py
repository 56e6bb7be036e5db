"""`python -m benchmarks.gpu`: what only a machine with GPUs can tell.

The stall of a save from the device into pinned memory beside the bare copy; the
pace of a step in fp32 and bf16; and, with two GPUs or more, the step of DDP on NCCL by
hand and ours, by way of `benchmarks.overhead`'s loops. Says so where there is no GPU.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from benchmarks.harness import arguments, measure, record
from benchmarks.result import Result, Target
from benchmarks.states import clock
from clusterddp.training.host_copy import HostCopy, count_bytes

ASKED = "What do saves and precision cost on a GPU?"
MIB = 1 << 20


def main() -> int:
    """Measure, print and record; 0 without a GPU, too."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    given = arguments(parser)
    if not torch.cuda.is_available():
        print("not measured: torch finds no GPU on this machine")
        return 0
    sizes = [96] if given.quick else [96, 384, 1536]
    blocks = 3 if given.quick else 15
    with record("gpu", ASKED, given.results) as results:
        for size in sizes:
            results.append(snapshots(size, blocks))
        results.append(precision(blocks))
        if torch.cuda.device_count() > 1:
            results.append(averaging(blocks))
        else:
            print("NCCL between GPUs: not measured: there is one GPU")
    return 0


def snapshots(size: int, blocks: int) -> Result:
    """Ask how long the host, and how long the device, is busy with a snapshot."""
    model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(max(1, size // 4))])
    state = {"model": model.cuda().state_dict()}
    host, floats = HostCopy(), count_bytes(state) // 4
    host.take(state)
    source = torch.ones(floats, device="cuda")
    pinned = torch.zeros(floats, pin_memory=True)
    pageable = torch.zeros(floats)

    def whole(copy: Callable[[], object]) -> Callable[[], float]:
        def ask() -> float:
            torch.cuda.synchronize()

            def through() -> None:
                copy()
                torch.cuda.synchronize()

            return clock(through)

        return ask

    def returned() -> float:
        torch.cuda.synchronize()
        return clock(lambda: host.take(state))

    bare = "one copy of the bytes into pinned memory"
    return measure(
        f"A snapshot of {size} MiB from the GPU",
        {
            bare: whole(lambda: pinned.copy_(source, non_blocking=True)),
            "one copy into pageable memory": whole(lambda: pageable.copy_(source)),
            "ours, until the device is through": whole(lambda: host.take(state)),
            "ours, until the host goes on": returned,
        },
        unit="ms",
        blocks=blocks,
        baseline=bare,
        targets=[Target("ours, until the device is through", ratio=1.3)],
    )


def precision(blocks: int) -> Result:
    """Ask for the pace of a step with and without autocast."""
    model = nn.Sequential(*[nn.Linear(4096, 4096) for _ in range(8)]).cuda()
    batch = torch.randn(4096, 4096, device="cuda")

    def step(dtype: torch.dtype | None) -> float:
        def work() -> None:
            with torch.autocast("cuda", dtype, enabled=dtype is not None):
                loss = model(batch).square().mean()
            loss.backward()
            model.zero_grad(set_to_none=True)
            torch.cuda.synchronize()

        return clock(work)

    return measure(
        "Forward and backward, 8 layers of 4096 x 4096, batch 4096",
        {"fp32": lambda: step(None), "bf16": lambda: step(torch.bfloat16)},
        unit="ms",
        blocks=blocks,
        baseline="fp32",
    )


def averaging(blocks: int) -> Result:
    """Ask for an all-reduce of 100 MiB between all GPUs."""
    import torch.multiprocessing as mp

    world = torch.cuda.device_count()
    with tempfile.TemporaryDirectory() as place:
        spawn = mp.get_context("spawn")
        ranks = [
            spawn.Process(target=_rank, args=(rank, world, place, blocks))
            for rank in range(world)
        ]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(300)
        text = Path(place, "ms").read_text()
    times = [float(word) for word in text.split()]
    turns = iter(times)
    return measure(
        f"NCCL all-reduce of 100 MiB between {world} GPUs",
        {"all_reduce": lambda: next(turns)},
        unit="ms",
        blocks=blocks,
        warm_up=0,
    )


def _rank(rank: int, world: int, place: str, blocks: int) -> None:
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl", init_method=f"file://{place}/meet", rank=rank, world_size=world
    )
    data = torch.ones(100 * MIB // 4, device="cuda")

    def reduce() -> None:
        dist.all_reduce(data)
        torch.cuda.synchronize()

    times = [clock(reduce) for _ in range(blocks + 3)][3:]
    if rank == 0:
        Path(place, "ms").write_text(" ".join(map(str, times)))
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
