"""Asking Slurm again when it is busy or restarting, and at once no more when it is not.

The words are those that Slurm's programs print (src/common/slurm_errno.c of 22.05).
"""

import logging
import re
import time
from collections.abc import Callable, Hashable, Sequence
from itertools import accumulate
from typing import TypeVar

from clusterddp.errors import SlurmError

__all__ = ["Backoff", "fit_pauses", "is_full", "is_transient", "patiently"]

_LOG = logging.getLogger("clusterddp")
_PAUSES_S = (1, 2, 4, 8, 15, 30, 60)
_TRANSIENT = re.compile(
    r"Unable to contact slurm controller|Socket timed out|Connection refused"
    r"|Connection timed out|Connection reset|Zero Bytes were transmitted"
    r"|temporarily|try again|no answer within|in backup mode|Communication connection",
    re.IGNORECASE,
)
# What sbatch of 22.05 says before "Job violates accounting/QOS policy" (measured):
# AssocMaxSubmitJobLimit, AssocGrpSubmitJobsLimit, QOSMaxSubmitJobPerUserLimit,
# QOSGrpSubmitJobsLimit, MaxSubmitJobsPerAccount. Sizes (QOSMaxCpuPerJobLimit,
# QOSMaxWallDurationPerJobLimit) come in the same way, and never pass.
_FULL = re.compile(r"\b(?:Assoc|QOS)?(?:Max|Grp)Submit\w*")
_SPARE_S = 20.0
_LONGEST_REST_S = 600.0
T = TypeVar("T")


def is_transient(message: str) -> bool:
    """Say whether an error's words mean that the same call may work soon."""
    return bool(_TRANSIENT.search(message))


def is_full(message: str) -> bool:
    """Say whether so many jobs are submitted that one more has to wait for an end."""
    return bool(_FULL.search(message))


def fit_pauses(
    left_s: float | None, pauses_s: Sequence[float] = _PAUSES_S
) -> tuple[float, ...]:
    """Give as many pauses as there is time for, and 20 s to spare; pure.

    Args:
        left_s: until this process ends anyway; None: nobody knows.
        pauses_s: all of them.
    """
    if left_s is None:
        return tuple(pauses_s)
    sums = accumulate(pauses_s)
    return tuple(
        p for p, total in zip(pauses_s, sums, strict=True) if total <= left_s - _SPARE_S
    )


def patiently(call: Callable[[], T], pauses_s: Sequence[float] = _PAUSES_S) -> T:
    """Call until it works, for two minutes while the controller is unwell.

    As long while there is no room for another job.

    Raises:
        SlurmError: it still fails then, or fails in a way that waiting cannot mend.
    """
    for pause_s in pauses_s:
        try:
            return call()
        except SlurmError as error:
            if not (is_transient(str(error)) or is_full(str(error))):
                raise
            _LOG.warning("%s; trying again in %g s", error, pause_s)
            time.sleep(pause_s)
    return call()


class Backoff:
    """Who rests after refusals, and how long: twice as long each time, up to 10 min."""

    def __init__(self, first_s: float) -> None:
        """Let nobody rest yet.

        Args:
            first_s: how long after the first refusal.
        """
        self._first_s = first_s
        self._times: dict[Hashable, int] = {}
        self._until: dict[Hashable, float] = {}

    def note(self, who: Hashable, now: float, *, is_refused: bool) -> None:
        """Take in how a try ended; one that was not refused makes up for all."""
        if not is_refused:
            self._times.pop(who, None)
            self._until.pop(who, None)
            return
        times = self._times.get(who, 0)
        self._times[who] = times + 1
        rest_s = self._first_s * 2.0 ** min(times, 16)
        self._until[who] = now + min(rest_s, max(_LONGEST_REST_S, self._first_s))

    def rests(self, who: Hashable, now: float) -> bool:
        """Say whether somebody should not be tried yet."""
        return now < self._until.get(who, float("-inf"))
