"""Who is named for the end of an attempt."""

import pytest

from clusterddp.runs.blame import find_blame
from clusterddp.runs.verdict import Ending, Failure, Verdict

ECHOES = [
    "[...pair.cc:537] Read error [127.0.0.1]:22147: Connection reset by peer",
    "Connection closed by peer [10.77.0.11]:4012",
    "failed to recv, got 0 bytes ... recvValue failed on SocketImpl",
]
SAID = (
    "srun: error: n2: task 2: Exited with exit code 1\n"
    "srun: launch/slurm: _step_signal: Terminating StepId=11.0\n"
    "srun: error: n2: task 3: Killed\n"
    "srun: error: n1: tasks 0-1: Exited with exit code 1\n"
)


def verdict(rank: int, message: str | None = None, **changes: object) -> Verdict:
    failure = None
    if message is not None:
        failure = Failure("RuntimeError", message, "user.py:3 in loss", "Traceback ...")
    values = {"code": 1, "step": 3, "host": f"n{rank}", "time": 1.0, **changes}
    return Verdict(rank, "crash", failure=failure, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize("message", ECHOES)
def test_the_echo_of_a_dead_rank_is_not_the_cause(message: str) -> None:
    """Rank 0 notices first that it lost another; the other is the one to name."""
    echo = verdict(0, message)
    told = find_blame(Ending(1, (echo, verdict(1, "out of range"))))
    assert (
        told.text == "rank 1 on n1: RuntimeError: out of range\n  at user.py:3 in loss"
    )
    assert told.key == "RuntimeError at user.py:3 in loss"
    killed = verdict(2, signal="SIGKILL", code=-9)
    assert (
        find_blame(Ending(1, (echo, killed))).text == "rank 2 on n2: killed by SIGKILL"
    )
    alone = find_blame(Ending(1, (echo,)))
    assert alone.text == "rank 0 on n0 lost another, which left no word"


def test_srun_names_the_rank_that_could_not_speak() -> None:
    """Ranks 0 to 2 left verdicts of their loss, so the task to name is 3."""
    echoes = tuple(verdict(rank, ECHOES[0]) for rank in range(3))
    blame = find_blame(Ending(137, echoes, said=SAID))
    assert (blame.rank, blame.text) == (3, "rank 3 on n2: Killed")


def test_exit_code_of_a_silent_rank() -> None:
    """os._exit(3) leaves no verdict under srun; under the agent it has a code."""
    said = "srun: error: n1: task 0: Exited with exit code 3"
    assert find_blame(Ending(3, said=said)).text == (
        "rank 0 on n1: Exited with exit code 3"
    )
    agents = find_blame(Ending(1, (verdict(0, code=3),)))
    assert (agents.text, agents.key) == ("rank 0 on n0: left with 3", "left with 3")


def test_a_launcher_that_started_nothing() -> None:
    """Srun's own words, when no rank is known."""
    said = "srun: error: Unable to create step: Invalid account\n"
    blame = find_blame(Ending(1, said=said))
    assert blame.rank is None
    assert "the launcher left with 1: srun: error: Unable to create" in blame.text
