"""A name for each collective, so that the error of a stuck one says which it was.

gloo says "Timed out waiting 3000ms for recv operation to complete" and TCPStore names
a key; neither says of what, nor at which step.
"""

import re
from types import TracebackType

import torch.distributed as dist

from clusterddp.errors import CollectiveError

__all__ = ["note_step", "operation"]

# The words of gloo and of TCPStore for "too late" and for "gone" (torch 2.13).
_LATE = re.compile(r"timed out|timeout", re.IGNORECASE)
_GONE = re.compile(
    r"closed by (?:remote )?peer|connection reset|broken pipe|recvValue failed"
    r"|connection refused|sendBytes failed",
    re.IGNORECASE,
)
_step: list[int] = []


def note_step(step: int | None) -> None:
    """Remember the step that is being made, for the message; None outside of one."""
    _step[:] = [] if step is None else [step]


class operation:  # noqa: N801 - a context manager, called like a function
    """Name what the collectives inside are for, if they fail.

    Raises:
        CollectiveError: another rank did not come in time, or is gone; any
            other error is passed on as it is.
    """

    def __init__(self, name: str) -> None:
        """Name it.

        Args:
            name: in the reader's words, such as "average of the gradients".
        """
        self._name = name

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not isinstance(error, RuntimeError) or isinstance(error, CollectiveError):
            return
        said = str(error).splitlines()[0] if str(error) else ""
        what = _what_happened(error, said)
        if not what:
            return
        where = f" at step {_step[0]}" if _step else ""
        raise CollectiveError(
            f"{self._name}{where}: {what}, expected all ranks in the same one "
            f"({said}); the rank that is stuck or gone has the reason in its own log; "
            "if it is only slow, raise dist_params.timeout"
        ) from error


def _what_happened(error: RuntimeError, said: str) -> str:
    if _GONE.search(said):
        return "another rank is gone"
    if _LATE.search(said) or isinstance(error, dist.DistStoreError):
        return "another rank did not come within the timeout"
    return ""
