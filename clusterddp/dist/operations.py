"""A name for each collective, so that the error of a stuck one says which it was.

gloo says "Timed out waiting 3000ms for recv operation to complete" and TCPStore names
a key; neither says of what, nor at which step.
"""

import contextlib
import re
from collections.abc import Iterator

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


@contextlib.contextmanager
def operation(name: str) -> Iterator[None]:
    """Name what the collectives inside are for, if they fail.

    Args:
        name: in the reader's words, such as "average of the gradients".

    Raises:
        CollectiveError: another rank did not come in time, or is gone; any
            other error is passed on as it is.
    """
    try:
        yield
    except CollectiveError:
        raise
    except RuntimeError as error:
        said = str(error).splitlines()[0] if str(error) else ""
        what = _what_happened(error, said)
        if not what:
            raise
        where = f" at step {_step[0]}" if _step else ""
        message = (
            f"{name}{where}: {what}, expected all ranks in the same one ({said}); "
            "the rank that is stuck or gone has the reason in its own log; if it is "
            "only slow, raise dist_params.timeout"
        )
        raise CollectiveError(message) from error


def _what_happened(error: RuntimeError, said: str) -> str:
    if _GONE.search(said):
        return "another rank is gone"
    if _LATE.search(said) or isinstance(error, dist.DistStoreError):
        return "another rank did not come within the timeout"
    return ""
