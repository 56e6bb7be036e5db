"""The job file as a value: what may stand in it, of which type, with which default.

The models are frozen and refuse unknown keys. Relations between keys are checked
in `clusterddp.config.checks`, after overrides, so that a message can name the line.
"""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from clusterddp.config.fields import (
    Best,
    BestBy,
    Count,
    Duration,
    Every,
    Interval,
    Ports,
    Positive,
    Section,
    Texts,
)

__all__ = [
    "FIRST_DELAY_S",
    "Best",
    "Checkpoint",
    "Cluster",
    "Code",
    "Ddp",
    "DistParams",
    "Every",
    "InitFrom",
    "Job",
    "Kept",
    "Launcher",
    "Log",
    "Profile",
    "Retry",
    "Slurm",
    "Sweep",
    "Train",
]

Launcher = Literal["slurm", "pytorch", "none"]
Cluster = Literal["slurm", "local"]
Kept = Literal[0, "node", "all"]

FIRST_DELAY_S = 90.0
"""How long before the time limit ranks are asked to stop, unless told or learned."""

_MOST_FILES = 64
"""More ranks than this share one file per node, unless told otherwise."""


class DistParams(Section):
    """What `init_dist` is given; durations in seconds."""

    backend: str = Field(
        "auto",
        description="auto (nccl where there are GPUs, else gloo), or torch's word",
    )
    timeout: Duration = Field(3600.0, description="of collectives")
    rendezvous_timeout: Duration = Field(
        600.0, description="how long the ranks wait for each other at the start"
    )
    port_range: Ports | None = Field(
        None, description="ports that rank 0 may bind, such as 20000-20100"
    )


class Ddp(Section):
    """Options of DistributedDataParallel, by its own names, and its comm hook."""

    gradient_as_bucket_view: bool = Field(
        default=True, description="saves one copy of the gradients, and making it"
    )
    static_graph: bool = Field(
        default=False,
        description="promises torch that every step uses the same parameters",
    )
    find_unused_parameters: bool = Field(
        default=False, description="for models that do not use all parameters each step"
    )
    bucket_cap_mb: Annotated[float, Field(gt=0)] | None = Field(
        None, description="size of a gradient bucket, in MiB; null: torch's choice"
    )
    comm_hook: Literal["bf16", "fp16", "powersgd"] | None = Field(
        None, description="average gradients in half the bytes, or in far fewer"
    )
    powersgd_rank: Positive = Field(
        1, description="rank of the matrices that powersgd sends"
    )
    powersgd_start: Annotated[int, Field(ge=2)] = Field(
        1000, description="steps before powersgd begins; early gradients suffer most"
    )


class Profile(Section):
    """Which steps torch's profiler records, on every rank."""

    start: Count = Field(
        10, description="the first recorded step after the start of an attempt"
    )
    steps: Positive = Field(5, description="how many steps are recorded")


class Train(Section):
    """What the shared trainer does; a user's own script ignores all but threads."""

    epochs: Positive = Field(1, description="passes over the training data")
    global_batch_size: Positive = Field(
        32, description="samples of one step over all ranks"
    )
    accumulate: Positive = Field(
        1, description="parts of a rank's share of a batch that are computed in turn"
    )
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        "fp32", description="fp32, or torch's autocast in bf16 or fp16"
    )
    clip_grad_norm: Annotated[float, Field(gt=0)] | None = Field(
        None, description="largest norm of all gradients together; null: not clipped"
    )
    ema: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="decay of an average of the weights over the steps"
    )
    eval_weights: Literal["raw", "ema"] = Field(
        "raw", description="evaluate the weights as they are, or their average"
    )
    not_finite: Literal["stop", "skip", "ignore"] = Field(
        "stop", description="what to do with a step whose gradients hold NaN or Inf"
    )
    max_skips: Positive = Field(25, description="stop after so many in a row")
    check_equal: Positive | None = Field(
        1000, description="every so many steps compare the ranks' weights; null: never"
    )
    gc_every: Positive | None = Field(
        None, description="collect garbage at these steps only, on all ranks together"
    )
    ddp: Ddp = Field(Ddp(), description="options of DistributedDataParallel")
    sync_batchnorm: bool = Field(
        default=False, description="batch norm over all ranks' samples"
    )
    compile: str | None = Field(None, description="backend of torch.compile: inductor")
    profile: Profile | None = Field(
        None, description="which steps torch's profiler records; null: none"
    )
    seed: Count = Field(0, description="of data order, initialisation and dropout")
    workers: Count = Field(0, description="loader processes per rank")
    threads: Positive | None = Field(
        None, description="intra-op threads of a rank; default slurm.cpus_per_task"
    )


class Checkpoint(Section):
    """When checkpoints are written and how many are kept."""

    every: Interval = Field(
        Every(epochs=1),
        description="how often: 500 steps, 10m, 1 epoch, or a list of these",
    )
    keep: Annotated[int, Field(ge=2)] = Field(
        3, description="how many of the newest stay"
    )
    keep_every: Positive | None = Field(
        None, description="those at multiples of so many steps are never deleted"
    )
    best: BestBy = Field(None, description="keep the best, too: min loss, max accuracy")
    max_failures: Positive = Field(
        3, description="so many failed saves in a row end the run, with code 5"
    )
    background: bool = Field(
        default=True, description="false: training waits until a save is durable"
    )


class Log(Section):
    """How often the loss is logged, and whose output is kept."""

    every: Positive = Field(10, description="steps between two log points")
    ranks: Kept | None = Field(
        None,
        description="whose output is kept: 0 (rank 0's), node (a file per node), all "
        "(a file per rank); null: all up to 64 ranks, then node",
    )


class Slurm(Section):
    """What Slurm is asked for; the names are sbatch's own."""

    nodes: Positive = Field(
        1, description="ranks are nodes x tasks_per_node, under every launcher"
    )
    spare_nodes: Count = Field(
        0, description="further nodes, so that a lost one costs no requeue"
    )
    tasks_per_node: Positive = Field(1, description="ranks on each node")
    gpus_per_node: Count | None = Field(
        None, description="as sbatch --gpus-per-node; null: none asked for"
    )
    cpus_per_task: Positive = Field(1, description="cores of one rank")
    mem: str | None = Field(None, description="per node, as sbatch --mem: 4G, 500M, 0")
    time: Duration = Field(
        3600.0,
        description="time limit of one job, not of the run; more than signal_delay",
    )
    partition: str | None = Field(None, description="as sbatch --partition")
    account: str | None = Field(None, description="as sbatch --account")
    qos: str | None = Field(None, description="as sbatch --qos")
    constraint: str | None = Field(None, description="as sbatch --constraint")
    exclude: str | None = Field(None, description="nodes that the job must not get")
    setup: Texts = Field((), description="shell lines before the supervisor")
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
    env: dict[str, str] = Field({}, description="variables that every rank gets")
    template: str | None = Field(None, description="a preset of this section")
    srun_args: Texts = Field((), description="further options of srun")
    signal_delay: Duration | Literal["auto"] = Field(
        "auto",
        description="how long before the time limit the ranks are asked to stop; auto: "
        "90s, and for a run's later jobs what its steps and saves need",
    )
    step_timeout: Duration = Field(
        300.0, description="how long srun may take to start the ranks"
    )
    supervisor_timeout: Duration = Field(
        120.0, description="with spare nodes: how long ranks miss the supervisor"
    )
    extra: dict[str, bool | int | str] = Field(
        {}, description="any further option of sbatch, by its long name"
    )

    @property
    def first_delay_s(self) -> float:
        """The signal's delay before anything was measured; at most half the limit."""
        if self.signal_delay == "auto":
            return min(FIRST_DELAY_S, self.time / 2)
        return self.signal_delay


class Retry(Section):
    """How often a run may be started again, by cause."""

    crashes: Count = Field(
        3, description="how many crashes and stalls the run may have"
    )
    timeouts: Count = Field(20, description="how many time limits it may reach")
    preemptions: Count | None = Field(None, description="null: no limit")
    node_failures: Count = Field(10, description="how many nodes it may lose")
    shrink: bool = Field(
        default=False,
        description="without a node and spares, go on in the job with fewer ranks",
    )
    stall_timeout: Duration | Literal["auto", "never"] = Field(
        "auto", description="how long the ranks may finish no step; auto, or never"
    )


class Code(Section):
    """What is kept of the user's code when a run is submitted."""

    snapshot: bool = Field(
        default=True,
        description="keep the tracked files (without git: the .py files) at submit",
    )
    include: Texts = Field((), description="untracked files to keep as well")
    max_mb: Positive = Field(50, description="a larger snapshot is refused, in MiB")
    root: str | None = Field(None, description="set at submit: what was kept")


class InitFrom(Section):
    """Weights to begin with, of another run or from a file."""

    source: str = Field(
        description="RUN[@STEP], a checkpoint's directory, a .pt or .safetensors file"
    )
    skip: Texts = Field(
        (), description="patterns of names that may be missing or differ: head.*"
    )


def _parse_init(value: object) -> object:
    return {"source": value} if isinstance(value, str) else value


class Sweep(Section):
    """Many runs that differ in some values; Slurm gets them as one array."""

    grid: dict[str, list[object]] = Field(
        {}, description="values by dotted key; every combination is a run"
    )
    list: Annotated[tuple[dict[str, object], ...], Field(strict=False)] = Field(
        (), description="sets of values by dotted key, each combined with the grid"
    )


class Job(Section):
    """One run, described; `clusterddp.config.load_job` makes it from a file."""

    name: Annotated[
        str,
        Field(
            pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
            max_length=100,
            description="letters, digits, dots, dashes, underscores",
        ),
    ]
    experiment: str | None = Field(
        None, description="package.module:function or path/to/file.py:function"
    )
    script: str | None = Field(None, description="a .py file or a module, run as main")
    args: Texts = Field((), description="arguments of the script")
    params: dict[str, object] = Field({}, description="handed to the experiment")
    launcher: Launcher = Field(
        "slurm",
        description="slurm (one srun task per rank), pytorch (an agent per node), none",
    )
    cluster: Cluster | None = Field(None, description="follows from the launcher")
    dist_params: DistParams = Field(DistParams(), description="handed to init_dist")
    train: Train = Field(Train(), description="what the shared trainer does")
    init_from: Annotated[
        InitFrom | None,
        BeforeValidator(_parse_init, json_schema_input_type=str | InitFrom | None),
    ] = Field(
        None,
        description="weights to begin with: RUN[@STEP] or a file, or keys as below",
    )
    checkpoint: Checkpoint = Field(
        Checkpoint(), description="when checkpoints are written and which stay"
    )
    log: Log = Field(Log(), description="how often is logged; whose output is kept")
    slurm: Slurm = Field(Slurm(), description="what Slurm is asked for")
    retry: Retry = Field(Retry(), description="how often the run may be started again")
    code: Code = Field(Code(), description="what is kept of the code")
    sweep: Sweep | None = Field(
        None, description="makes many runs of this file, as one Slurm array"
    )
    runs: str = Field(
        "runs", description="where runs lie; --runs and $CLUSTERDDP_RUNS win"
    )

    @property
    def world_size(self) -> int:
        """The number of ranks that the job file asks for."""
        return self.slurm.nodes * self.slurm.tasks_per_node

    @property
    def kept_output(self) -> Kept:
        """Whose output is kept: what `log.ranks` says, else by the number of ranks."""
        if self.log.ranks is not None:
            return self.log.ranks
        return "all" if self.world_size <= _MOST_FILES else "node"

    @property
    def threads(self) -> int:
        """Intra-op threads of one rank, the same under every launcher."""
        return self.train.threads or self.slurm.cpus_per_task

    @property
    def outlives_nodes(self) -> bool:
        """Whether the job shall go on where it is when it loses a node."""
        return self.slurm.spare_nodes > 0 or self.retry.shrink

    @property
    def where(self) -> Cluster:
        """Where the run goes: what `cluster` says, else what the launcher implies."""
        return self.cluster or ("slurm" if self.launcher == "slurm" else "local")
