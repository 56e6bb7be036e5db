"""What a save costs the step that it interrupts, and the training around it.

    python -m benchmarks.checkpoints [--repeat 7] [--sizes 12 96 384] [--json OUT.json]

For a model with Adam's state, in one process, interleaved, medians: the bare copy of
the same bytes between two buffers, our background save, torch.save with fsync and
rename, and torch.distributed.checkpoint's async_save as it comes. Then the time of
40 steps of training with two saves, against the same without. The file system is the
working directory's. Nothing here is a test.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import nn

from clusterddp.dist import World, init_dist, shutdown
from clusterddp.runs.directory import RunDirectory
from clusterddp.training import Checkpoints, Snapshot
from clusterddp.training.host_copy import count_bytes

MIB = 1 << 20
_LARGE = 200


def main() -> None:
    """Measure, print a table, and write JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--sizes", type=int, nargs="+", default=[12, 96, 384])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    world = init_dist("none")
    found: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as place:
        for size in given.sizes:
            bench = Bench(size, world, Path(place) / str(size))
            found[f"{bench.mib:.0f} MiB"] = bench.measure(given.repeat)
    shutdown()
    report(found, given.json)


class Bench:
    """A model with Adam's state of about so many MiB, and ways to save it."""

    def __init__(self, size: int, world: World, place: Path) -> None:
        layers = max(1, round(size / 3 / 4))
        self.model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(layers)])
        self.optimizer = torch.optim.Adam(self.model.parameters(), foreach=True)
        self.step()
        self.place = place
        run = RunDirectory(place / "run")
        run.attempt(0).path.mkdir(parents=True)
        self.checkpoints = Checkpoints(run, world, attempt=0)
        self.count = 0
        self.mib = count_bytes(self.state()) / MIB
        floats = int(self.mib * MIB / 4)
        self.flat = torch.ones(floats), torch.zeros(floats)
        self.pending: Any = None

    def state(self) -> dict[str, Any]:
        """Give what the trainer saves."""
        return {
            "model.pt": self.model.state_dict(),
            "optimizer.pt": {"optimizer": self.optimizer.state_dict()},
        }

    def step(self) -> None:
        """Make one step of training."""
        self.optimizer.zero_grad()
        self.model(torch.ones(8, 1024)).sum().backward()
        self.optimizer.step()

    def measure(self, repeat: int) -> dict[str, list[float]]:
        """Give seconds by question."""
        found: dict[str, list[float]] = {"first save, stall": [clock(self.ours)]}
        self.finish()
        stalls: dict[str, Callable[[], object]] = {
            "copy of the same bytes": lambda: self.flat[1].copy_(self.flat[0]),
            "background save, stall": self.ours,
            "torch.save + fsync, stall": self.plain,
            "dcp.async_save, stall": self.dcp,
        }
        for _ in range(repeat):
            for name, ask in stalls.items():
                started = time.perf_counter()
                found.setdefault(name, []).append(clock(ask))
                self.finish()
                durable = name.replace("stall", "until durable")
                found.setdefault(durable, []).append(time.perf_counter() - started)
        found.pop("copy of the same bytes until durable", None)
        for _ in range(3 if self.mib < _LARGE else 0):
            for name, save in (
                ("steps without saves", None),
                ("steps, background saves", self.ours),
                ("steps, torch.save + fsync", self.plain),
                ("steps, dcp.async_save", self.dcp),
            ):
                found.setdefault(name, []).append(self.train(save))
        return found

    def train(self, save: Callable[[], object] | None, steps: int = 40) -> float:
        """Give the time of some steps, a save among each 20, all durable at the end."""
        started = time.perf_counter()
        for index in range(steps):
            self.step()
            if save is not None and index % 20 == 0:
                save()
        self.finish()
        return time.perf_counter() - started

    def ours(self) -> None:
        """Save as the trainer does."""
        self.count += 1
        self.checkpoints.start(Snapshot(self.count, self.state(), {}), {})

    def plain(self) -> None:
        """Save as most do, durably."""
        aside = self.place / "plain.tmp"
        with aside.open("wb") as file:
            torch.save(self.state(), file)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(self.place / "plain.pt")

    def dcp(self) -> None:
        """Save with PyTorch's own asynchronous saver."""
        if self.pending is not None:
            self.pending.result()
        with quiet():
            self.pending = dcp.async_save(
                self.state(), checkpoint_id=self.place / "dcp"
            )

    def finish(self) -> None:
        """Wait until everything is durable."""
        self.checkpoints.finish()
        if self.pending is not None:
            self.pending.result()
            self.pending = None


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the saver's warnings out of the table."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def clock(ask: Callable[[], object]) -> float:
    """Give the seconds that a call takes."""
    started = time.perf_counter()
    ask()
    return time.perf_counter() - started


def report(found: dict[str, dict[str, list[float]]], path: Path | None) -> None:
    """Print minimum, median and maximum, in ms, and the ratio to the bare copy."""
    load = os.getloadavg()[0]
    machine = (
        f"{platform.platform()}, {os.cpu_count()} CPUs, load {load:.1f}, Python "
        f"{sys.version.split()[0]}, torch {torch.__version__}, 1 thread, no GPU"
    )
    print(machine)
    for size, questions in found.items():
        copy = statistics.median(questions["copy of the same bytes"])
        for name, values in questions.items():
            middle = statistics.median(values)
            low, high = min(values), max(values)
            text = f"{low * 1e3:9.1f} {middle * 1e3:9.1f} {high * 1e3:9.1f} ms"
            print(f"{size:>8} {name:<36} {text} {middle / copy:7.2f} copies")
    if path is not None:
        whole = {"machine": machine, "seconds": found}
        path.write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()
