"""Command lines and scripts: pure functions of a job, compared with golden files."""

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from clusterddp.config.schema import Job
from clusterddp.errors import LaunchError
from clusterddp.launch.environment import rank_environment
from clusterddp.launch.plan import AgentPlan
from clusterddp.launch.process import RankProcess
from clusterddp.launch.rank import describe_failure
from clusterddp.launch.step import local_command, probe_command, step_command
from clusterddp.launch.submission import render_script, written_options
from clusterddp.processes import creation_time, end_process_tree, is_same_process
from clusterddp.runs.directory import RunDirectory
from tests.runs import ROOT, wait_until

GOLDEN = ROOT / "tests" / "golden"
RUN = RunDirectory(Path("/shared/my runs/digits/20260101-000000-abcd"))
PYTHON = "/opt/my env/bin/python"

SHAPES: dict[str, dict[str, object]] = {
    "plain": {},
    "gpus": {
        "slurm": {
            "nodes": 2,
            "tasks_per_node": 4,
            "gpus_per_node": 4,
            "cpus_per_task": 8,
            "mem": "64G",
            "partition": "gpu",
            "account": "lab's",
            "setup": ["module load cuda", "ulimit -c 0"],
            "srun_args": ["--mpi=pmi2", "--container-image=a b"],
            "extra": {"mail-type": "END", "exclusive": True},
            "time": "1-12:00:00",
        }
    },
    "agents": {
        "launcher": "pytorch",
        "cluster": "slurm",
        "slurm": {"nodes": 2, "tasks_per_node": 4, "cpus_per_task": 3},
    },
}
KEPT: dict[str, dict[str, object]] = {
    "kept-0": {"log": {"ranks": 0}},
    "kept-node": {"log": {"ranks": "node"}},
    "kept-of-65": {"slurm": {"nodes": 13, "tasks_per_node": 5}},
    "kept-of-64": {"slurm": {"nodes": 8, "tasks_per_node": 8}},
    "kept-all-of-65": {
        "log": {"ranks": "all"},
        "slurm": {"nodes": 13, "tasks_per_node": 5},
    },
    "kept-0-agents": {**SHAPES["agents"], "log": {"ranks": 0}},
    "kept-node-agents": {**SHAPES["agents"], "log": {"ranks": "node"}},
}


def job(shape: str) -> Job:
    values = {"name": "digits", "experiment": "a.b:build", **(SHAPES | KEPT)[shape]}
    return Job.model_validate(values)


def check_golden(name: str, text: str) -> None:
    """Compare with a file of the repository; GOLDEN=write writes it anew."""
    path = GOLDEN / name
    if os.environ.get("GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("shape", SHAPES)
def test_sbatch_script(shape: str) -> None:
    """The script that Slurm gets, to the letter."""
    check_golden(f"{shape}.sbatch", render_script(job(shape), RUN, PYTHON))


@pytest.mark.parametrize("shape", SHAPES | KEPT)
def test_step_command(shape: str) -> None:
    """The srun line that starts the ranks, one word a line."""
    words = step_command(job(shape), RUN, RUN.attempt(3), PYTHON)
    check_golden(f"{shape}.srun", "\n".join(words) + "\n")


def test_job_that_may_shrink_outlives_its_nodes() -> None:
    """Job and step get --no-kill; the step gets the nodes that are left."""
    values = {"slurm": {"nodes": 3, "tasks_per_node": 2}, "retry": {"shrink": True}}
    may_shrink = Job.model_validate({"name": "digits", "experiment": "a:b", **values})
    assert "#SBATCH --no-kill\n" in render_script(may_shrink, RUN, PYTHON)
    words = step_command(may_shrink, RUN, RUN.attempt(1), PYTHON, ("n2",), 2)
    assert {"--no-kill", "--nodes=2", "--ntasks=4", "--exclude=n2"} <= set(words)
    probe = probe_command(may_shrink, PYTHON, 2, ("n2",))
    assert {"--nodes=2", "--ntasks=2", "--exclude=n2"} <= set(probe)


def test_percent_in_a_path_is_not_a_pattern_of_srun() -> None:
    """Srun expands %j and friends in --output."""
    run = RunDirectory(Path("/a/100%j/r"))
    words = step_command(job("plain"), run, run.attempt(0), "python")
    assert "--output=/a/100%%j/r/attempts/0000/rank-%4t.log" in words


@pytest.mark.parametrize(
    ("launcher", "module"),
    [("pytorch", "clusterddp.launch.agent"), ("none", "clusterddp.train")],
)
def test_local_command(launcher: str, module: str) -> None:
    """On this machine: the same agent, or one process without one."""
    local = Job.model_validate({"name": "x", "launcher": launcher, "cluster": "local"})
    assert local_command(local, RUN, "python")[:4] == [
        *("python", "-m", module, str(RUN.path)),
    ]


@pytest.mark.parametrize("cluster", ["local", "slurm"])
@pytest.mark.parametrize("ports", [None, "20000-20100"])
def test_agent_reads_its_plan_as_it_was_written(
    cluster: str, ports: str | None
) -> None:
    """All ranks of this machine, or those of one node; every word comes back."""
    values = {
        "name": "a.b",
        "launcher": "pytorch",
        "cluster": cluster,
        "slurm": {"nodes": 2, "tasks_per_node": 3},
        "dist_params": {"port_range": ports, "rendezvous_timeout": "7m"},
        "log": {"ranks": 0},
    }
    plan = AgentPlan.of(Job.model_validate(values), RUN.path)
    assert plan.ranks == (6 if cluster == "local" else 3)
    assert (plan.wait_s, plan.ports, plan.output) == (420, ports, "0")
    assert AgentPlan.read(plan.words()) == plan


def test_agent_starts_its_ranks_without_pydantic() -> None:
    """Its import would delay every local start and restart by 0.2 s."""
    code = "import sys, clusterddp.launch.agent; sys.exit('pydantic' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_rank_environment(tmp_path: Path) -> None:
    """Code first on the path, our words set, other launchers' words gone."""
    run = RunDirectory(tmp_path / "run")
    run.path.mkdir()
    (tmp_path / "kept").mkdir()
    run.code.symlink_to(tmp_path / "kept")
    environ = {
        "PYTHONPATH": "/mine",
        "RANK": "7",
        "TORCHELASTIC_RUN_ID": "x",
        "SLURM_TRES_PER_TASK": "cpu:1",
        "SLURM_PROCID": "0",
        "KEEP": "1",
    }
    values = {"name": "x", "slurm": {"env": {"MINE": "2"}, "cpus_per_task": 3}}
    given = rank_environment(environ, Job.model_validate(values), run, run.attempt(12))
    assert given == {
        "PYTHONPATH": f"{tmp_path / 'kept'}:/mine",
        "PYTHONUNBUFFERED": "1",
        "SLURM_PROCID": "0",
        "KEEP": "1",
        "MINE": "2",
        "OMP_NUM_THREADS": "3",
        "CLUSTERDDP_RUN_DIR": str(run.path),
        "CLUSTERDDP_ATTEMPT": "0012",
        "CLUSTERDDP_LAUNCHER": "slurm",
    }


def test_written_options() -> None:
    """What the script has a line for beats SBATCH_* of the shell."""
    options = written_options(job("gpus"))
    assert {"partition", "account", "mem", "mail_type"} <= options
    assert "qos" not in options


def test_program_that_is_not_there(tmp_path: Path) -> None:
    """A missing srun is a launch error, not a traceback."""
    with pytest.raises(LaunchError, match="no-such-program: cannot be started"):
        RankProcess(["no-such-program"], {}, tmp_path / "err")


def test_ending_a_process_ends_its_children_and_nobody_else(tmp_path: Path) -> None:
    """A stubborn child is killed after the grace; a neighbour lives on."""
    mark = tmp_path / "ready"
    stubborn = f"trap '' TERM; echo $$ > {mark}; while :; do sleep 0.1; done"
    neighbour = subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1)
    process = RankProcess(
        ["bash", "-c", f"bash -c {shlex.quote(stubborn)} & wait"],
        dict(os.environ),
        tmp_path / "err",
    )
    wait_until(lambda: mark.exists() and mark.read_text())
    child = int(mark.read_text())
    born = creation_time(child)
    end_process_tree(process.pid, grace_s=0.5)
    assert process.wait(lambda: None) == -signal.SIGTERM, "nobody else took its code"
    assert not is_same_process(child, born), "the stubborn one is gone too"
    assert neighbour.poll() is None
    neighbour.communicate(b"\n")


def test_a_reused_pid_is_another_process() -> None:
    """Pid and creation time together name a process."""
    born = creation_time(os.getpid())
    assert is_same_process(os.getpid(), born)
    assert not is_same_process(os.getpid(), born - 60)
    assert not is_same_process(2**22 + 1, born)
    assert creation_time(2**22 + 1) == 0.0


def test_failure_names_the_users_frame(tmp_path: Path) -> None:
    """The innermost frame of the user's code, not of a library below it."""
    script = tmp_path / "user.py"
    script.write_text("import json\ndef f():\n    json.loads('{')\nf()\n")
    with pytest.raises(ValueError, match="Expecting") as caught:
        exec(compile(script.read_text(), str(script), "exec"), {})  # noqa: S102
    failure = describe_failure(caught.value)
    assert failure.type == "JSONDecodeError"
    assert failure.where == f"{script}:3 in f"
    assert "Traceback" in failure.traceback
