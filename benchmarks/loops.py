"""The same training by several loops, in ranks that stay up; started by overhead.py.

    torchrun --nproc-per-node 2 -m benchmarks.loops MODEL BLOCKS SECONDS PLACE all|ours

Every loop is written as its own documentation shows it, and gets the same batches
from the same DataLoader. `tensors` is the leanest loop that we could write by hand:
it picks its batches from the tensors. Only clusterddp and the last Lightning log.

A step's time is taken where nothing disturbed it: the lower quartile at each place
between two log points, and the mean over these places, so that logging counts.
"""

import contextlib
import hashlib
import json
import logging
import os
import random
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.harness import turns
from clusterddp.config.schema import Job
from clusterddp.dist import World, init_dist, shutdown
from clusterddp.runs.directory import RunDirectory
from clusterddp.training import Experiment, GlobalSampler, Trainer

HAND = "by hand"
AGAIN = f"{HAND} (again)"
_LOG_EVERY = 10
_NEVER = 10**9
_SETTLING = 20
# Layers, samples of a rank's batch, steps of a block.
MODELS = {
    "tiny": ((32, 64, 10), 32, 256),
    "small": ((256, 512, 512, 10), 64, 128),
    "50 ms": ((1024, 2048, 2048, 10), 64, 64),
}
Loop = Callable[["Task"], nn.Module]
_stamps: list[float] = []


def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
    """Give the loss, and note when it was asked for."""
    _stamps.append(time.perf_counter())
    return cross_entropy(model(batch[0]), batch[1])


def optimizer(parameters: Any) -> torch.optim.Optimizer:  # noqa: ANN401 - as torch's
    """Give the optimizer of all loops."""
    return torch.optim.SGD(parameters, lr=0.01)


class Task:
    """Model and data, the same for all loops."""

    def __init__(self, name: str, world: World) -> None:
        self.layers, self.batch_size, self.steps = MODELS[name]
        self.world = world
        self.whole = self.batch_size * world.world_size
        size = self.whole * min(64, self.steps)
        self.epochs = self.steps // min(64, self.steps)
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(size, self.layers[0], generator=generator)
        self.y = torch.randint(0, self.layers[-1], (size,), generator=generator)
        self.data = TensorDataset(self.x, self.y)

    def model(self) -> nn.Module:
        """Give the model as it is at the start."""
        torch.manual_seed(0)
        made: list[nn.Module] = []
        for index, width in enumerate(self.layers[:-1]):
            made += [nn.Linear(width, self.layers[index + 1]), nn.ReLU()]
        return nn.Sequential(*made[:-1])

    def sampler(self) -> GlobalSampler:
        """Give this rank's sampler."""
        rank, ranks = self.world.rank, self.world.world_size
        return GlobalSampler(len(self.data), self.whole, rank, ranks, seed=0)

    def loader(self) -> DataLoader[Any]:
        """Give the batches of all epochs in a row."""
        return DataLoader(self.data, batch_sampler=_AllBatches(self))


class _AllBatches:
    def __init__(self, task: Task) -> None:
        self._task = task

    def __len__(self) -> int:
        return self._task.steps

    def __iter__(self) -> Iterator[list[int]]:
        sampler = self._task.sampler()
        for span in sampler.spans(0, self._task.epochs * len(self._task.data)):
            yield sampler.indices(span)


def by_hand(task: Task) -> nn.Module:
    """Train as torch's DDP tutorial does; but see `_train`."""
    return _train(task, task.loader())


def tensors(task: Task) -> nn.Module:
    """Train the same way, without a DataLoader."""
    rows = _AllBatches(task)
    return _train(task, ([task.x[index], task.y[index]] for index in rows))


def _train(task: Task, batches: Any) -> nn.Module:  # noqa: ANN401 - any iterable
    model = task.model()
    ddp = DistributedDataParallel(model) if task.world.world_size > 1 else model
    steps = optimizer(model.parameters())
    # DDP orders its buckets anew after the first backward of a process, and from 3
    # ranks on sums in that order (pytorch#30509). Our trainer makes a pass for nothing
    # first; only a loop that does so, too, can end with the same bits.
    loss(ddp, [task.x[:1], task.y[:1]]).backward()  # type: ignore[no-untyped-call]
    for batch in batches:
        steps.zero_grad()
        loss(ddp, batch).backward()  # type: ignore[no-untyped-call]
        steps.step()
    return model


def clusterddp(task: Task) -> nn.Module:
    """Train with the trainer as it is shipped, logging every 10 steps."""
    return _by_us(task, _LOG_EVERY)


def silent(task: Task) -> nn.Module:
    """Train with the trainer, no logging."""
    return _by_us(task, _NEVER)


def _by_us(task: Task, log_every: int) -> nn.Module:
    job = Job.model_validate(
        {
            "name": "bench",
            "experiment": "benchmarks/loops.py:main",
            "train": {"epochs": task.epochs, "global_batch_size": task.whole},
            "log": {"every": log_every},
            "checkpoint": {"every": f"{_NEVER} steps"},
        }
    )
    model = task.model()
    experiment = Experiment(
        model=model, train_data=task.data, loss=loss, optimizer=optimizer
    )
    with shared_directory() as place:
        run = RunDirectory(place)
        Trainer(experiment, job, task.world, run=run, attempt=1).fit()
    return model


def accelerate(task: Task) -> nn.Module:
    """Train with Hugging Face Accelerate, no logging."""
    from accelerate import Accelerator

    accelerator, model = Accelerator(cpu=True), task.model()
    wrapped, steps = accelerator.prepare(model, optimizer(model.parameters()))
    for batch in task.loader():
        steps.zero_grad()
        accelerator.backward(loss(wrapped, batch))
        steps.step()
    return model


def fabric(task: Task) -> nn.Module:
    """Train with Lightning Fabric, no logging."""
    from lightning.fabric import Fabric

    ranks = task.world.world_size
    strategy = "ddp" if ranks > 1 else "auto"
    made = Fabric(accelerator="cpu", devices=ranks, strategy=strategy)
    made.launch()
    model = task.model()
    wrapped, steps = made.setup(model, optimizer(model.parameters()))
    for batch in task.loader():
        steps.zero_grad()
        made.backward(loss(wrapped, batch))
        steps.step()
    return model


def lightning(task: Task) -> nn.Module:
    """Train with Lightning's Trainer, no logging."""
    return _fit(task, logs=False)


def lightning_log(task: Task) -> nn.Module:
    """Train with Lightning's Trainer, self.log and its TensorBoard logger."""
    return _fit(task, logs=True)


def _fit(task: Task, *, logs: bool) -> nn.Module:
    import lightning.pytorch as pl
    from lightning.pytorch.loggers import TensorBoardLogger

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = task.model()

        def training_step(self, batch: list[Tensor], _index: int) -> Tensor:
            found = loss(self.net, batch)
            if logs:
                self.log("loss", found)
            return found

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return optimizer(self.parameters())

    module = Module()
    with shared_directory() as place:
        pl.Trainer(
            accelerator="cpu",
            devices=task.world.world_size,
            strategy="ddp" if task.world.world_size > 1 else "auto",
            max_epochs=1,
            logger=TensorBoardLogger(place) if logs else False,
            log_every_n_steps=_LOG_EVERY,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
        ).fit(module, task.loader())
    return module.net


_LOOPS: dict[str, Loop] = {
    HAND: by_hand,
    AGAIN: by_hand,
    "clusterddp": clusterddp,
    "by hand, from tensors": tensors,
}
_PEERS: dict[str, Loop] = {
    "Fabric": fabric,
    "Accelerate": accelerate,
    "Lightning": lightning,
    "Lightning, self.log": lightning_log,
}


def main() -> None:
    """Measure in this rank; rank 0 writes what it found."""
    name, blocks, seconds, place, whom = sys.argv[1:]
    warnings.filterwarnings("ignore")
    for noisy in ("lightning", "lightning.pytorch", "lightning.fabric"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    torch.set_num_threads(1)
    task = Task(name, init_dist("pytorch", backend="gloo"))
    loops = {**_LOOPS, **_PEERS} if whom == "all" else dict(_LOOPS)
    if name == "tiny":  # where a log point weighs most
        loops["clusterddp, no log points"] = silent
    found = _ask_all(task, loops, int(blocks), float(seconds))
    if task.world.rank == 0:
        Path(place, "found.json").write_text(json.dumps({"us": found}))
    shutdown()


def _ask_all(
    task: Task, loops: dict[str, Loop], blocks: int, seconds: float
) -> dict[str, list[float]]:
    luck = random.Random(0)  # noqa: S311 - an order, and the same on all ranks
    found: dict[str, list[float]] = {loop: [] for loop in loops}
    for counts in _told(turns(blocks, seconds)):
        bits = {}
        for loop in luck.sample(list(loops), len(loops)):
            bits[loop] = _train_once(task, loops[loop])
            if counts:
                found[loop].append(_step_us(task.steps))
        if len({bits[HAND], bits[AGAIN], bits["clusterddp"]}) != 1:
            raise RuntimeError(f"void: the final weights differ: {bits}")
    return found


def _told(mine: Iterator[bool]) -> Iterator[bool]:
    """Give all ranks the turns of rank 0, by whose clock they end."""
    while True:
        told = [next(mine, None)]
        dist.broadcast_object_list(told)
        if told[0] is None:
            return
        yield told[0]


def _train_once(task: Task, loop: Loop) -> str:
    """Give a digest of the final weights; the stamps are left for who reads them."""
    _stamps.clear()
    with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing):  # noqa: PTH123
        model = loop(task)
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    dist.barrier()
    return digest.hexdigest()[:12]


def _step_us(steps: int) -> float:
    # The last steps only: some loops look at a batch before the first.
    gaps = [b - a for a, b in pairwise(_stamps[_SETTLING - steps :])]
    places = [sorted(gaps[at::_LOG_EVERY]) for at in range(_LOG_EVERY)]
    return 1e6 * statistics.fmean(place[len(place) // 4] for place in places)


@contextlib.contextmanager
def shared_directory() -> Iterator[Path]:
    """Give all ranks the same new directory."""
    with tempfile.TemporaryDirectory() as mine:
        told = [mine]
        dist.broadcast_object_list(told)
        yield Path(told[0])
        dist.barrier()


if __name__ == "__main__":
    main()
