"""The training as most write it by hand: DDP, a DataLoader, torch.save now and then.

Started by torchrun, or by submitit through `submitit_recipe`. Resumes from the last
whole file, at the batch where it was (most recipes go back to the epoch's begin).
"""

import argparse
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from benchmarks.peers import common


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("place", type=Path)
    parser.add_argument("--steps", type=int, default=10**6)
    parser.add_argument("--pause", type=float, default=0.1)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--timeout", type=float, default=20.0)
    given = parser.parse_args()
    train(given.place, given.steps, given.pause, given.every, given.timeout)


def train(
    place: Path, steps: int, pause_s: float, every: int, timeout_s: float = 20.0
) -> None:
    """Train from the last saved step to the end."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_s))
    rank, world = dist.get_rank(), dist.get_world_size()
    diary = common.Diary(place, rank)
    model = common.make_model()
    optimizer = common.make_optimizer(model)
    step = load(place / "last.pt", model, optimizer)
    ddp = DistributedDataParallel(model)
    data = common.make_data()
    sampler: DistributedSampler[Any] = DistributedSampler(data, world, rank)
    while step < steps:
        sampler.set_epoch(step // common.STEPS_AN_EPOCH)
        skip = step % common.STEPS_AN_EPOCH
        for index, batch in enumerate(
            DataLoader(data, common.BATCH // world, sampler=sampler)
        ):
            if index < skip or step >= steps:
                continue
            diary.meet_fault(step)
            loss = common.loss_of(ddp, batch, pause_s)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            step += 1
            diary.finished(step)
            if rank == 0 and step % every == 0:
                save(place / "last.pt", model, optimizer, step)
    dist.destroy_process_group()


def save(
    path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int
) -> None:
    """Write aside, then rename: the least that survives a kill."""
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "step": step,
    }
    aside = path.with_suffix(f".{os.getpid()}")
    torch.save(state, aside)
    aside.replace(path)


def load(path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Give the step to go on from; 0 without a file."""
    if not path.exists():
        return 0
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


if __name__ == "__main__":
    main()
