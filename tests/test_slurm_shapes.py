"""Launch shapes on a real Slurm: every rank knows its place, and all meet.

The ranks are light (no torch), but world, record, addresses and cookie are the real
ones. The truth comes from elsewhere: the number of a task from `srun --label`, its node
from the address of the network namespace that it ran in.
"""

import json
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.runs import ROOT

pytestmark = pytest.mark.cluster

Line = dict[str, object]
NUMBERS = (
    *("rank", "world_size", "local_rank", "local_world_size"),
    *("node_rank", "num_nodes"),
)

# name: (options of srun, tasks, nodes); {n} is the list of the nodes' names.
STEPS = {
    "uneven": ("-N3 -n4", 4, 3),
    "cyclic": ("-N2 -n4 -m cyclic", 4, 2),
    "plane": ("-N2 -n5 -m plane=2", 5, 2),
    "arbitrary": ("-m arbitrary -n4", 4, 3),
    "sub-step": ("-N2 -n3 -w {n[1]},{n[2]}", 3, 2),
    "preserve-env": ("-E -N2 -n2", 2, 2),
    "export nothing": ("--export=NONE -N2 -n3", 3, 2),
    "one node": ("-N1 -n3", 3, 1),
    "alone": ("-N1 -n1", 1, 1),
}
PAIR = ("first of two", "second of two")


@dataclass(frozen=True)
class Captured:
    """What all steps printed, by the name of the step."""

    directory: Path

    def lines(self, step: str) -> list[tuple[int, Line]]:
        """Give each task's true number and what it said, by number."""
        file = self.directory / f"{step}.out"
        logs = "".join(log.read_text() for log in self.directory.glob("*.log"))
        assert file.exists(), logs
        text = file.read_text()
        found = re.findall(r"^ *(\d+): (\{.*\})$", text, re.MULTILINE)
        return sorted((int(task), json.loads(line)) for task, line in found)


@pytest.fixture(scope="module")
def captured(_cluster: Cluster) -> Iterator[Captured]:
    """Run all shapes, as few jobs as can be, side by side."""
    _cluster.reset()
    home = _cluster.make_dir()
    shutil.copy(ROOT / "tests" / "light_rank.py", home)
    _write_scripts(_cluster, home)
    jobs = [
        _submit(_cluster, home, "steps.sh", "--nodes=3", "--ntasks-per-node=4"),
        _submit(_cluster, home, "array.sh", "--ntasks=2", "--array=0-2"),
        _submit(_cluster, home, "requeue.sh", "--nodes=2", "--requeue"),
        _submit(
            _cluster,
            home,
            "het.sh",
            *("--nodes=2", "--ntasks=2", ":", "--nodes=1", "--ntasks=3"),
        ),
    ]
    for job in jobs:
        _cluster.wait_job(job, {"COMPLETED"}, 120)
    yield Captured(home)
    _cluster.reset()


def _submit(cluster: Cluster, home: Path, script: str, *options: str) -> str:
    named = [f"--output={home}/{script}.log", "--time=5", *options]
    return cluster.sbatch(*named, home / script, user=cluster.user, cwd=home)


def _write_scripts(cluster: Cluster, home: Path) -> None:
    rank = f"{cluster.python_for_user()} {home}/light_rank.py"
    names = [*cluster.nodes]

    def run(step: str, options: str, extra: str = "") -> str:
        words = options.format(n=names)
        before = f"SLURM_HOSTFILE={home}/hosts " if "arbitrary" in words else ""
        srun = f"{before}srun --label {words} -o '{home}/{step}.out'"
        return f"{srun} {rank} {home}/rdzv{extra}"

    hosts = "\n".join(names[i] for i in (2, 0, 0, 1))
    (home / "hosts").write_text(f"{hosts}\n")
    scripts = {
        "steps.sh": [
            *(run(name, options) for name, (options, _, _) in STEPS.items()),
            *(run(name, "--overlap -N3 -n3") + " &" for name in PAIR),
            "wait",
        ],
        "array.sh": [run("array $SLURM_ARRAY_TASK_ID", "-n2").replace("'", '"')],
        "het.sh": [run("het", "--het-group=0,1")],
        # The first life leaves its record behind, as a rank that was killed.
        "requeue.sh": [
            "if [ -z $SLURM_RESTART_COUNT ]; then",
            run("life 0", "-N2 -n2", " leave"),
            "scontrol requeue $SLURM_JOB_ID; sleep 60; fi",
            run("life 1", "-N2 -n2"),
        ],
    }
    for name, lines in scripts.items():
        (home / name).write_text("\n".join(["#!/bin/bash", *lines, ""]))


def check(lines: list[tuple[int, Line]], tasks: int, nodes: int) -> None:
    """Compare what each task took itself for with where it really was."""
    assert [task for task, _ in lines] == list(range(tasks))
    places = [str(line["address"]) for _, line in lines]
    assert len(set(places)) == nodes
    node_ranks: dict[str, object] = {}
    for task, line in lines:
        place = places[task]
        truth = {
            "rank": task,
            "world_size": tasks,
            "local_rank": places[:task].count(place),
            "local_world_size": places.count(place),
            "node_rank": node_ranks.setdefault(place, line["node_rank"]),
            "num_nodes": nodes,
        }
        assert {name: line[name] for name in NUMBERS} == truth
        assert line["met"] == list(range(tasks))
        assert line["in_step"] is True
        assert line["diagnosed"] == {n: line[n] for n in (*NUMBERS, "launcher")}
        assert line["torch"] is False
    assert sorted(node_ranks.values(), key=str) == list(range(nodes))
    assert len({line["key"] for _, line in lines}) == 1


@pytest.mark.parametrize("step", STEPS)
def test_step_meets_and_each_rank_knows_its_place(
    step: str, captured: Captured
) -> None:
    """Also where rank 0 is not on the first node."""
    _, tasks, nodes = STEPS[step]
    check(captured.lines(step), tasks, nodes)


def test_rank_zero_of_an_arbitrary_step_is_elsewhere(
    captured: Captured, cluster: Cluster
) -> None:
    """The list's first name is not its node; the doctor says what else differs."""
    first = captured.lines("arbitrary")[0][1]
    assert first["address"] == cluster.parameters.addresses[cluster.nodes[2]]
    assert first["node_rank"] == 2
    kept = captured.lines("preserve-env")[0][1]
    assert "job-differs-from-step" in str(kept["problems"])


def test_two_steps_of_one_job_meet_apart(captured: Captured) -> None:
    """At the same time, on the same nodes."""
    steps = [captured.lines(name) for name in PAIR]
    for lines in steps:
        check(lines, 3, 3)
    assert len({lines[0][1]["key"] for lines in steps}) == 2


def test_elements_of_an_array_meet_apart(captured: Captured) -> None:
    """Three at once, of which one has the array's own job id."""
    elements = [captured.lines(f"array {number}") for number in range(3)]
    for lines in elements:
        check(lines, 2, len({line["address"] for _, line in lines}))
    assert len({lines[0][1]["key"] for lines in elements}) == 3


def test_both_groups_of_a_heterogeneous_job_are_one_world(captured: Captured) -> None:
    """Numbers, nodes and key over all groups."""
    check(captured.lines("het"), 5, 3)


def test_requeued_job_is_not_led_astray_by_its_first_life(captured: Captured) -> None:
    """Same job, same step, and the old record still lies there."""
    lives = [captured.lines(f"life {number}") for number in (0, 1)]
    for lines in lives:
        check(lines, 2, 2)
    left = {path.stem for path in (captured.directory / "rdzv").glob("*.json")}
    assert left == {lives[0][0][1]["key"]}


def test_shell_of_salloc_is_alone(cluster: Cluster) -> None:
    """The doctor says so, with exit code 0, as for any batch shell."""
    python = cluster.python_for_user()
    alloc = ("salloc", "--quiet", "-N2", "-n4")
    doctor = (python, "-m", "clusterddp.doctor", "--json")
    done = cluster.run([*alloc, *doctor], user=cluster.user)
    value = json.loads(done.stdout)
    assert (value["in_step"], value["world_size"]) == (False, 1)
    assert [problem["code"] for problem in value["problems"]] == ["batch-shell"]


GLOO = """
import os
from datetime import timedelta
from clusterddp.dist import init_dist, reduce_sums, shutdown
world = init_dist(rendezvous_timeout="1m", timeout="20s")
sums = reduce_sums([world.rank + 1])
print("MET", sums, os.environ.get("GLOO_SOCKET_IFNAME"), flush=True)
shutdown()
assert "GLOO_SOCKET_IFNAME" not in os.environ
"""


def test_host_name_that_leads_to_loopback(cluster: Cluster, home: Path) -> None:
    """As on Debian: 127.0.1.1. Real ranks on two nodes, the name of each is its own.

    Left to itself gloo binds there, and its peers find connection refused.
    """
    (home / "rank.py").write_text(GLOO)
    (home / "hosts").write_text("127.0.0.1 localhost\n127.0.1.1 debian\n")
    inside = (
        f"mount --bind {home}/hosts /etc/hosts && hostname debian && "
        f"exec {sys.executable} {home}/rank.py"
    )
    command = ["srun", "-N2", "-n2", "unshare", "--uts", "--mount", "sh", "-c", inside]
    env = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = cluster.run(command, env=env, cwd=home)
    assert done.stdout.splitlines() == ["MET [3.0] eth0"] * 2
