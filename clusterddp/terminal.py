"""The boundary to the person at the terminal: stdout is data, stderr is talk."""

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from clusterddp.errors import EXIT_INTERRUPTED, ClusterDDPError, UsageError

__all__ = ["run_verb", "talk_to", "talk_to_stderr"]

_LOG = logging.getLogger("clusterddp")


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to what sys.stderr is now, so that a live display can redirect it."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def talk_to_stderr() -> None:
    """Let the package's words appear on stderr, once however often it is called."""
    if not any(isinstance(handler, _Stderr) for handler in _LOG.handlers):
        handler = _Stderr()
        handler.setFormatter(logging.Formatter("clusterddp: %(message)s"))
        _LOG.addHandler(handler)
    _LOG.setLevel(logging.INFO)
    _LOG.propagate = False


@contextlib.contextmanager
def talk_to(path: Path) -> Iterator[None]:
    """Let the package's words go into a file as well, with the time of each."""
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    _LOG.addHandler(handler)
    try:
        yield
    finally:
        _LOG.removeHandler(handler)
        handler.close()


def run_verb(verb: Callable[[], int]) -> int:
    """Run a verb and give its exit code; a known error is a message, no traceback."""
    try:
        return _flushed(verb())
    except ClusterDDPError as error:
        _LOG.error("%s", error)
        return error.exit_code
    except KeyboardInterrupt:
        _LOG.warning("interrupted")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader (`| head`) has seen enough. Python would complain once more when
        # it flushes stdout at exit, so stdout leads nowhere from here on.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.filename is None:
            raise  # no file's trouble: a bug, and its traceback is needed
        _LOG.error(
            "%s: found %s, expected to be able to use it; see who owns it and what "
            "it is with ls -ld",
            *(error.filename, error.strerror),
        )
        return UsageError.exit_code


def _flushed(code: int) -> int:
    """Give the code back once stdout has taken everything."""
    sys.stdout.flush()
    return code
