"""A small experiment for whole runs: quick, with dropout, and with faults on demand.

Faults are named in `params` and happen once, unless told otherwise: a file in the
run directory remembers.
"""

import os
import signal
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import clusterddp
from clusterddp.training import checkpoint_files

SAMPLES = 240
Batch = tuple[Tensor, Tensor]


class Points(torch.utils.data.Dataset[Batch]):
    """Points in 8 dimensions, labelled by the sign of their sum."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(SAMPLES, 8, generator=generator)
        self.y = (self.x.sum(1) > 0).long()
        self.params = params

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Batch:
        return self.x[index], self.y[index]


def build(params: Mapping[str, Any]) -> clusterddp.Experiment:
    """Give a two-layer net; see `_Loss` for the faults."""
    if params.get("build") == "ImportError":
        import a_module_that_is_not_there  # type: ignore[import-not-found] # noqa: F401
    model = nn.Sequential(
        nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2)
    )
    data = Points(params)
    if "write_s" in params:
        _slow_down_writing(params["write_s"])
    return clusterddp.Experiment(
        model=model,
        train_data=data,
        eval_data=data,
        loss=_Loss(params),
        optimizer=lambda parameters: _optimizer(parameters, params),
        evaluate=_accuracy,
    )


def _slow_down_writing(seconds: float) -> None:
    """Have every checkpoint take so long to write, as on a busy file system."""
    write = checkpoint_files.write_files

    def write_slowly(
        target: Path, contents: Mapping[str, object], fields: Mapping[str, object]
    ) -> int:
        time.sleep(seconds)
        return write(target, contents, fields)

    checkpoint_files.write_files = write_slowly


def _optimizer(
    parameters: Iterable[nn.Parameter], params: Mapping[str, Any]
) -> torch.optim.Optimizer:
    """Give SGD; with `trace` it leaves marks.

    Rank 0 adds a dot to `attempts/N/steps` for each step that it has finished.
    """
    made = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    if params.get("trace") and torch.distributed.get_rank() == 0:
        attempts = Path(os.environ["CLUSTERDDP_RUN_DIR"], "attempts")
        marks = attempts / os.environ["CLUSTERDDP_ATTEMPT"] / "steps"

        def mark(*_: object) -> None:
            with marks.open("ab") as file:
                file.write(b".")

        made.register_step_post_hook(mark)
    return made


class _Loss:
    """Cross entropy, after `sleep` seconds, and a fault at batch `at` of `rank`.

    `first_sleep` is the pause of the run's first attempt, where it differs.
    """

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._params = params
        self._calls = 0

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        self._calls += 1
        time.sleep(self._pause())
        if self._is_time():
            _fail(str(self._params["fault"]))
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def _pause(self) -> float:
        if os.environ.get("CLUSTERDDP_ATTEMPT") == "0000":
            if self._is_stuck():
                return float(self._params["stuck_s"])
            return float(self._params.get("first_sleep", self._params.get("sleep", 0)))
        return float(self._params.get("sleep", 0))

    def _is_stuck(self) -> bool:
        """Say whether this rank is not to see that the one with the fault is gone."""
        is_due = "stuck_s" in self._params and self._calls == self._params["at"]
        return is_due and torch.distributed.get_rank() != self._params["rank"]

    def _is_time(self) -> bool:
        if "fault" not in self._params or self._calls < self._params.get("at", 5):
            return False
        if torch.distributed.get_rank() != self._params.get("rank", 0):
            return False
        if self._params.get("always"):
            return True
        mark = Path(os.environ["CLUSTERDDP_RUN_DIR"]) / "fault-done"
        if mark.exists():
            return False
        mark.touch()
        return True


def _fail(kind: str) -> None:
    if kind == "exception":
        message = "the toy broke"
        raise ValueError(message)
    if kind == "exit":
        os._exit(3)
    if kind == "memory":
        torch.empty(1 << 55)
    os.kill(os.getpid(), getattr(signal, kind))


def _accuracy(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    return {"accuracy": (model(batch[0]).argmax(1) == batch[1]).float().mean()}
