"""`python -m benchmarks.start`: from the command to the first step of training.

The command line beside a bare interpreter and a bare `import torch`; a submission on
the real cluster beside bare sbatch and submitit; two ranks from their start to the
first finished step, beside torchrun and the same loop started directly, and what the
time went into.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.harness import arguments, compare, measure, record, turns
from benchmarks.jobs import write_job, write_short_job
from benchmarks.result import Result, Target
from benchmarks.scene import (
    DEADLINE_S,
    Pages,
    await_first_step,
    await_value,
    peer,
    program,
    real_cluster,
)
from clusterddp.dist.port import free_port
from tests.cluster import Cluster
from tests.runs import ROOT, clean_environ

ASKED = "How long from the command to an accepted job, and from there to a first step?"
STAGES = ("launch", "import", "rendezvous", "build", "first step", "whole")
_FROM_TO = (
    ("launch", "ranks_started", "started"),
    ("import", "started", "imported"),
    ("rendezvous", "imported", "met"),
    ("build", "met", "built"),
    ("first step", "built", "step"),
    ("whole", "ranks_started", "step"),
)


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    given = arguments(parser)
    blocks = 2 if given.quick else 5
    with record("start", ASKED, given.results) as results:
        results.append(command_line(blocks))
        results.extend(first_step(blocks))
        with real_cluster(nodes=2) as cluster:
            results.append(submission(cluster, blocks))
            results.append(on_slurm(cluster, blocks))


def time_of(*words: str | Path) -> float:
    """Give the wall time of `python ...` in ms."""
    begin = time.perf_counter()
    command = [sys.executable, *map(str, words)]
    subprocess.run(
        command, check=True, capture_output=True, cwd=ROOT, env=clean_environ()
    )
    return 1e3 * (time.perf_counter() - begin)


def command_line(blocks: int) -> Result:
    """Ask what a user waits for before anything happens."""
    dry_run = ("-m", "clusterddp.submit", ROOT / "jobs/exp.yaml", "--dry-run")
    return measure(
        "The command line",
        {
            "python -c pass": lambda: time_of("-c", "pass"),
            "submit -h": lambda: time_of("-m", "clusterddp.submit", "-h"),
            "submit --dry-run, 2 nodes": lambda: time_of(*dry_run, "--nodes", "2"),
            "status -h": lambda: time_of("-m", "clusterddp.status", "-h"),
            "import torch": lambda: time_of("-c", "import torch"),
        },
        unit="ms",
        blocks=blocks,
        seconds=15,
        baseline="python -c pass",
        targets=[
            Target("submit -h", limit=150),
            Target("submit --dry-run, 2 nodes", limit=350),
        ],
    )


def first_step(blocks: int) -> list[Result]:
    """Start two ranks on this machine in three ways."""
    found: dict[str, list[float]] = {name: [] for name in STAGES}

    def ours() -> float:
        stages = local_start()
        for name in STAGES:
            found[name].append(stages[name])
        return stages["whole"]

    whole = measure(
        "Two ranks on this machine, from their start to the first finished step",
        {
            "the loop by hand, started directly": lambda: by_hand(launch_directly),
            "the loop by hand, torchrun": lambda: by_hand(launch_torchrun),
            "ours, agent": ours,
        },
        unit="s",
        blocks=blocks,
        seconds=75,
        baseline="the loop by hand, torchrun",
        targets=[Target("ours, agent", ratio=1.0)],
    )
    asked = len(whole.blocks["ours, agent"])
    kept = {name: values[-asked:] for name, values in found.items()}
    return [whole, compare("Where ours went (agent)", kept, unit="s")]


def local_start() -> dict[str, float]:
    """Give the seconds of each stage of a run of ours on this machine."""
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        job = write_job(home, pause_s=0.0, launcher="pytorch", environ=hooks(home))
        words = ("-m", "clusterddp.submit", job, "--runs", home / "runs")
        with program(words, home):
            await_value(Pages(home).first_step, DEADLINE_S, "the first step of ours")
        return read_stages(home, next(home.glob("runs/bench/2*")))


def hooks(home: Path) -> dict[str, str]:
    """Give the variables with which ranks note their stages."""
    path = f"{ROOT}/benchmarks/stages:{ROOT}"
    return {"PYTHONPATH": path, "BENCH_STAGES": str(home / "stages")}


def read_stages(home: Path, run: Path) -> dict[str, float]:
    """Give the stages of rank 0, in seconds."""
    events = (run / "events" / "attempt-0000.jsonl").read_text().splitlines()
    at = {str(e["event"]): float(e["time"]) for e in map(json.loads, events)}
    for line in (home / "stages").read_text().splitlines():
        rank, stage, when = line.split()
        if rank == "0":
            at[stage] = float(when)
    first = Pages(home).first_step()
    at["step"] = first if first is not None else float("nan")
    return {name: at[end] - at[begin] for name, begin, end in _FROM_TO}


def by_hand(launch: Callable[[Path], Sequence[Sequence[str | Path]]]) -> float:
    """Give the seconds from the launch of the hand-written loop to its first step."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        home, began = Path(name), time.time()
        port = stack.enter_context(free_port())
        for rank, words in enumerate(launch(home)):
            environ = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
            environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            stack.enter_context(
                program(words, home, **({} if "torch" in str(words[1]) else environ))
            )
        first = await_value(Pages(home).first_step, DEADLINE_S, "a first step")
        return first - began


def launch_directly(home: Path) -> Sequence[Sequence[str | Path]]:
    """Give the commands of two ranks."""
    return [(peer("plain.py"), home, "--pause", "0")] * 2


def launch_torchrun(home: Path) -> Sequence[Sequence[str | Path]]:
    """Give the command of torchrun with two ranks."""
    options = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    return [(*options, peer("plain.py"), home, "--pause", "0")]


def submission(cluster: Cluster, blocks: int) -> Result:
    """Submit a job that waits, in three ways, and cancel it."""
    home, python = cluster.make_dir("bench-"), cluster.python_for_user()
    write_short_job(home)
    code = (
        "import submitit; e = submitit.AutoExecutor('logs');"
        "e.update_parameters(timeout_min=30,"
        "slurm_additional_parameters={'hold': True}); print(e.submit(print, 1).job_id)"
    )
    ours = ("-m", "clusterddp.submit", "job.yaml", "--new")
    commands: dict[str, tuple[str | Path, ...]] = {
        "sbatch --wrap": ("sbatch", "--parsable", "--hold", "--wrap=true"),
        "python, submitit's submit": (python, "-c", code),
        "clusterddp.submit": (python, *ours),
    }

    def ask(words: tuple[str | Path, ...]) -> float:
        begin = time.perf_counter()
        done = cluster.run(words, user=cluster.user, cwd=home)
        took = time.perf_counter() - begin
        cluster.run(["scancel", done.stdout.split()[0]], user=cluster.user)
        return 1e3 * took

    return measure(
        "Until sbatch has accepted, on the real cluster",
        {name: lambda words=words: ask(words) for name, words in commands.items()},  # type: ignore[misc]
        unit="ms",
        blocks=blocks,
        seconds=20,
        baseline="python, submitit's submit",
    )


def on_slurm(cluster: Cluster, blocks: int) -> Result:
    """Run on the cluster until the first step; give the stages."""
    found: dict[str, list[float]] = {name: [] for name in STAGES}
    for _ in turns(blocks, 40, warm_up=0):
        cluster.reset()
        home, python = cluster.make_dir("bench-"), cluster.python_for_user()
        write_job(home, pause_s=0.0, environ=hooks(home))
        words = (python, "-m", "clusterddp.submit", "job.yaml", "--new")
        done = cluster.run(words, user=cluster.user, cwd=home)
        job, run = done.stdout.split()
        await_first_step(cluster, job, Pages(home))
        for name, value in read_stages(home, Path(run)).items():
            found[name].append(value)
    cluster.reset()
    return compare("Where ours went (Slurm, srun)", found, unit="s")


if __name__ == "__main__":
    main()
