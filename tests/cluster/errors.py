"""What can go wrong with the cluster itself, as opposed to a job on it."""

from collections.abc import Sequence


class ClusterError(Exception):
    """The cluster cannot be started, stopped or used as asked."""


class CommandError(ClusterError):
    """A program left with a code other than 0.

    Attributes:
        returncode: The program's exit code; 128 + N when signal N ended it.
        stdout: What it wrote to standard output.
        stderr: What it wrote to standard error.
    """

    def __init__(
        self, argv: Sequence[str], returncode: int, stdout: str, stderr: str
    ) -> None:
        self.returncode = returncode
        self.stdout = stdout
        self.stderr = stderr
        super().__init__(
            f"{' '.join(argv)}: exit code {returncode}\n"
            f"--- stdout\n{stdout}\n--- stderr\n{stderr}"
        )
