"""Relations between the keys of a job file that no type can express."""

import re
from collections.abc import Callable, Iterator

from clusterddp.config.schema import Job, Slurm
from clusterddp.config.yaml import KeyPath

__all__ = ["check_job", "warn_about"]

Finding = tuple[KeyPath, str]

# Options that the supervisor's life depends on; `extra:` must not undo them.
_RESERVED = {
    *("array", "comment", "error", "export", "job-name", "ntasks", "ntasks-per-node"),
    *("open-mode", "output", "requeue", "no-requeue", "signal", "wrap"),
}
_SWEPT = ("params", "args", "train", "checkpoint", "log", "dist_params", "retry")
_TEXTS = ("partition", "account", "qos", "constraint", "exclude")
_OPTION_NAME = re.compile(r"[a-z][a-z0-9-]*", re.IGNORECASE)
_GPU_OPTIONS = {"gpus", "gres", "gpus-per-task", "gpus-per-socket"}
_SLURM_MINUTE_S = 60


def check_job(job: Job) -> list[Finding]:
    """Give everything that cannot work, as (key, finding); pure."""
    return [finding for check in _CHECKS for finding in check(job)]


def warn_about(job: Job) -> list[str]:
    """Give what works but is probably not meant; pure."""
    size, ranks = job.train.global_batch_size, job.world_size
    if job.experiment is None or size % ranks == 0:
        return []
    warning = (
        f"train.global_batch_size {size} is not a multiple of {ranks} ranks: their "
        "shares differ by one sample (results stay right, the smaller shares wait)"
    )
    return [warning]


def _finding(key: str, found: str, expected: str, advice: str = "") -> Finding:
    text = f"found {found}, expected {expected}" + (f"; {advice}" if advice else "")
    return tuple(key.split(".")), text


def _launcher(job: Job) -> Iterator[Finding]:
    if job.launcher == "slurm" and job.where == "local":
        found = "slurm for a run on this machine"
        expected = "pytorch (several processes) or none (one, for a debugger)"
        yield _finding("launcher", found, expected, "srun needs a cluster")
    if job.launcher == "none" and job.where == "slurm":
        found = "none for a run on Slurm"
        advice = "none is one process on this machine"
        yield _finding("launcher", found, "slurm or pytorch", advice)


def _time(job: Job) -> Iterator[Finding]:
    limit, delay = job.slurm.time, job.slurm.first_delay_s
    if job.where != "slurm":
        return
    if limit < _SLURM_MINUTE_S:
        advice = "Slurm's limits are whole minutes"
        yield _finding("slurm.time", f"{limit:g}s", "at least 1m", advice)
    if limit <= delay:
        expected = f"more than slurm.signal_delay ({delay:g}s)"
        advice = "Slurm would stop the job as it starts: change one of the two"
        yield _finding("slurm.time", f"{limit:g}s", expected, advice)


def _backend(job: Job) -> Iterator[Finding]:
    backend = job.dist_params.backend
    if job.where == "slurm" and "nccl" in backend and not _asks_for_gpus(job.slurm):
        expected = "gloo, auto, or slurm.gpus_per_node"
        advice = "auto takes nccl where there are GPUs"
        found = f"{backend} without GPUs asked for"
        yield _finding("dist_params.backend", found, expected, advice)


def _asks_for_gpus(slurm: Slurm) -> bool:
    asked = {_option(key) for key in slurm.extra}
    return bool(slurm.gpus_per_node) or bool(_GPU_OPTIONS & asked)


def _batch(job: Job) -> Iterator[Finding]:
    size, ranks = job.train.global_batch_size, job.world_size
    if job.experiment is not None and size < ranks:
        found, expected = f"{size} for {ranks} ranks", "a sample for each rank at least"
        yield _finding("train.global_batch_size", found, expected, "use fewer ranks")


def _power_sgd(job: Job) -> Iterator[Finding]:
    """What was not finite once would stay in its errors for ever."""
    train = job.train
    if train.ddp.comm_hook != "powersgd":
        return
    advice = "a step that is left out would spoil all later ones"
    if train.precision == "fp16":
        found = "powersgd with train.precision fp16"
        yield _finding("train.ddp.comm_hook", found, "fp32 or bf16", advice)
    if train.not_finite == "skip":
        found = "powersgd with train.not_finite skip"
        yield _finding("train.ddp.comm_hook", found, "stop", advice)


def _average(job: Job) -> Iterator[Finding]:
    if job.train.eval_weights == "ema" and job.train.ema is None:
        advice = "there is no average without it"
        yield _finding("train.eval_weights", "ema", "train.ema, such as 0.999", advice)


def _extra(job: Job) -> Iterator[Finding]:
    for key in job.slurm.extra:
        option = _option(key)
        if option.replace("-", "_") in Slurm.model_fields:
            name = option.replace("-", "_")
            yield _finding(f"slurm.extra.{key}", f"--{option}", f"the key slurm.{name}")
        elif option in _RESERVED:
            expected = "an option that clusterddp does not set itself"
            yield _finding(f"slurm.extra.{key}", f"--{option}", expected, "remove it")


def _one_line(job: Job) -> Iterator[Finding]:
    """A line break would end the #SBATCH line, and bash would run the rest."""
    texts = {
        f"slurm.{key}": value
        for key in (*_TEXTS, "mem")
        if (value := getattr(job.slurm, key)) is not None
    }
    texts |= {f"slurm.extra.{key}": str(text) for key, text in job.slurm.extra.items()}
    for key, text in texts.items():
        if not text.isprintable():
            advice = "no line breaks, tabs or control characters"
            yield _finding(key, repr(text), "one line of text", advice)
    for key in job.slurm.extra:
        if not _OPTION_NAME.fullmatch(_option(key)):
            found, expected = repr(key), "an option's long name such as mail-type"
            yield ("slurm", "extra", key), f"found {found}, expected {expected}"


def _sweep(job: Job) -> Iterator[Finding]:
    if job.sweep is None:
        return
    for key, values in job.sweep.grid.items():
        if not values:
            yield ("sweep", "grid", key), "found no values, expected one at least"
    keys = {*job.sweep.grid, *(key for row in job.sweep.list for key in row)}
    if not keys:
        yield ("sweep",), "found neither grid nor list, expected one of them"
    for key in sorted(keys):
        section = key.partition(".")[0]
        if section not in _SWEPT:
            expected = f"a key of {', '.join(_SWEPT)}, such as params.lr"
            advice = "one array has one shape and one name"
            yield _finding("sweep", key, expected, advice)


def _option(key: str) -> str:
    return key.replace("_", "-").lstrip("-")


def _environment(job: Job) -> Iterator[Finding]:
    for name in job.slurm.env:
        if not name.isidentifier():
            expected = "a variable's name like OMP_PROC_BIND"
            yield ("slurm", "env", name), f"found {name!r}, expected {expected}"


_CHECKS: tuple[Callable[[Job], Iterator[Finding]], ...] = (
    _launcher,
    _time,
    _backend,
    _batch,
    _average,
    _power_sgd,
    _extra,
    _one_line,
    _sweep,
    _environment,
)
