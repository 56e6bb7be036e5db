"""Real ranks that train: processes forked from a server that has torch loaded.

A rank starts in a few ms this way instead of 3 s. Ranks meet as under srun, with
the launcher `slurm` on one node; each one's output goes to a file.
"""

import contextlib
import faulthandler
import hashlib
import itertools
import json
import multiprocessing
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch._dynamo  # the first optimizer imports it: 1.3 s a rank otherwise
import torch.utils.tensorboard
from torch import nn
from torch.utils.data import Dataset

from clusterddp.config.schema import Job
from clusterddp.dist import init_dist, shutdown
from clusterddp.runs.directory import RunDirectory
from clusterddp.training import Experiment, MetricLog, StopSignal, Trainer
from clusterddp.training import checkpoint_files as disk
from clusterddp.training.average import WeightAverage
from clusterddp.training.compression import Compression
from clusterddp.training.data import SeededBatches
from clusterddp.training.equipment import Equipment
from clusterddp.training.guard import NumberGuard
from clusterddp.training.learner import Learner
from clusterddp.training.precision import Precision
from clusterddp.training.randomness import seed_all

STOPPED = 75
STOP_SIGNALS = (
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGINT,
    signal.SIGHUP,
)
Build = Callable[[Mapping[str, Any]], Experiment]
_jobs = itertools.count(1)


def context() -> ForkServerContext:
    """Give the context whose server has loaded this module."""
    chosen = multiprocessing.get_context("forkserver")
    chosen.set_forkserver_preload(["tests.training_ranks"])
    return chosen


@dataclass
class Ranks:
    """Some running ranks."""

    directory: Path
    processes: list[ForkServerProcess] = field(default_factory=list)

    def send(self, rank: int, number: int) -> None:
        """Send a signal to one rank, if it is still there."""
        process = self.processes[rank]
        if process.is_alive() and process.pid is not None:
            # The fork server may reap it between the question and the signal.
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)

    def end_rest(self, after_s: float = 2.0) -> None:
        """End the ranks as srun --kill-on-bad-exit does after one has died."""
        deadline = time.monotonic() + after_s
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))
            process.kill()

    def wait(self, timeout_s: float = 60.0) -> list[int | None]:
        """Give the exit codes; ranks that stay longer are shown and killed."""
        deadline = time.monotonic() + timeout_s
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))
        late = [rank for rank, p in enumerate(self.processes) if p.is_alive()]
        for rank in late:
            self.send(rank, signal.SIGABRT)
            self.processes[rank].join(5)
            self.processes[rank].kill()
        assert not late, f"ranks {late} hang:\n{self.output()}"
        return [process.exitcode for process in self.processes]

    def output(self, rank: int | None = None) -> str:
        """Give what the ranks wrote."""
        chosen = range(len(self.processes)) if rank is None else [rank]
        paths = [self.directory / f"rank-{each}.log" for each in chosen]
        return "\n".join(path.read_text() for path in paths if path.exists())

    def wait_for(self, name: str, timeout_s: float = 30.0) -> None:
        """Wait until every rank has made its mark."""
        deadline = time.monotonic() + timeout_s
        paths = [self.directory / f"{name}-{r}" for r in range(len(self.processes))]
        while not all(path.exists() for path in paths):
            assert time.monotonic() < deadline, self.output()
            time.sleep(0.005)

    def values(self) -> list[Any]:
        """Give what the function returned on each rank, through JSON."""
        codes = self.wait()
        assert set(codes) == {0}, (codes, self.output())
        paths = [self.directory / f"value-{r}" for r in range(len(self.processes))]
        return [json.loads(path.read_text()) for path in paths]


def start(
    world_size: int, directory: Path, function: Callable[..., Any], *args: object
) -> Ranks:
    """Start ranks that each call `function(*args)`; both must be picklable."""
    directory.mkdir(parents=True, exist_ok=True)
    job = f"{os.getpid()}{next(_jobs):04d}"
    ranks = Ranks(directory)
    for rank in range(world_size):
        environment = _environment(rank, world_size, job, directory)
        process = context().Process(
            target=_main, args=(environment, directory, function, args)
        )
        process.start()
        ranks.processes.append(process)
    return ranks


def mark(directory: Path, name: str) -> None:
    """Make the file that `Ranks.wait_for` waits for."""
    (directory / f"{name}-{os.environ['SLURM_PROCID']}").touch()


def _main(
    environment: dict[str, str],
    directory: Path,
    function: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    rank = environment["SLURM_PROCID"]
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    log = os.open(directory / f"rank-{rank}.log", flags)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1)
    sys.stderr = os.fdopen(2, "w", buffering=1)
    faulthandler.enable(sys.stderr)
    os.environ.update(environment)
    # A child of a fork server would fork its own children from another one.
    multiprocessing.set_start_method("fork", force=True)
    torch.set_num_threads(1)
    try:
        value = function(*args)
        (directory / f"value-{rank}").write_text(json.dumps(value))
    except SystemExit as leave:
        os._exit(int(leave.code or 0))
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _environment(
    rank: int, world_size: int, job: str, directory: Path
) -> dict[str, str]:
    return {
        "CLUSTERDDP_LAUNCHER": "slurm",
        "CLUSTERDDP_RDZV_DIR": str(directory / "rdzv"),
        "SLURM_JOB_ID": job,
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": str(world_size),
        "SLURM_STEP_TASKS_PER_NODE": str(world_size),
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank),
        "SLURM_NODEID": "0",
        "SLURM_STEP_NODELIST": "localhost",
    }


def with_world(function: Callable[..., Any], *args: object) -> Any:  # noqa: ANN401
    """Call `function(world, *args)` inside a process group."""
    world = init_dist(timeout=timedelta(seconds=60))
    value = function(world, *args)
    shutdown()
    return value


def train(
    run: Path, attempt: int, directory: Path, build: Build, settings: dict[str, Any]
) -> dict[str, Any]:
    """Train as train.py does; leaves with 75 when stopped."""
    job = Job(name="test", **settings)
    left: Any = job.params.get("time_left")
    stop = StopSignal(lambda: left)
    stop.install()
    mark(directory, "ready")
    world = init_dist(timeout=timedelta(seconds=60))
    mark(directory, "joined")
    torch.manual_seed(job.train.seed)
    facts = {"run": run, "attempt": attempt, "rank": world.rank}
    experiment = build({**facts, **job.params})
    trainer = Trainer(
        experiment, job, world, run=RunDirectory(run), attempt=attempt, stop=stop
    )
    outcome = trainer.fit()
    shutdown()
    if not outcome.finished:
        sys.exit(STOPPED)
    return asdict(outcome)


def start_training(
    run: Path, attempt: int, world_size: int, build: Build, settings: dict[str, Any]
) -> Ranks:
    """Start the ranks of one attempt; logs go into the attempt's directory."""
    directory = run / "attempts" / f"{attempt:04d}"
    args = (run, attempt, directory, build, settings)
    return start(world_size, directory, train, *args)


@dataclass
class Disturber:
    """Stops or kills ranks at random times, and starts again, to the end."""

    run: Path
    world_size: int
    build: Build
    settings: dict[str, Any]
    seed: int
    within_s: float = 0.4
    kills: float = 0.0
    most: int = 8
    history: list[str] = field(default_factory=list)

    def finish(self) -> int:
        """Run to the end; give the number of attempts it took."""
        source = random.Random(self.seed)
        for attempt in itertools.count():
            ranks = start_training(
                self.run, attempt, self.world_size, self.build, self.settings
            )
            if attempt < self.most:
                self._disturb(ranks, source)
            codes = ranks.wait()
            self.history.append(f"-> {codes}")
            if set(codes) == {0}:
                return attempt + 1
            killed = any(code not in {0, STOPPED} for code in codes)
            if killed:
                assert "kill" in self.history[-2], (self.history, ranks.output())
            else:
                assert set(codes) == {STOPPED}, (self.history, ranks.output())
        raise AssertionError

    def _disturb(self, ranks: Ranks, source: random.Random) -> None:
        victim = source.randrange(self.world_size)
        kill = source.random() < self.kills
        # Who is missing while the ranks meet is the launcher's matter.
        ranks.wait_for("joined" if kill else "ready")
        time.sleep(source.uniform(0, self.within_s))
        if kill:
            self.history.append(f"kill rank {victim}")
            ranks.send(victim, signal.SIGKILL)
            ranks.end_rest()
        else:
            number = source.choice(STOP_SIGNALS)
            self.history.append(f"{number.name} to rank {victim}")
            ranks.send(victim, number)


class NoisyRows(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Rows with noise drawn from python, numpy and torch; notes who was asked."""

    def __init__(self, count: int, notes: Path | None = None) -> None:
        generator = torch.Generator().manual_seed(1)
        self.rows = torch.randn(count, 6, generator=generator)
        self.labels = (self.rows.sum(1) > 0).long()
        self.notes = notes

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        noise = random.random() + float(np.random.rand()) + torch.randn(6)  # noqa: NPY002
        return self.rows[index] + 0.1 * noise, self.labels[index]


def build_noisy(params: Mapping[str, Any]) -> Experiment:
    """Give an experiment with all that could tell two runs apart.

    Dropout, batch norm, momentum, a schedule, noise in the data, a partial last
    batch, and enough parameters for the order of sums to show.
    """
    model = nn.Sequential(
        nn.Linear(6, 32),
        nn.BatchNorm1d(32),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(32, 32),
        nn.Tanh(),
        nn.Linear(32, 2),
    )

    for name in params.get("without", ()):
        _take_away(name)
    calls = itertools.count()

    def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        time.sleep(params.get("sleep", 0.0))
        call = next(calls) if model.training else -1
        if call == params.get("stop_at"):
            _stop_once(params)
        loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
        # By what is in the batch, not by the call: the same after any stop.
        return loss / 0.0 if 0 <= batch[0][0, 0] < params.get("spikes", 0.0) else loss

    return Experiment(
        model,
        NoisyRows(130),
        loss,
        lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
        eval_data=NoisyRows(31),
        scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.9),
    )


def _stop_once(params: Mapping[str, Any]) -> None:
    if params["attempt"] == 0 and params["rank"] == params.get("victim", 0):
        os.kill(os.getpid(), signal.SIGTERM)


def _take_away(name: str) -> None:
    """Make this rank naive in one respect, to see the tests notice it."""
    target, attribute, naive = _NAIVE[name]
    patch.object(target, attribute, naive).start()


def _seed_again(self: Equipment, step: int, _loaded: object) -> None:
    seed_all(step, self.device)


def _load_model_only(self: Learner, state: Mapping[str, Any]) -> None:
    self.model.load_state_dict(state["model.pt"])


def _draw_unseeded(self: SeededBatches, key: tuple[int, int]) -> object:
    return self.data[key[1]]


def _nothing(*_: object) -> None:
    return None


_NAIVE: dict[str, tuple[type, str, Callable[..., object]]] = {
    "warm-up": (Learner, "warm_up", _nothing),
    "random streams": (Equipment, "_start_random_streams", _seed_again),
    "loss sums": (MetricLog, "load", _nothing),
    "sample seeds": (SeededBatches, "__getitem__", _draw_unseeded),
    "optimizer": (Learner, "load", _load_model_only),
    "scale": (Precision, "load", _nothing),
    "average": (WeightAverage, "load", _nothing),
    "errors": (Compression, "load", _nothing),
    "skips": (NumberGuard, "load", _nothing),
}


def final_state(run: Path) -> dict[str, Any]:
    """Give all that must be equal in bits: newest checkpoint and logged values."""
    newest = disk.list_checkpoints(RunDirectory(run).checkpoints)[0]
    disk.verify(newest)
    return {
        "step": newest.name,
        **{path.stem: _digest_file(path) for path in newest.glob("*.pt")},
        "ranks": json.loads((newest / "ranks.json").read_text()),
        "state": json.loads((newest / "state.json").read_text()),
        "lines": logged(run),
    }


def logged(run: Path) -> list[dict[str, str]]:
    """Give the lines of metrics.jsonl without what depends on the clock."""
    lines = raw_lines(run)
    kept = ("step", "epoch", "loss", "lr", "grad_norm", "skipped", "loss_scale")
    return [
        {k: repr(v) for k, v in line.items() if k in kept or k.startswith("eval/")}
        for line in lines
    ]


def raw_lines(run: Path) -> list[dict[str, Any]]:
    """Give the lines of metrics.jsonl as they are."""
    return [json.loads(x) for x in (run / "metrics.jsonl").read_text().splitlines()]


def _digest_file(path: Path) -> str:
    return _digest(torch.load(path, weights_only=True))


def _digest(value: object) -> str:
    digest = hashlib.sha256()
    _feed(digest, value)
    return digest.hexdigest()


def _feed(digest: Any, value: object) -> None:  # noqa: ANN401
    if isinstance(value, torch.Tensor):
        digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
        digest.update(value.detach().contiguous().numpy().tobytes())
    elif isinstance(value, dict):
        for key, item in value.items():
            digest.update(repr(key).encode())
            _feed(digest, item)
    elif isinstance(value, list | tuple):
        for item in value:
            _feed(digest, item)
    else:
        digest.update(repr(value).encode())
