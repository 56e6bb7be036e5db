"""What NCCL is told by the environment: limits that work, traces that survive the job.

Names as in torch's `ProcessGroupNCCL.hpp` and `FlightRecorder.hpp`; the older ones are
still read as aliases. No torch in here.
"""

import logging
from collections.abc import Mapping
from pathlib import Path

__all__ = [
    "ineffective_timeout",
    "prepare_nccl",
    "recorder_directory",
    "recorder_variables",
]

_LOG = logging.getLogger(__name__)

_ASYNC = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING")
_BLOCKING = ("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT")
_OFF = ("", "0")
# The newer name first; a torch reads the one it knows.
_FILES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_DUMP = "TORCH_NCCL_DUMP_ON_TIMEOUT"


def prepare_nccl(backend: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Give the variables to set before the group is formed; warn of what is wrong.

    Makes the directory of the traces, if there is an attempt.
    """
    if "nccl" not in backend:
        return {}
    if problem := ineffective_timeout(environ):
        _LOG.warning("%s", problem)
    directory = recorder_directory(environ)
    if directory is None:
        return {}
    directory.mkdir(parents=True, exist_ok=True)
    return recorder_variables(environ, directory)


def ineffective_timeout(environ: Mapping[str, str]) -> str:
    """Say why no timeout would end a stuck NCCL collective; empty if one would.

    Without asynchronous error handling nobody looks at the clock, unless each wait
    blocks and looks itself.
    """
    name = next((name for name in _ASYNC if environ.get(name)), "")
    if not name or environ[name] != "0":
        return ""
    if any(environ.get(name, "") not in _OFF for name in _BLOCKING):
        return ""
    return (
        f"{name}=0: with it no timeout ends a stuck NCCL collective, expected unset or "
        "1 to 3; unset it, or set TORCH_NCCL_BLOCKING_WAIT=1 as well"
    )


def recorder_directory(environ: Mapping[str, str]) -> Path | None:
    """Give where NCCL's flight recorder shall write: in the attempt, if there is one.

    torch's own default is below /tmp of each node, which is gone with the job.
    """
    run, attempt = (
        environ.get(f"CLUSTERDDP_{name}") for name in ("RUN_DIR", "ATTEMPT")
    )
    return Path(run) / "attempts" / attempt / "flight" if run and attempt else None


def recorder_variables(environ: Mapping[str, str], directory: Path) -> dict[str, str]:
    """Give the variables that make the recorder dump there; the user's own win.

    torch appends the rank to the file's name.
    """
    wanted: dict[str, str] = {}
    if not any(environ.get(name) for name in _FILES):
        wanted |= dict.fromkeys(_FILES, str(directory / "nccl_trace_rank_"))
    if not any(environ.get(name) for name in _SIZES):
        wanted |= dict.fromkeys(_SIZES, "2000")
    if not environ.get(_DUMP):
        wanted[_DUMP] = "1"
    return wanted
