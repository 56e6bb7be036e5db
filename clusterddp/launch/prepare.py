"""`python -m clusterddp.launch.prepare WORDS...`: `slurm.setup_node`, then the words.

Runs the lines of `slurm.setup_node` in one task of each node, once per attempt, while
the node's other tasks wait; then every task becomes the program that WORDS name. It
is replaced by exec, so that the ranks stay direct children of slurmstepd and get
Slurm's signals.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from clusterddp.config import read_job
from clusterddp.errors import LaunchError
from clusterddp.files import read_json, write_json
from clusterddp.launch.environment import ATTEMPT, RUN_DIR
from clusterddp.runs.directory import AttemptDirectory, RunDirectory
from clusterddp.runs.verdict import Failure, Verdict, write_verdict
from clusterddp.terminal import run_verb, talk_to_stderr

__all__ = ["main", "prepare_node"]

_POLL_S = 0.1


def main(arguments: Sequence[str]) -> int:
    """Prepare this node, then become the program; returns only when that fails."""
    talk_to_stderr()
    return run_verb(lambda: _become(list(arguments)))


def _become(words: list[str]) -> int:
    run = RunDirectory(Path(os.environ[RUN_DIR]))
    attempt = run.attempt(int(os.environ[ATTEMPT]))
    lines = read_job(run.job_file).slurm.setup_node
    prepare_node(attempt, lines, os.environ)
    os.execvp(words[0], words)  # noqa: S606 - the list comes from `step_command`


def prepare_node(
    attempt: AttemptDirectory, lines: Sequence[str], environ: Mapping[str, str]
) -> None:
    """Run the lines in the node's first task; elsewhere wait until that is done.

    Args:
        attempt: where it is noted that a node is prepared.
        lines: what bash runs, as one script that ends at the first failure.
        environ: tells which node and which task of it this is.

    Raises:
        LaunchError: a line failed, here or in the node's first task.
    """
    node = environ.get("SLURM_NODEID", "0")
    parent = attempt.path / "setup"
    parent.mkdir(exist_ok=True)
    mark = parent / f"node-{node}.json"
    if environ.get("SLURM_LOCALID", "0") != "0":
        _wait_for(mark)
        return
    done = subprocess.run(
        ["bash", "-e", "-c", "\n".join(lines)], stdin=subprocess.DEVNULL, check=False
    )
    write_json(mark, {"code": done.returncode, "host": socket.gethostname()})
    if done.returncode != 0:
        message = (
            f"slurm.setup_node: the lines left with {done.returncode} on "
            f"{socket.gethostname()}, expected 0; what they said stands above"
        )
        _leave_word(attempt, message, environ)
        raise LaunchError(message)


def _wait_for(mark: Path) -> None:
    while (told := read_json(mark)) is None:
        time.sleep(_POLL_S)
    code = told["code"]
    if code != 0:
        message = (
            f"slurm.setup_node: the lines left with {code} in this node's first task; "
            "see its log"
        )
        raise LaunchError(message)


def _leave_word(
    attempt: AttemptDirectory, message: str, environ: Mapping[str, str]
) -> None:
    rank = int(environ.get("SLURM_PROCID") or 0)
    failure = Failure("LaunchError", message, "slurm.setup_node", message)
    code, host = LaunchError.exit_code, socket.gethostname()
    write_verdict(
        attempt, Verdict(rank, "crash", code, None, host, time.time(), failure=failure)
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
