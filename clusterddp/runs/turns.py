"""One submission of some content at a time: an announcement before the look for twins.

Two who look for a run of the same content at the same moment find none, and send it
twice. So each announces itself in a file of its own first, and then looks: of two at
least one sees the other. Whoever sees another withdraws, waits a moment, and looks
again: by then the other's run is there to be named.
"""

import contextlib
import os
import random
import secrets
import socket
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from clusterddp.errors import UsageError
from clusterddp.files import read_json, write_json
from clusterddp.processes import creation_time
from clusterddp.runs.claims import Claim, is_in_progress

__all__ = ["take_turn"]

_PATIENCE_S = 20.0
_PAUSES_S = (0.1, 0.5)


@contextlib.contextmanager
def take_turn(
    parent: Path,
    contents: Collection[str],
    look: Callable[[], object],
    patience_s: float = _PATIENCE_S,
) -> Iterator[None]:
    """Be the only one that submits some content below a directory.

    An announcement whose process is gone counts for nothing, so that a killed
    submission blocks nobody.

    Args:
        parent: where the runs of one name lie.
        contents: what is to be submitted.
        look: looks for a run of that content that is active, and raises if there is.
        patience_s: how long somebody else may take.

    Raises:
        UsageError: somebody else is at it, and does not come to an end.
    """
    end = time.monotonic() + patience_s
    mine = _announce(parent / ".sending", contents)
    try:
        while (other := _find_other(mine, set(contents))) is not None:
            mine.unlink()
            look()
            if time.monotonic() > end:
                raise UsageError(_name(parent, other))
            time.sleep(random.uniform(*_PAUSES_S))  # noqa: S311 - no secret
            mine = _announce(parent / ".sending", contents)
        look()
        yield
    finally:
        mine.unlink(missing_ok=True)


def _announce(place: Path, contents: Collection[str]) -> Path:
    try:
        place.mkdir(parents=True, exist_ok=True)
        path = place / f"{os.getpid()}-{secrets.token_hex(6)}.json"
        who = {"host": socket.gethostname(), "pid": os.getpid()}
        created = creation_time(os.getpid())
        write_json(path, {**who, "created": created, "contents": sorted(contents)})
    except OSError as error:
        message = (
            f"{place.parent}: runs cannot be made there ({error.strerror}); choose a "
            "place that all nodes see with --runs DIR or $CLUSTERDDP_RUNS"
        )
        raise UsageError(message) from error
    return path


def _find_other(mine: Path, contents: set[str]) -> Path | None:
    """Give somebody else's announcement of the same; those of the dead are removed."""
    for path in sorted(mine.parent.glob("*.json")):
        if path == mine:
            continue
        if not is_in_progress(Claim(path, "")):
            path.unlink(missing_ok=True)
            continue
        theirs = (read_json(path) or {}).get("contents")
        if isinstance(theirs, list) and contents.intersection(theirs):
            return path
    return None


def _name(parent: Path, other: Path) -> str:
    words = read_json(other) or {}
    return (
        f"{parent}: process {words.get('pid')} on {words.get('host')} submits the same "
        "job with the same code at this moment; see what becomes of it with "
        "clusterddp.status, or send it once more with --new"
    )
