"""Chaos: runs on the real cluster, hit at random times by random causes.

`make chaos N=50` hits N times, over as many runs as that takes; every run must end
with the bits of one that nothing disturbed. Prints for each cause how many steps had
to be done again, how long it took to the next step, and the ETTR from a hit to the
next one: time in steps that stayed / all time.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.costs import (
    Hit,
    Window,
    lost_steps,
    measure_back,
    measure_windows,
    render_costs,
    steps_of_attempts,
)
from clusterddp.files import read_json
from clusterddp.processes import is_same_process
from clusterddp.runs.directory import RunDirectory
from clusterddp.runs.facts import read_facts
from clusterddp.runs.history import newest_checkpoint
from clusterddp.slurm.hold import was_not_started
from clusterddp.slurm.hostlist import expand_hostlist
from tests.cluster import Cluster, ClusterParameters
from tests.cluster import start as start_cluster
from tests.cluster import stop as stop_cluster
from tests.runs import digest, events, kill, rank_pids, wait_until, write_job
from tests.slurm_drills import preempt, submit, verb

DEADLINE_S = 300.0
EPOCHS = 10
MARGIN = 8
PARTITIONS = ("quick", "nograce", "cancel")


@dataclass
class Scene:
    """One run on the cluster, and where it started."""

    cluster: Cluster
    home: Path
    run: RunDirectory
    job: str
    luck: random.Random


@dataclass
class Report:
    """What the hits have cost."""

    hits: list[Hit] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    runs: int = 0
    wrong: int = 0
    hung: int = 0
    """Runs that did not go on within the deadline after a hit."""
    lost: int = 0
    """Steps done again in whole runs, whoever was to blame."""

    def wants(self, hits: int) -> bool:
        """Say whether there are fewer."""
        return len(self.hits) < hits


def _ranks(run: RunDirectory) -> list[int]:
    """Give the ranks' pids without srun's, which has their words in its own."""
    return [pid for pid in rank_pids(run) if _name(pid) != "srun"]


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "srun"


def _signal(number: int) -> Callable[[Scene], None]:
    def strike(scene: Scene) -> None:
        run = scene.run
        wait_until(lambda: _ranks(run) or events(run, "finished"), DEADLINE_S)
        pids = _ranks(run)
        if pids:
            kill(scene.luck.choice(pids), number)

    return strike


def _preempt(scene: Scene) -> None:
    thief = preempt(scene.cluster, scene.home, seconds=1)
    scene.cluster.wait_job(thief, {"COMPLETED"}, DEADLINE_S)


def _requeue(scene: Scene) -> None:
    words = ["scontrol", "requeue", scene.job]
    scene.cluster.run(words, user=scene.cluster.user, check=False)


def _suspend(scene: Scene) -> None:
    scene.cluster.run(["scontrol", "suspend", scene.job], check=False)
    time.sleep(7)
    scene.cluster.run(["scontrol", "resume", scene.job], check=False)


def _lose_node(scene: Scene) -> None:
    before = len(scene.run.list_attempts())
    listed = scene.cluster.show_job(scene.job).get("NodeList", "(null)")
    if listed == "(null)":
        return
    node = scene.luck.choice(expand_hostlist(listed))
    scene.cluster.node_down(node)
    end = time.monotonic() + 40
    while len(scene.run.list_attempts()) == before and time.monotonic() < end:
        time.sleep(0.5)
    scene.cluster.node_up(node, DEADLINE_S)


def _kill_supervisor(scene: Scene) -> None:
    owner = read_json(scene.run.list_attempts()[-1].owner) or {}
    pid = int(str(owner["pid"]))
    if not is_same_process(pid, float(str(owner["created"]))):
        return
    kill(pid)
    scene.cluster.wait_job(scene.job, {"FAILED", "COMPLETED"}, DEADLINE_S)
    wait_until(lambda: not rank_pids(scene.run), DEADLINE_S)
    verb(scene.cluster, scene.home, "resubmit", "--all")


CAUSES: dict[str, Callable[[Scene], None]] = {
    "kill -9 of a rank": _signal(signal.SIGKILL),
    "segmentation fault of a rank": _signal(signal.SIGSEGV),
    "stop of a rank": _signal(signal.SIGSTOP),
    "SIGTERM to a rank": _signal(signal.SIGTERM),
    "preemption": _preempt,
    "scontrol requeue": _requeue,
    "suspension": _suspend,
    "node loss": _lose_node,
    "kill -9 of the supervisor": _kill_supervisor,
}


def main() -> int:
    """Hit as often as asked; exit code 1 if a run hung or has other bits."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos")
    parser.add_argument("hits", type=int, nargs="?", default=50)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", help="one cause, by a part of its name")
    words = "no further hit after so many minutes"
    parser.add_argument("--minutes", type=float, default=float("inf"), help=words)
    given = parser.parse_args()
    slot = int(os.environ.get("CLUSTERDDP_TEST_SLOT", "2"))
    print(f"seed {given.seed}", flush=True)
    cluster = start_cluster(ClusterParameters(slot=slot))
    try:
        report = _rage(cluster, given)
    finally:
        stop_cluster(slot)
    _print(report)
    return 1 if report.wrong or report.hung else 0


def _rage(cluster: Cluster, given: argparse.Namespace) -> Report:
    luck = random.Random(given.seed)  # noqa: S311 - no secrets
    report, expected = Report(), _undisturbed(cluster)
    end = time.monotonic() + 60 * given.minutes
    while report.wants(given.hits) and report.hung == 0 and time.monotonic() < end:
        scene = _begin(cluster, luck)
        mine: list[Hit] = []
        try:
            while report.wants(given.hits - len(mine)) and time.monotonic() < end:
                hit = _hit(scene, given.only)
                if hit is None:
                    break
                mine.append(hit)
            _wait_for_end(scene)
        except AssertionError as error:
            report.hung += 1
            _keep(scene, error)
        else:
            _note(report, scene, mine, is_equal=digest(scene.run) == expected)
    return report


def _keep(scene: Scene, error: AssertionError) -> None:
    """Show a run that did not go on, and keep it: the cluster's files go with it."""
    kept = Path(tempfile.mkdtemp(prefix="chaos-"))
    shutil.copytree(scene.run.path, kept / scene.run.id, symlinks=True)
    print(f"{scene.run.id}: {error}; kept in {kept}")
    print(scene.cluster.show_job(scene.job))
    told = verb(scene.cluster, scene.home, "why", str(scene.run.path))
    print(told.out + told.err, flush=True)


def _note(report: Report, scene: Scene, hits: list[Hit], *, is_equal: bool) -> None:
    """Take in a run that has come to its end."""
    attempts = steps_of_attempts(scene.run)
    lost = lost_steps(attempts)
    report.hits += hits
    report.windows += measure_windows(read_facts(scene.run, whole=True), hits)
    report.runs += 1
    report.wrong += not is_equal
    report.lost += lost
    verdict = "equal" if is_equal else "DIFFERENT"
    spans = " ".join(f"{began}-{got}" for began, got in attempts)
    told = f"{len(hits)} hits, {lost} steps done again, bits {verdict}"
    print(f"{scene.run.id}: {told}; attempts' steps {spans}", flush=True)


def _wait_for_end(scene: Scene) -> None:
    wait_until(lambda: events(scene.run, "finished"), DEADLINE_S)


def _undisturbed(cluster: Cluster) -> str:
    cluster.reset()
    home = cluster.make_dir("chaos-")
    write_job(home, train={"epochs": EPOCHS}, log={"every": 1})
    job, run = submit(cluster, home)
    cluster.wait_job(job, {"COMPLETED"}, DEADLINE_S)
    return digest(run)


def _begin(cluster: Cluster, luck: random.Random) -> Scene:
    cluster.reset()
    home = cluster.make_dir("chaos-")
    write_job(
        home,
        train={"epochs": EPOCHS},
        params={"sleep": 0.2, "trace": True},
        checkpoint={"every": "2 steps"},
        log={"every": 1},
        retry={
            "crashes": 1000,
            "node_failures": 1000,
            "stall_timeout": "10s",
        },
    )
    where = luck.choice(PARTITIONS)
    job, run = submit(cluster, home, f"slurm.partition={where}", step=3)
    return Scene(cluster, home, run, job, luck)


def _hit(scene: Scene, only: str | None) -> Hit | None:
    """Hit once at a random time and wait for a newer checkpoint; None at the end."""
    run, luck = scene.run, scene.luck
    time.sleep(luck.uniform(0, 3))
    if events(run, "finished"):
        return None
    cause = luck.choice([name for name in CAUSES if not only or only in name])
    before = lost_steps(steps_of_attempts(run))
    print(f"  {cause}", end="", flush=True)
    began = time.time()
    CAUSES[cause](scene)
    over = time.time()
    # progress.json is up to a second old: some steps more may have been finished.
    reached = max(got for _, got in steps_of_attempts(run))
    wait_until(lambda: _is_past(scene, reached + MARGIN), DEADLINE_S)
    lost = lost_steps(steps_of_attempts(run)) - before
    scene.job = read_facts(run).job_id or scene.job
    hit = Hit(cause, began, lost, measure_back(run, began, over))
    took = "-" if hit.back_s is None else f"{hit.back_s:.1f} s"
    print(f" at step {reached}: {lost} steps lost, next step after {took}")
    sys.stdout.flush()
    return hit


def _is_past(scene: Scene, step: int) -> bool:
    """Say whether a checkpoint beyond a step exists, or the run has finished.

    A job that a node could not start is released meanwhile, as `resubmit --watch` does.
    """
    run = scene.run
    newest = newest_checkpoint(run)
    if events(run, "finished") or (newest is not None and newest > step):
        return True
    if was_not_started(scene.cluster.show_job(scene.job).get("Reason", "")):
        print(", held after a failed launch", end="")
        verb(scene.cluster, scene.home, "resubmit", "--all")
    return False


def _print(report: Report) -> None:
    table, values = render_costs(report.hits, report.windows)
    print(f"\n{table}")
    total = {
        "runs": report.runs,
        "wrong": report.wrong,
        "hung": report.hung,
        "lost_in_runs": report.lost,
    }
    print(json.dumps({**total, **values}))


if __name__ == "__main__":
    sys.exit(main())
