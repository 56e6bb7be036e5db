"""The job file as a value: what may stand in it, of which type, with which default.

The models are frozen and refuse unknown keys. Relations between keys are checked
in `clusterddp.config.checks`, after overrides, so that a message can name the line.
"""

import contextlib
import re
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
)

from clusterddp.config.durations import parse_duration

__all__ = [
    "Best",
    "Checkpoint",
    "Cluster",
    "Code",
    "DistParams",
    "Every",
    "Job",
    "Launcher",
    "Log",
    "Retry",
    "Slurm",
    "Train",
]

Launcher = Literal["slurm", "pytorch", "none"]
Cluster = Literal["slurm", "local"]


def _duration(value: object) -> object:
    if isinstance(value, str):
        return parse_duration(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        message = f"{value} has no unit; write {value}s, {value}m or {value}h"
        raise ValueError(message)  # noqa: TRY004 - pydantic reports ValueErrors
    return value


def _seconds_text(value: float) -> str:
    return f"{value:g}s" if value != int(value) else f"{int(value)}s"


Duration = Annotated[
    float,
    BeforeValidator(_duration, json_schema_input_type=str),
    PlainSerializer(_seconds_text),
]
"""Seconds; written in the file as `30m`, `2h`, `90s` or `1-12:00:00`."""

Texts = Annotated[tuple[str, ...], Field(strict=False)]
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


_EVERY = re.compile(r"\s*(\d+)\s*(steps?|epochs?)\s*")


class Every(_Section):
    """When to save: every so many steps, or epochs, or seconds, or all of them."""

    steps: Positive | None = None
    epochs: Positive | None = None
    seconds: Annotated[float, Field(gt=0)] | None = None


def _parse_every(value: object) -> object:
    if isinstance(value, Every):
        return value
    parts = value if isinstance(value, list) else [value]
    found: dict[str, float] = {}
    for part in parts:
        unit, count = _parse_interval(part)
        if unit in found:
            message = f"{part!r}: a second interval in {unit}; give one of each kind"
            raise ValueError(message)
        found[unit] = count
    return Every.model_validate(found)


def _parse_interval(part: object) -> tuple[str, float]:
    if isinstance(part, str):
        match = _EVERY.fullmatch(part)
        if match is not None and int(match[1]) > 0:
            return match[2].rstrip("s") + "s", int(match[1])
        with contextlib.suppress(ValueError):
            if match is None and (seconds := parse_duration(part)) > 0:
                return "seconds", seconds
    message = f"{part!r} is no interval; write `500 steps`, `10m` or `1 epoch`"
    raise ValueError(message)


def _every_text(value: Every) -> list[str]:
    pairs = (("steps", value.steps), ("epochs", value.epochs))
    texts = [f"{count} {unit}" for unit, count in pairs if count is not None]
    return texts if value.seconds is None else [*texts, _seconds_text(value.seconds)]


class Best(_Section):
    """Which checkpoint is the best: by a metric of the evaluation."""

    mode: Literal["min", "max"]
    metric: str


def _parse_best(value: object) -> object:
    if value is None or isinstance(value, Best):
        return value
    words = value.split() if isinstance(value, str) else []
    if len(words) == 2 and words[0] in ("min", "max"):  # noqa: PLR2004 - two words
        return Best.model_validate({"mode": words[0], "metric": words[1]})
    message = f"{value!r} names no best; write `min loss` or `max accuracy`"
    raise ValueError(message)


def _best_text(value: Best | None) -> str | None:
    return None if value is None else f"{value.mode} {value.metric}"


def _ports(value: str) -> str:
    low, _, high = value.partition("-")
    if not (low.strip().isdigit() and high.strip().isdigit()) or not (
        0 < int(low) <= int(high) < 1 << 16
    ):
        message = f"{value!r} is no range of ports; write 20000-20100"
        raise ValueError(message)
    return value


class DistParams(_Section):
    """What `init_dist` is given; durations in seconds."""

    backend: str = "auto"
    timeout: Duration = 3600.0
    rendezvous_timeout: Duration = 600.0
    port_range: Annotated[str, AfterValidator(_ports)] | None = Field(
        None, description="ports that rank 0 may bind, such as 20000-20100"
    )


class Train(_Section):
    """What the shared trainer does; a user's own script ignores all but threads."""

    epochs: Positive = 1
    global_batch_size: Positive = 32
    seed: Count = 0
    workers: Count = 0
    threads: Positive | None = Field(
        None, description="intra-op threads of a rank; default slurm.cpus_per_task"
    )


class Checkpoint(_Section):
    """When checkpoints are written and how many are kept."""

    every: Annotated[
        Every,
        BeforeValidator(_parse_every, json_schema_input_type=str | list[str]),
        PlainSerializer(_every_text),
    ] = Field(
        Every(epochs=1),
        description="how often: 500 steps, 10m, 1 epoch, or a list of these",
    )
    keep: Annotated[int, Field(ge=2)] = Field(
        3, description="how many of the newest stay"
    )
    keep_every: Positive | None = Field(
        None, description="those at multiples of so many steps are never deleted"
    )
    best: Annotated[
        Best | None,
        BeforeValidator(_parse_best, json_schema_input_type=str | None),
        PlainSerializer(_best_text),
    ] = Field(None, description="keep the best, too: min loss, max accuracy")
    max_failures: Positive = Field(
        3, description="so many failed saves in a row end the run, with code 5"
    )
    background: bool = Field(
        default=True, description="false: training waits until a save is durable"
    )


class Log(_Section):
    """How often the loss is logged, in steps."""

    every: Positive = 10


class Slurm(_Section):
    """What Slurm is asked for; the names are sbatch's own."""

    nodes: Positive = 1
    tasks_per_node: Positive = 1
    gpus_per_node: Count | None = None
    cpus_per_task: Positive = 1
    mem: str | None = Field(None, description="per node, as sbatch --mem: 4G, 500M, 0")
    time: Duration = 3600.0
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    exclude: str | None = None
    setup: Texts = Field((), description="shell lines before the supervisor")
    env: dict[str, str] = Field({}, description="variables that every rank gets")
    template: str | None = Field(None, description="a preset of this section")
    srun_args: Texts = Field((), description="further options of srun")
    signal_delay: Duration = Field(
        90.0, description="how long before the time limit the ranks are asked to stop"
    )
    step_timeout: Duration = Field(
        300.0, description="how long srun may take to start the ranks"
    )
    extra: dict[str, bool | int | str] = Field(
        {}, description="any further option of sbatch, by its long name"
    )


class Retry(_Section):
    """How often a run may be started again, by cause."""

    crashes: Count = 3
    timeouts: Count = 20
    preemptions: Count | None = Field(None, description="null: no limit")
    node_failures: Count = 10
    stall_timeout: Duration | Literal["auto", "never"] = Field(
        "auto", description="how long the ranks may finish no step; auto, or never"
    )


class Code(_Section):
    """What is kept of the user's code when a run is submitted."""

    snapshot: bool = True
    include: Texts = Field((), description="untracked files to keep as well")
    max_mb: Positive = Field(50, description="a larger snapshot is refused, in MiB")
    root: str | None = Field(None, description="set at submit: what was kept")


class Job(_Section):
    """One run, described; `clusterddp.config.load_job` makes it from a file."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
    experiment: str | None = Field(
        None, description="package.module:function or path/to/file.py:function"
    )
    script: str | None = Field(None, description="a .py file or a module, run as main")
    args: Texts = Field((), description="arguments of the script")
    params: dict[str, object] = Field({}, description="handed to the experiment")
    launcher: Launcher = "slurm"
    cluster: Cluster | None = Field(None, description="follows from the launcher")
    dist_params: DistParams = DistParams()
    train: Train = Train()
    checkpoint: Checkpoint = Checkpoint()
    log: Log = Log()
    slurm: Slurm = Slurm()
    retry: Retry = Retry()
    code: Code = Code()
    runs: str = "runs"

    @property
    def world_size(self) -> int:
        """The number of ranks that the job file asks for."""
        return self.slurm.nodes * self.slurm.tasks_per_node

    @property
    def threads(self) -> int:
        """Intra-op threads of one rank, the same under every launcher."""
        return self.train.threads or self.slurm.cpus_per_task

    @property
    def where(self) -> Cluster:
        """Where the run goes: what `cluster` says, else what the launcher implies."""
        return self.cluster or ("slurm" if self.launcher == "slurm" else "local")

    setup_node: Texts = Field(
        (), description="shell lines that run once per node and attempt, before ranks"
    )
    python: Annotated[
        Texts,
        BeforeValidator(
            lambda value: (value,) if isinstance(value, str) else value,
            json_schema_input_type=str | list[str],
        ),
    ] = Field(
        (), description="the ranks' interpreter, where it is not the supervisor's"
    )
