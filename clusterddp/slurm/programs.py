"""Running programs: the one place where clusterddp starts Slurm's commands."""

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from clusterddp.errors import SlurmError

__all__ = ["Completed", "Runner", "run_program"]


@dataclass(frozen=True)
class Completed:
    """What a program left: its exit code and both streams."""

    code: int
    out: str
    err: str


Runner = Callable[[Sequence[str]], Completed]
"""What runs a program; tests hand in their own."""


def run_program(
    arguments: Sequence[str],
    *,
    timeout_s: float = 60.0,
    environ: Mapping[str, str] | None = None,
) -> Completed:
    """Run a program to its end; a non-zero code is the caller's to judge.

    Times come back as seconds since the epoch (SLURM_TIME_FORMAT=%s), whatever the
    site's time zone.

    Raises:
        SlurmError: the program is not there, or did not answer in time.
    """
    base = os.environ if environ is None else environ
    try:
        done = subprocess.run(
            list(arguments),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            env={**base, "SLURM_TIME_FORMAT": "%s"},
            check=False,
        )
    except FileNotFoundError as error:
        message = (
            f"{arguments[0]}: not found on this machine; run where Slurm's programs "
            "are installed, or try the job here with --launcher pytorch"
        )
        raise SlurmError(message) from error
    except subprocess.TimeoutExpired as error:
        message = (
            f"{arguments[0]}: no answer within {timeout_s:g} s; is the controller up? "
            "`scontrol ping` tells"
        )
        raise SlurmError(message) from error
    return Completed(done.returncode, done.stdout, done.stderr)
