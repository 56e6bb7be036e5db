"""A process that leaves without taking its modules down loses nothing."""

import subprocess
import sys

from tests.runs import clean_environ

PROGRAM = """
import atexit, sys, threading, time
from clusterddp.launch.leaving import leave
atexit.register(print, "at exit", end="")
thread = threading.Thread(target=lambda: (time.sleep(0.3), print("thread")))
thread.start()
print("printed")
leave(75)
"""


def test_threads_and_exit_functions_run_and_nothing_printed_is_lost() -> None:
    """In Python's own order, into a pipe, with the code that was asked for."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        check=False,
        capture_output=True,
        text=True,
        env=clean_environ({"PYTHONUNBUFFERED": ""}),
    )
    assert done.returncode == 75
    assert done.stdout == "printed\nthread\nat exit"
    assert done.stderr == ""
