"""What Slurm says and how it is read; what leaks into a job and how it is kept out."""

import subprocess
import sys
from collections.abc import Sequence

import pytest

from clusterddp.errors import SlurmError
from clusterddp.slurm.allocation import Allocation, current_allocation
from clusterddp.slurm.environment import clean_environment, job_address
from clusterddp.slurm.jobs import JobInfo, Phase, parse_job, phase_of, query_job
from clusterddp.slurm.programs import Completed, run_program

# One line of `scontrol --oneliner show job`, Slurm 22.05, shortened.
RUNNING = (
    "JobId=7 JobName=toy UserId=drill(995) Priority=1 Requeue=1 Restarts=2 "
    "JobState=RUNNING Reason=None Dependency=(null) EndTime=1796064650 "
    "PreemptTime=None NodeList=n[1-2] BatchHost=n1 Comment=JobState=FAKE"
)


@pytest.mark.parametrize(
    ("state", "phase"),
    [
        ("PENDING", Phase.WAITING),
        ("REQUEUE_HOLD", Phase.WAITING),
        ("RUNNING", Phase.RUNNING),
        ("COMPLETING", Phase.RUNNING),
        ("SUSPENDED", Phase.RUNNING),
        ("CONFIGURING", Phase.RUNNING),
        ("COMPLETED", Phase.OVER),
        ("CANCELLED by 0", Phase.OVER),
        ("CANCELLED+", Phase.OVER),
        ("NODE_FAIL", Phase.OVER),
        ("OUT_OF_MEMORY", Phase.OVER),
        ("POWERED_BY_STEAM", Phase.UNKNOWN),
        ("", Phase.UNKNOWN),
    ],
)
def test_phases(state: str, phase: Phase) -> None:
    """Every state has one meaning; a new one is unknown, never finished."""
    assert phase_of(state) is phase


def test_job_record() -> None:
    """The first JobState counts; `None` is no time."""
    assert parse_job(RUNNING) == JobInfo(
        state="RUNNING",
        reason="None",
        preempt_time=None,
        end_time=1796064650.0,
        restarts=2,
        may_requeue=True,
        nodes="n[1-2]",
    )
    preempted = RUNNING.replace("PreemptTime=None", "PreemptTime=1796064600")
    assert parse_job(preempted).preempt_time == 1796064600.0
    assert not parse_job(RUNNING.replace("Requeue=1", "Requeue=0")).may_requeue
    assert parse_job(RUNNING.replace("1796064650", "Unknown")).end_time is None


def test_unreadable_record() -> None:
    """Text without a state is an error, not a finished job."""
    with pytest.raises(SlurmError, match="no JobState in 'garbage'"):
        parse_job("garbage")


class Recorder:
    """Answers like Slurm's programs and remembers what was asked."""

    def __init__(self, *answers: Completed) -> None:
        self.answers = list(answers)
        self.asked: list[list[str]] = []

    def __call__(self, arguments: Sequence[str]) -> Completed:
        self.asked.append(list(arguments))
        return self.answers.pop(0)


UNKNOWN = Completed(1, "", "slurm_load_jobs error: Invalid job id specified")


def test_accounting_is_asked_when_the_controller_has_forgotten() -> None:
    """Scontrol first, then sacct; neither: nobody knows."""
    run = Recorder(UNKNOWN, Completed(0, "COMPLETED|0:0\n", ""))
    assert query_job("7", run) == JobInfo("COMPLETED")
    assert [words[0] for words in run.asked] == ["scontrol", "sacct"]
    assert query_job("7", Recorder(UNKNOWN, Completed(0, "", ""))) is None


def test_a_controller_in_trouble_is_not_an_unknown_job() -> None:
    """An error of another kind is told as it is."""
    run = Recorder(Completed(1, "", "Unable to contact slurm controller"))
    with pytest.raises(SlurmError, match="Unable to contact slurm controller"):
        query_job("7", run)


@pytest.mark.parametrize("state", ["COMPLETING", "PENDING", "CANCELLED", "SUSPENDED"])
def test_only_a_running_job_is_requeued(state: str) -> None:
    """After scancel, `scontrol requeue` would succeed; it is not even asked."""
    run = Recorder(Completed(0, RUNNING.replace("RUNNING", state), ""))
    with pytest.raises(SlurmError, match=f"found {state}, expected RUNNING"):
        Allocation("7", run, restarts=2).requeue()
    assert len(run.asked) == 1


def test_requeue_addresses_one_element() -> None:
    """An element is `<array>_<task>`; its own id may be the whole array's."""
    run = Recorder(Completed(0, RUNNING, ""), Completed(0, "", ""))
    Allocation("7_3", run, restarts=2).requeue()
    assert run.asked[-1] == ["scontrol", "requeue", "7_3"]
    refused = Recorder(Completed(0, RUNNING, ""), Completed(1, "", "Access denied"))
    with pytest.raises(SlurmError, match="Access denied"):
        Allocation("7", refused, restarts=2).requeue()


def test_forgotten_job() -> None:
    """A job that Slurm does not know is told as such."""
    run = Recorder(UNKNOWN, Completed(0, "", ""))
    with pytest.raises(SlurmError, match="job 7: Slurm does not know it"):
        Allocation("7", run).query()


@pytest.mark.parametrize(
    ("environ", "address"),
    [
        ({}, None),
        ({"SLURM_JOB_ID": "12"}, "12"),
        (
            {
                "SLURM_JOB_ID": "13",
                "SLURM_ARRAY_JOB_ID": "7",
                "SLURM_ARRAY_TASK_ID": "2",
            },
            "7_2",
        ),
    ],
)
def test_job_address(environ: dict[str, str], address: str | None) -> None:
    """How this process's job is named."""
    assert job_address(environ) == address
    found = current_allocation(environ)
    assert (found.address if found else None) == address


def test_environment_outside_a_job() -> None:
    """Options that the script writes go; the site's other defaults stay."""
    environ = {
        "PATH": "/bin",
        "SBATCH_ACCOUNT": "lab",
        "SBATCH_PARTITION": "long",
        "SBATCH_TIMELIMIT": "7",
        "SBATCH_SIGNAL": "B:USR1",
        "SLURM_CONF": "/etc/slurm.conf",
        "RANK": "3",
        "MASTER_PORT": "1",
        "TORCHELASTIC_RUN_ID": "x",
        "CLUSTERDDP_ATTEMPT": "0001",
        "CLUSTERDDP_RUNS": "/runs",
    }
    clean = clean_environment(environ, frozenset({"partition"}))
    assert clean.variables == {
        "PATH": "/bin",
        "SBATCH_ACCOUNT": "lab",
        "SLURM_CONF": "/etc/slurm.conf",
        "CLUSTERDDP_RUNS": "/runs",
    }
    assert "SBATCH_PARTITION" in clean.dropped


def test_environment_inside_a_job() -> None:
    """Nothing of the outer job reaches the new one; the cluster's address does."""
    environ = {
        "SLURM_JOB_ID": "3",
        "SLURM_CPU_BIND": "x",
        "SRUN_DEBUG": "3",
        "PMIX_RANK": "0",
        "SBATCH_ACCOUNT": "lab",
        "SLURM_CONF": "/etc/slurm.conf",
        "SLURM_CLUSTERS": "big",
        "HOME": "/h",
    }
    clean = clean_environment(environ, frozenset())
    assert clean.variables == {
        "SLURM_CONF": "/etc/slurm.conf",
        "SLURM_CLUSTERS": "big",
        "HOME": "/h",
    }


def test_programs_that_are_missing_or_hang() -> None:
    """Both end in a message, within the timeout."""
    with pytest.raises(SlurmError, match="not found on this machine"):
        run_program(["no-such-program"])
    with pytest.raises(SlurmError, match="no answer within 0.2 s"):
        run_program(["sleep", "60"], timeout_s=0.2)


def test_programs_keep_both_streams_and_ask_for_epoch_seconds() -> None:
    """stdout, stderr, code; SLURM_TIME_FORMAT=%s."""
    code = (
        "import os, sys; print(os.environ['SLURM_TIME_FORMAT']); "
        "sys.stderr.write('e'); sys.exit(3)"
    )
    assert run_program([sys.executable, "-c", code]) == Completed(3, "%s\n", "e")
    assert subprocess.DEVNULL
