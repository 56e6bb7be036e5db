"""The exceptions of clusterddp: one tree, and each class knows its exit code.

ClusterDDPError                   1  a bug, or anything without a better class
├── UsageError                    2  a command line that cannot be carried out
│   └── JobFileError              2  a job file that cannot be used
├── LaunchError                   3  the ranks could not be started
│   ├── WorldError                3  the environment does not say who this rank is
│   └── RendezvousError           3  the ranks did not meet
├── SlurmError                    4  Slurm refused, failed or did not answer
├── CollectiveError               1  the ranks lost one another while they worked
├── NumbersError                  1  NaN or Inf, or ranks whose weights differ
├── CheckpointError               5  no checkpoint could be written or read
│   └── SaveError                 5  none can be written any more
└── StoppedError                 75  stopped on request; the run can be resumed

A message has three parts: where and what; found against expected; what to do
next. `sysexits.h` calls 75 EX_TEMPFAIL: "try again later".
"""

from typing import ClassVar

__all__ = [
    "EXIT_BUG",
    "EXIT_INTERRUPTED",
    "EXIT_STOPPED",
    "CheckpointError",
    "ClusterDDPError",
    "CollectiveError",
    "JobFileError",
    "LaunchError",
    "NumbersError",
    "RendezvousError",
    "SaveError",
    "SlurmError",
    "StoppedError",
    "UsageError",
    "WorldError",
]

EXIT_BUG = 1
EXIT_STOPPED = 75
EXIT_INTERRUPTED = 130


class ClusterDDPError(Exception):
    """Anything that clusterddp raises on purpose; carries its exit code."""

    exit_code: ClassVar[int] = EXIT_BUG


class UsageError(ClusterDDPError):
    """The command line asks for something that cannot be carried out."""

    exit_code = 2


class JobFileError(UsageError):
    """The job file cannot be used; the message names file, line and key."""


class LaunchError(ClusterDDPError):
    """The ranks could not be started."""

    exit_code = 3


class WorldError(LaunchError):
    """The environment does not say consistently which rank this process is."""


class RendezvousError(LaunchError):
    """The ranks did not meet; the message names those that are missing."""


class SlurmError(ClusterDDPError):
    """A Slurm program is missing, failed, or answered something unreadable."""

    exit_code = 4


class CollectiveError(ClusterDDPError, RuntimeError):
    """A rank did not take part in a collective; names the operation and the step."""


class NumbersError(ClusterDDPError):
    """The training has left the numbers: NaN or Inf, or ranks that differ."""


class CheckpointError(ClusterDDPError):
    """A checkpoint could not be written, read or verified."""

    exit_code = 5


class SaveError(CheckpointError):
    """Saves have failed too often in a row, or can never succeed."""


class StoppedError(ClusterDDPError):
    """The ranks stopped together on request, with their state saved."""

    exit_code = EXIT_STOPPED
