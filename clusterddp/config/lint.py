"""What works but will hurt: known traps of a job file, each with its rule; pure."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from clusterddp.config.checks import warn_about
from clusterddp.config.room import EARLY_S, judge_room
from clusterddp.config.schema import Job

__all__ = ["RULES", "Advice", "Site", "lint_job"]

_SAVE_S = 30.0
_SUPERVISOR_MB = 500
_UNITS = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0 * 1024}
_SPARE_MB = 5 * 1024


@dataclass(frozen=True)
class Site:
    """What is known of the place; None is "not known" everywhere.

    Attributes:
        kill_wait_s: Slurm's KillWait: from SIGTERM to SIGKILL.
        free_mb: free space where runs lie, in MiB.
        start_s: what earlier runs of the name needed until their first step.
        interval_s: the time between two of their saves.
    """

    kill_wait_s: float | None = None
    free_mb: float | None = None
    start_s: float | None = None
    interval_s: float | None = None


@dataclass(frozen=True)
class Advice:
    """One finding: its rule, the key, what was found, and what to do."""

    rule: str
    key: str
    text: str


def lint_job(job: Job, site: Site) -> list[Advice]:
    """Give everything that a colleague would point at; pure."""
    return [
        Advice(rule, key, text)
        for rule, (_, check) in RULES.items()
        for key, text in check(job, site)
    ]


Found = Iterator[tuple[str, str]]


def _say(found: str, expected: str, advice: str) -> str:
    return f"found {found}, expected {expected}: {advice}"


def _signal_delay(job: Job, _: Site) -> Found:
    limit, delay = job.slurm.time, job.slurm.first_delay_s
    if job.where == "slurm" and limit < 2 * (delay + EARLY_S):
        found, expected = f"{delay:g}s of a limit of {limit:g}s", "less than half of it"
        advice = "Slurm may send the signal 60 s early (sbatch(1)); raise slurm.time"
        yield "slurm.signal_delay", _say(found, expected, advice)
    if job.where == "slurm" and delay < _SAVE_S:
        advice = "two steps and a save must fit in; raise it"
        expected = f"{_SAVE_S:g}s at least"
        yield "slurm.signal_delay", _say(f"{delay:g}s", expected, advice)


def _kill_wait(job: Job, site: Site) -> Found:
    wait = site.kill_wait_s
    if job.where == "slurm" and wait is not None and wait < _SAVE_S:
        found = f"KillWait={wait:g} in slurm.conf"
        advice = "after scancel the ranks have only that long; use clusterddp.cancel"
        yield "site", _say(found, f"{_SAVE_S:g} for a save", advice)


def _per_task_gpus(job: Job, _: Site) -> Found:
    for key in job.slurm.extra:
        if key.replace("_", "-").lstrip("-") == "gpus-per-task":
            advice = "each task would see one device only, and lose its peers"
            text = _say("gpus-per-task", "slurm.gpus_per_node", advice)
            yield f"slurm.extra.{key}", text


def _cpus(job: Job, _: Site) -> Found:
    cpus, workers = job.slurm.cpus_per_task, job.train.workers
    if job.experiment is not None and workers >= cpus:
        found = f"{cpus} for a rank with {workers} loader processes"
        advice = "they share its cores; raise it, or lower train.workers"
        yield "slurm.cpus_per_task", _say(found, str(workers + 1), advice)


def _memory(job: Job, _: Site) -> Found:
    mem, ranks = _megabytes(job.slurm.mem), job.slurm.tasks_per_node
    if mem is not None and 0 < mem < _SUPERVISOR_MB * (1 + ranks):
        found = f"{job.slurm.mem} for {ranks} ranks"
        expected = f"{_SUPERVISOR_MB} MiB for each and for the supervisor"
        advice = "it shares the first node's limit with the ranks; raise it"
        yield "slurm.mem", _say(found, expected, advice)


def _megabytes(text: str | None) -> float | None:
    if not text:
        return None
    number, unit = (text[:-1], text[-1].upper()) if text[-1].isalpha() else (text, "M")
    return float(number) * _UNITS[unit] if number.isdigit() and unit in _UNITS else None


def _port(job: Job, _: Site) -> Found:
    for name in ("MASTER_PORT", "MASTER_ADDR"):
        if name in job.slurm.env:
            advice = "two jobs would meet there; rank 0 publishes its own, remove it"
            text = _say(repr(job.slurm.env[name]), "none", advice)
            yield f"slurm.env.{name}", text


def _batch(job: Job, _: Site) -> Found:
    for warning in warn_about(job):
        yield "train.global_batch_size", warning


def _disk(job: Job, site: Site) -> Found:
    if site.free_mb is not None and site.free_mb < _SPARE_MB:
        found = f"{site.free_mb / 1024:.1f} GiB free"
        expected = f"room for {job.checkpoint.keep + 1} checkpoints"
        advice = "free some, or choose another place with --runs"
        yield "runs", _say(found, expected, advice)


def _room(job: Job, site: Site) -> Found:
    text = judge_room(job, site.start_s, site.interval_s)
    if text is not None:
        yield "slurm.time", text


RULES: dict[str, tuple[str, Callable[[Job, Site], Found]]] = {
    "CD001": ("the warning before the time limit against the limit", _signal_delay),
    "CD002": ("Slurm's KillWait against the time of a save", _kill_wait),
    "CD003": ("GPUs bound to single tasks", _per_task_gpus),
    "CD004": ("cores of a rank against its loader processes", _cpus),
    "CD005": ("the supervisor shares the first node's memory limit", _memory),
    "CD006": ("a fixed port or address", _port),
    "CD007": ("the batch size against the world", _batch),
    "CD008": ("spare disk where runs lie", _disk),
    "CD011": ("the time limit against a start and a checkpoint", _room),
}
"""By rule: what it looks at, and how."""
