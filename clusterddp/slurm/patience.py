"""Asking Slurm again when it is busy or restarting, and at once no more when it is not.

The words are those that Slurm's programs print (src/common/slurm_errno.c of 22.05).
"""

import logging
import re
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from clusterddp.errors import SlurmError

__all__ = ["is_transient", "patiently"]

_LOG = logging.getLogger("clusterddp")
_PAUSES_S = (1, 2, 4, 8, 15, 30, 60)
_TRANSIENT = re.compile(
    r"Unable to contact slurm controller|Socket timed out|Connection refused"
    r"|Connection timed out|Connection reset|Zero Bytes were transmitted"
    r"|temporarily|try again|no answer within|in backup mode|Communication connection",
    re.IGNORECASE,
)
T = TypeVar("T")


def is_transient(message: str) -> bool:
    """Say whether an error's words mean that the same call may work soon."""
    return bool(_TRANSIENT.search(message))


def patiently(call: Callable[[], T], pauses_s: Sequence[float] = _PAUSES_S) -> T:
    """Call until it works, for two minutes while the controller is unwell.

    Raises:
        SlurmError: it still fails then, or fails in a way that waiting cannot mend.
    """
    for pause_s in pauses_s:
        try:
            return call()
        except SlurmError as error:
            if not is_transient(str(error)):
                raise
            _LOG.warning("%s; trying again in %g s", error, pause_s)
            time.sleep(pause_s)
    return call()
