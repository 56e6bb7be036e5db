"""`python -m tests.record --slot N [CASE ...]`: real runs, kept small.

Each case is a run as it was left by a real failure on the real cluster, with what
squeue and sacct said of its job, below tests/recorded/. Tensors, pickles and
TensorBoard's files are left out; paths are made neutral.
"""

import argparse
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from clusterddp.files import read_json
from clusterddp.runs.directory import RunDirectory
from clusterddp.slurm.listing import ask_accounting, ask_queue
from clusterddp.slurm.programs import Completed, run_program
from tests.cluster import Cluster, ClusterParameters, start
from tests.runs import (
    ROOT,
    events,
    finish,
    kill,
    rank_pids,
    step_of,
    wait_until,
    write_job,
)

if TYPE_CHECKING:
    import subprocess

RECORDED = ROOT / "tests" / "recorded"
_SLOW = {"sleep": 0.25}
_KEPT = {".json", ".jsonl", ".log", ".err", ".yaml", ".out", ".sh", ".txt"}


class Scene:
    """A home directory on the cluster, where one case happens."""

    def __init__(self, cluster: Cluster) -> None:
        cluster.reset()
        self.cluster = cluster
        self.home = cluster.make_dir()

    def submit(self, *words: str, **changes: object) -> tuple[str, RunDirectory]:
        """Submit to the cluster; give the job's id and the run."""
        write_job(self.home, **changes)
        done = finish(self.start("clusterddp.submit", "job.yaml", *words))
        assert done.code == 0, done.err
        job_id, path = done.out.strip().split("\t")
        return job_id, RunDirectory(Path(path))

    def start(self, *words: str) -> "subprocess.Popen[str]":
        """Start a module as the user."""
        python = self.cluster.python_for_user()
        return self.cluster.popen(
            [python, "-m", *words],
            user=self.cluster.user,
            cwd=self.home,
            env={"PYTHONPATH": str(ROOT)},
        )

    def end(self, job_id: str, *states: str) -> None:
        """Wait until the job is in one of the states."""
        self.cluster.wait_job(job_id, set(states), 120)
        time.sleep(1)  # accounting hears of it a moment later


def finished(scene: Scene) -> RunDirectory:
    """Two nodes, nothing disturbs it."""
    job_id, run = scene.submit("--nodes", "2")
    scene.end(job_id, "COMPLETED")
    return run


def crash(scene: Scene) -> RunDirectory:
    """An exception on rank 1, again and again."""
    fault = {"fault": "exception", "rank": 1, "at": 8, "always": True}
    job_id, run = scene.submit(params=fault, retry={"crashes": 1})
    scene.end(job_id, "FAILED")
    return run


def killed_rank(scene: Scene) -> RunDirectory:
    """Kill -9 of rank 3 on the second node; restarted, finished."""
    fault = {"fault": "SIGKILL", "rank": 3, "at": 14}
    job_id, run = scene.submit("--nodes", "2", params=fault)
    scene.end(job_id, "COMPLETED")
    return run


def wrong_job(scene: Scene) -> RunDirectory:
    """An import that fails on every rank."""
    job_id, run = scene.submit(params={"build": "ImportError"})
    scene.end(job_id, "FAILED")
    return run


def preempted(scene: Scene) -> RunDirectory:
    """Preempted with grace, requeued, waiting for the thief to leave."""
    job_id, run = scene.submit("slurm.partition=quick", params=_SLOW)
    wait_until(lambda: step_of(run) >= 7)
    thief = ("--partition=high", "--nodes=4", "--exclusive", "--wrap=sleep 300")
    scene.cluster.sbatch(*thief, user=scene.cluster.user)
    wait_until(lambda: events(run, "requeue"))
    scene.end(job_id, "PENDING")
    return run


def cancelled(scene: Scene) -> RunDirectory:
    """Scancel by the user."""
    job_id, run = scene.submit(params=_SLOW)
    wait_until(lambda: step_of(run) >= 7)
    scene.cluster.run(["scancel", job_id], user=scene.cluster.user)
    scene.end(job_id, "CANCELLED")
    return run


def killed_supervisor(scene: Scene) -> RunDirectory:
    """Kill -9 of the batch task."""
    job_id, run = scene.submit(params=_SLOW)
    wait_until(lambda: step_of(run) >= 7)
    owner = read_json(run.attempt(0).owner) or {}
    scene.cluster.run(["kill", "-9", str(owner["pid"])])
    scene.end(job_id, "FAILED")
    return run


def lost_node(scene: Scene) -> RunDirectory:
    """The network of the first node goes away; nobody could write a word."""
    job_id, run = scene.submit("--nodes", "2", params=_SLOW)
    wait_until(lambda: step_of(run) >= 7)
    owner = read_json(run.attempt(0).owner) or {}
    scene.cluster.node_down(str(owner["host"]))
    scene.end(job_id, "PENDING", "NODE_FAIL", "REQUEUED")
    return run


def died_before_supervisor(scene: Scene) -> RunDirectory:
    """A setup line that ends the batch script."""
    job_id, run = scene.submit("slurm.setup=[echo module load failed, exit 7]")
    scene.end(job_id, "FAILED")
    return run


def pending(scene: Scene) -> RunDirectory:
    """More nodes are busy than are left."""
    blocker = ("--nodes=3", "--exclusive", "--time=5", "--wrap=sleep 300")
    scene.cluster.sbatch(*blocker, user=scene.cluster.user)
    job_id, run = scene.submit("--nodes", "2")
    wait_until(lambda: scene.cluster.show_job(job_id)["Reason"] == "Resources")
    time.sleep(3)
    return run


def running(scene: Scene) -> RunDirectory:
    """In the middle of it."""
    _, run = scene.submit("--nodes", "2", params=_SLOW)
    wait_until(lambda: step_of(run) >= 12)
    return run


def interrupted(scene: Scene) -> RunDirectory:
    """Ctrl-C of a run on the submitting machine."""
    write_job(scene.home, params=_SLOW)
    words = ("clusterddp.submit", "job.yaml", "--launcher", "pytorch")
    process = scene.start(*words)
    link = scene.home / "runs/toy/latest"
    wait_until(link.exists)
    run = RunDirectory(link.resolve())
    wait_until(lambda: step_of(run) >= 7)
    process.send_signal(signal.SIGINT)
    finish(process)
    return run


def time_limit(scene: Scene) -> RunDirectory:
    """One minute is too short; the second attempt finishes."""
    limits = ("slurm.time=1m", "slurm.signal_delay=50s")
    job_id, run = scene.submit(*limits, params={"first_sleep": 2.5})
    wait_until(lambda: len(run.list_attempts()) == 2)
    scene.end(job_id, "COMPLETED")
    return run


def stalled(scene: Scene) -> RunDirectory:
    """SIGSTOP of rank 3: silent until the supervisor ends the step; no second try."""
    fault = {"fault": "SIGSTOP", "rank": 3, "at": 7, "always": True}
    retry = {"stall_timeout": "4s", "crashes": 0}
    job_id, run = scene.submit("--nodes", "2", params=fault, retry=retry)
    scene.end(job_id, "FAILED")
    return run


def out_of_memory(scene: Scene) -> RunDirectory:
    """More memory than there is, before the first step."""
    fault = {"fault": "memory", "at": 1, "always": True}
    job_id, run = scene.submit(params=fault)
    scene.end(job_id, "FAILED")
    return run


def lost_peer(scene: Scene) -> RunDirectory:
    """The network of the second node goes away; the supervisor excludes it."""
    job_id, run = scene.submit("--nodes", "2", params=_SLOW)
    wait_until(lambda: step_of(run) >= 7)
    owner = read_json(run.attempt(0).owner) or {}
    others = [node for node in scene.cluster.nodes[:2] if node != owner["host"]]
    scene.cluster.node_down(others[0])
    wait_until(lambda: events(run, "attempt_ended"))
    scene.end(job_id, "PENDING", "RUNNING")
    return run


def requeued(scene: Scene) -> RunDirectory:
    """`scontrol requeue` by the user."""
    job_id, run = scene.submit(params=_SLOW)
    wait_until(lambda: step_of(run) >= 7)
    scene.cluster.run(["scontrol", "requeue", job_id], user=scene.cluster.user)
    wait_until(lambda: events(run, "attempt_ended"))
    scene.end(job_id, "PENDING")
    return run


def signalled(scene: Scene) -> RunDirectory:
    """A signal to one rank that nobody claims; the run goes on in its job."""
    job_id, run = scene.submit(params=_SLOW)
    wait_until(lambda: step_of(run) >= 7)
    kill(rank_pids(run)[0], signal.SIGUSR1)
    scene.end(job_id, "COMPLETED")
    return run


CASES: tuple[Callable[[Scene], RunDirectory], ...] = (
    finished,
    crash,
    killed_rank,
    wrong_job,
    preempted,
    cancelled,
    killed_supervisor,
    died_before_supervisor,
    pending,
    running,
    interrupted,
    lost_node,
    time_limit,
    stalled,
    out_of_memory,
    lost_peer,
    requeued,
    signalled,
)


def keep(scene: Scene, run: RunDirectory, name: str) -> None:
    """Copy what is small and say what Slurm said, with neutral paths."""
    target = RECORDED / name
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    now = time.time()
    said = _ask_slurm(scene, run)
    texts = {
        str(path.relative_to(run.path)): path.read_text(errors="replace")
        for path in run.path.rglob("*")
        if path.is_file() and path.suffix in _KEPT and not _is_big(path, run)
    }
    # Git keeps neither empty directories nor times.
    saved = {path.name: path.stat().st_mtime for path in run.checkpoints.iterdir()}
    about = {"now": now, "id": run.id, "checkpoints": saved, **said}
    texts["recorded.json"] = json.dumps(about, indent=1) + "\n"
    for place, text in texts.items():
        path = target / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(neutral(text, scene))


def _is_big(path: Path, run: RunDirectory) -> bool:
    return bool({"tensorboard", "checkpoints"} & set(path.relative_to(run.path).parts))


def _ask_slurm(scene: Scene, run: RunDirectory) -> dict[str, str]:
    jobs = {str(one.values["job"]) for one in events(run, "submitted")}
    ids = sorted(jobs - {"None"})
    said: dict[str, str] = {}

    def ask(words: object) -> Completed:
        listed = list(words)  # type: ignore[call-overload]
        done = run_program(listed, environ={**os.environ, **scene.cluster.env})
        said[str(listed[0])] = done.out
        return done

    ask_queue(ids, ask)
    ask_accounting(ids, ask)
    return said


def neutral(text: str, scene: Scene) -> str:
    """Give a text without the places and names of whoever recorded it."""
    slot = scene.cluster.parameters.slot
    python = str(scene.cluster.python_for_user())
    pairs = (
        (str(scene.home), "/shared/ada"),
        (str(scene.cluster.shared_dir), "/shared"),
        (python, "/shared/venv/bin/python"),
        (str(Path(python).parent.parent), "/shared/venv"),
        (sys.prefix, "/shared/venv"),
        (str(ROOT), "/shared/project"),
        (os.uname().nodename, "login"),
        (scene.cluster.user, "ada"),
        (f"k{slot}n", "n"),
    )
    for old, new in pairs:
        text = text.replace(old, new)
    return text


def main() -> None:
    """Record the cases that are named, or all."""
    parser = argparse.ArgumentParser(prog="tests.record", description=__doc__)
    parser.add_argument("--slot", type=int, required=True)
    parser.add_argument("cases", nargs="*")
    given = parser.parse_args()
    cluster = start(ClusterParameters(slot=given.slot))
    for case in CASES:
        if not given.cases or case.__name__ in given.cases:
            scene = Scene(cluster)
            keep(scene, case(scene), case.__name__)
            print(case.__name__, flush=True)  # noqa: T201
    cluster.reset()


if __name__ == "__main__":
    main()
