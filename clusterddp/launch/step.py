"""The command that starts the ranks of one attempt; pure functions of values."""

from collections.abc import Sequence

from clusterddp.config.schema import Job
from clusterddp.launch.plan import AgentPlan
from clusterddp.runs.directory import AttemptDirectory, RunDirectory

__all__ = ["local_command", "probe_command", "step_command"]


def step_command(
    job: Job,
    run: RunDirectory,
    attempt: AttemptDirectory,
    python: str,
    without: Sequence[str] = (),
    nodes: int | None = None,
) -> list[str]:
    """Give the srun command line of an attempt inside an allocation.

    From Slurm 22.05 srun does not inherit --cpus-per-task, so everything is
    repeated (srun(1)). --overlap lets an attempt start beside what the one before has
    left, such as a process that cannot die. After a restart of slurmctld it helped in
    one of two cases (22.05 answered "Requested nodes are busy" all the same); then
    `slurm.step_timeout` ends the wait. `slurm.srun_args` come last and therefore win.

    Where the job outlives a lost node, so does the step: its ranks see to it that the
    job does not stay without a supervisor.

    Args:
        job: the job.
        run: the run.
        attempt: the attempt that is to be started.
        python: the interpreter.
        without: nodes of the allocation that must not be used.
        nodes: how many nodes the ranks get now; None: as many as the job asks for.
    """
    return [
        "srun",
        *_shape(job, nodes or job.slurm.nodes),
        "--overlap",
        "--input=none",
        "--export=ALL",
        "--kill-on-bad-exit=1",
        "--mpi=none",
        *(["--no-kill"] if job.outlives_nodes else []),
        *_exclude(without),
        f"--job-name={job.name}",
        *_output(job, attempt),
        *job.slurm.srun_args,
        *_first_only(job, attempt),
        *_program(job, run, job.slurm.python or (python,)),
    ]


def probe_command(
    job: Job, python: str, nodes: int | None = None, without: Sequence[str] = ()
) -> list[str]:
    """Give the srun words that start Python once on each node, beside the ranks.

    Without --overlap a second step waits until the first has ended (measured).

    Args:
        job: the job.
        python: the interpreter.
        nodes: how many nodes the job has now; None: as many as it asked for.
        without: nodes of the allocation that must not be used.
    """
    nodes = nodes or job.slurm.nodes + job.slurm.spare_nodes
    return [
        "srun",
        f"--nodes={nodes}",
        f"--ntasks={nodes}",
        "--ntasks-per-node=1",
        "--cpus-per-task=1",
        "--overlap",
        "--input=none",
        "--export=ALL",
        "--mpi=none",
        *_exclude(without),
        *job.slurm.srun_args,
        *(job.slurm.python or (python,)),
    ]


def local_command(job: Job, run: RunDirectory, python: str) -> list[str]:
    """Give the command line that starts the ranks on this machine."""
    return _program(job, run, (python,))


def _exclude(nodes: Sequence[str]) -> list[str]:
    return [f"--exclude={','.join(nodes)}"] if nodes else []


def _shape(job: Job, nodes: int) -> list[str]:
    slurm = job.slurm
    tasks = 1 if job.launcher == "pytorch" else slurm.tasks_per_node
    cpus = slurm.cpus_per_task * slurm.tasks_per_node // tasks
    gpus = slurm.gpus_per_node
    return [
        f"--nodes={nodes}",
        f"--ntasks={nodes * tasks}",
        f"--ntasks-per-node={tasks}",
        f"--cpus-per-task={cpus}",
        *([f"--gpus-per-node={gpus}"] if gpus else []),
    ]


def _output(job: Job, attempt: AttemptDirectory) -> list[str]:
    """Give srun's words on where the tasks' output goes (srun(1), IO redirection).

    Labelled lines come whole only without --unbuffered: with it 22.05 put a label
    before every piece that a task wrote (measured). The ranks are unbuffered anyway,
    by PYTHONUNBUFFERED.
    """
    place = str(attempt.path).replace("%", "%%")
    if job.kept_output == 0:
        return ["--output=none"]
    if job.launcher == "pytorch":  # the agents see to the ranks' output
        return ["--unbuffered", f"--output={place}/agent-%4t.log"]
    if job.kept_output == "node":
        return ["--label", f"--output={place}/node-%4n.log"]
    return ["--unbuffered", f"--output={place}/rank-%4t.log"]


_FIRST_ONLY = '[ "$SLURM_PROCID" != 0 ] || exec >>"$0" 2>&1; exec "$@"'


def _first_only(job: Job, attempt: AttemptDirectory) -> list[str]:
    """Give the words that let task 0 alone keep its output.

    srun's own way, `--output=0`, would mix the task's words with srun's. The shell is
    replaced, so that the ranks stay direct children of slurmstepd.
    """
    if job.kept_output != 0:
        return []
    name = "agent-0000.log" if job.launcher == "pytorch" else "rank-0000.log"
    return ["sh", "-c", _FIRST_ONLY, str(attempt.path / name)]


def _program(job: Job, run: RunDirectory, python: Sequence[str]) -> list[str]:
    prepare = (
        [*python, "-m", "clusterddp.launch.prepare"] if job.slurm.setup_node else []
    )
    if job.launcher == "pytorch":
        plan = AgentPlan.of(job, run.path).words()
        return [*prepare, *python, "-m", "clusterddp.launch.agent", *plan]
    words = ["-m", "clusterddp.train", str(run.path), "--launcher", job.launcher]
    return [*prepare, *python, *words]
