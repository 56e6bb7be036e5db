"""Chaos: runs on the real cluster, hit at random times by random causes.

`make chaos N=50` hits N times, over as many runs as that takes; every run must end
with the bits of one that nothing disturbed. Prints what was lost, how long recovery
took, and ETTR.
"""

import argparse
import json
import os
import random
import signal
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from clusterddp.files import read_json
from clusterddp.processes import is_same_process
from clusterddp.runs.directory import RunDirectory
from clusterddp.runs.facts import read_facts
from clusterddp.runs.history import newest_checkpoint
from clusterddp.runs.measures import measure_ettr
from clusterddp.slurm.hostlist import expand_hostlist
from tests.cluster import Cluster, ClusterParameters
from tests.cluster import start as start_cluster
from tests.cluster import stop as stop_cluster
from tests.runs import digest, events, kill, rank_pids, step_of, wait_until, write_job
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
    """What the hits have cost, by cause."""

    lost: dict[str, list[int]] = field(default_factory=dict)
    back: dict[str, list[float]] = field(default_factory=dict)
    ettr: list[float] = field(default_factory=list)
    wrong: int = 0

    def note(self, cause: str, lost: int, back: float) -> None:
        """Take in one hit that the run has recovered from."""
        self.lost.setdefault(cause, []).append(lost)
        self.back.setdefault(cause, []).append(back)

    @property
    def hits(self) -> int:
        """How many hits there were."""
        return sum(map(len, self.lost.values()))


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
    """Hit as often as asked; exit code 1 if a run ended with other bits."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos")
    parser.add_argument("hits", type=int, nargs="?", default=50)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", help="one cause, by a part of its name")
    given = parser.parse_args()
    slot = int(os.environ.get("CLUSTERDDP_TEST_SLOT", "2"))
    print(f"seed {given.seed}", flush=True)
    cluster = start_cluster(ClusterParameters(slot=slot))
    try:
        report = _rage(cluster, given.hits, random.Random(given.seed), given.only)  # noqa: S311
    finally:
        stop_cluster(slot)
    _print(report)
    return 1 if report.wrong else 0


def _rage(cluster: Cluster, hits: int, luck: random.Random, only: str | None) -> Report:
    report, expected = Report(), _undisturbed(cluster)
    while report.hits < hits:
        scene = _begin(cluster, luck)
        while report.hits < hits and _hit(scene, report, only):
            pass
        _wait_for_end(scene)
        found = digest(scene.run)
        report.wrong += found != expected
        report.ettr.append(measure_ettr(read_facts(scene.run), time.time()) or 0.0)
        verdict = "equal" if found == expected else "DIFFERENT"
        print(f"{scene.run.path}: bits {verdict}", flush=True)
    return report


def _wait_for_end(scene: Scene) -> None:
    wait_until(lambda: events(scene.run, "finished"), DEADLINE_S)


def _undisturbed(cluster: Cluster) -> str:
    cluster.reset()
    home = cluster.make_dir("chaos-")
    write_job(home, train={"epochs": EPOCHS})
    job, run = submit(cluster, home)
    cluster.wait_job(job, {"COMPLETED"}, DEADLINE_S)
    return digest(run)


def _begin(cluster: Cluster, luck: random.Random) -> Scene:
    cluster.reset()
    home = cluster.make_dir("chaos-")
    write_job(
        home,
        train={"epochs": EPOCHS},
        params={"sleep": 0.2},
        checkpoint={"every": "2 steps"},
        retry={
            "crashes": 1000,
            "node_failures": 1000,
            "stall_timeout": "10s",
        },
    )
    where = luck.choice(PARTITIONS)
    job, run = submit(cluster, home, f"slurm.partition={where}", step=3)
    return Scene(cluster, home, run, job, luck)


def _hit(scene: Scene, report: Report, only: str | None) -> bool:
    """Hit once at a random time and wait for a newer checkpoint; False at the end."""
    run, luck = scene.run, scene.luck
    time.sleep(luck.uniform(0, 3))
    if events(run, "finished"):
        return False
    cause = luck.choice([name for name in CAUSES if not only or only in name])
    reached, began = step_of(run), time.time()
    attempts = len(run.list_attempts())
    CAUSES[cause](scene)
    # progress.json is up to a second old: some steps more may have been finished.
    wait_until(lambda: _is_past(run, reached + MARGIN), DEADLINE_S)
    resumed = [
        int(str((read_json(one.path / "resume.json") or {}).get("step", reached)))
        for one in run.list_attempts()[attempts:]
    ]
    lost = max(0, reached - min(resumed, default=reached))
    back = time.time() - began
    report.note(cause, lost, back)
    scene.job = read_facts(run).job_id or scene.job
    print(f"  {cause}: {lost} steps lost, past step {reached} after {back:.0f} s")
    sys.stdout.flush()
    return True


def _is_past(run: RunDirectory, step: int) -> bool:
    """Say whether a checkpoint beyond a step exists, or the run has finished."""
    newest = newest_checkpoint(run)
    return bool(events(run, "finished")) or (newest is not None and newest > step)


def _print(report: Report) -> None:
    print(f"\n{'cause':32} hits  lost steps (max)  back after, s (median, max)")
    for cause, lost in sorted(report.lost.items()):
        back = report.back[cause]
        middle, longest = statistics.median(back), max(back)
        print(f"{cause:32} {len(lost):4}  {max(lost):16}  {middle:.1f}, {longest:.1f}")
    ettr = statistics.median(report.ettr)
    total = {"hits": report.hits, "runs": len(report.ettr), "wrong": report.wrong}
    print(json.dumps({**total, "median_ettr": round(ettr, 3)}))


if __name__ == "__main__":
    sys.exit(main())
