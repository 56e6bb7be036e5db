"""Stacks of all threads, told when somebody asks for them through the store.

A thread of every rank waits for the question, so a rank answers though its main thread
hangs in a collective, in a read or in a long call of C that has let go of the
interpreter. One that has not, or that stands still, is the supervisor's to look at
(`clusterddp.launch.stacks`: SIGQUIT, then /proc).
"""

import contextlib
import faulthandler
import itertools
import threading
import time
from datetime import timedelta
from pathlib import Path

from torch.distributed import Store

from clusterddp.dist import World, clone_store
from clusterddp.runs.stackfiles import TOLD, count_asked, rank_file

__all__ = ["StackTeller", "ask_for_stacks"]

_LONG = timedelta(days=365)
_LOOK_S = 1.0
_PREFIX = "stacks"


def ask_for_stacks(store: Store) -> None:
    """Ask all ranks for the stacks of their threads; any rank may, at any time."""
    store.set(f"{_PREFIX}/{store.add(f'{_PREFIX}/asked', 1) - 1}", "")


class StackTeller:
    """Writes this rank's stacks into a file whenever they are asked for."""

    def __init__(self, store: Store, world: World, directory: Path) -> None:
        """Begin to wait, in a thread; on rank 0 another one looks for the supervisor.

        Args:
            store: the store that all ranks share.
            world: this rank among the others.
            directory: where the files go.
        """
        self._path = rank_file(directory, world.rank)
        directory.mkdir(parents=True, exist_ok=True)
        self._start(self._wait, clone_store(store))
        if world.rank == 0:
            self._start(self._relay, clone_store(store), directory)

    def _start(self, target: object, *args: object) -> None:
        threading.Thread(target=target, args=args, name="stacks", daemon=True).start()  # type: ignore[arg-type]

    def _wait(self, store: Store) -> None:
        # A dead store means a dead rank 0: nobody can ask any more.
        with contextlib.suppress(RuntimeError):
            for number in itertools.count():
                store.wait([f"{_PREFIX}/{number}"], _LONG)
                self._tell()

    def _relay(self, store: Store, directory: Path) -> None:
        """Pass on what the supervisor asks: it has no torch, and so no store."""
        passed_on = 0
        with contextlib.suppress(RuntimeError):
            while True:
                time.sleep(_LOOK_S)
                for _ in range(count_asked(directory) - passed_on):
                    ask_for_stacks(store)
                    passed_on += 1

    def _tell(self) -> None:
        # A full disk must not end the thread, and there is nobody to tell of it.
        with contextlib.suppress(OSError), self._path.open("a") as file:
            faulthandler.dump_traceback(file=file, all_threads=True)
            file.write(TOLD)
