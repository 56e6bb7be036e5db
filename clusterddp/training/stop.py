"""Stopping together: a signal to any rank, at any time, stops all at one step.

Nothing is paid per step until somebody asks. A Python handler cannot do it: it
does not run while the main thread waits in a collective (measured on gloo: 7 s
late, when the collective timed out). So

1. the C-level handler writes the signal's number to a descriptor (`set_wakeup_fd`);
   a thread reads it and puts a request into the store;
2. a thread of every rank waits in the store for that request; when it comes, it
   tells its main thread, and announces which step that one has begun;
3. from then on each rank asks the store at every step boundary; once all have
   announced, rank 0 names the step after its current one.

Nobody can have passed that step, because every step ends in an all-reduce to
which rank 0 has not contributed yet; and everybody will look before passing it.
On GPUs that holds for the devices, while main threads run ahead of them: so rank 0
takes the furthest announced step, if that is later, and from the request on each
rank waits for its device at the boundary.
"""

import contextlib
import itertools
import signal
import socket
import threading
from collections.abc import Callable
from datetime import timedelta
from types import FrameType, TracebackType
from typing import final

import torch
from torch.distributed import Store

from clusterddp.dist import World, clone_store

__all__ = ["StopSignal"]

_SIGNALS = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGHUP,
)
_END = "end"
_JOIN_S = 5.0
_LONG = timedelta(days=365)
_USES = itertools.count()


@final
class StopSignal:
    """Turns stop signals into one step at which all ranks stop.

    Two phases, so that a signal during the start is not lost: `install` notes
    signals from the first moment on; `connect` tells the others, once there is a
    store. SIGCONT is never a stop. Signals after the first change nothing.

    A program that is over when the training is should never `close` it: a late
    signal would then kill a rank that has everything saved.

    Example:
        with StopSignal() as stop:
            world = init_dist()
            stop.connect(default_store(), world)
            while step < last and not stop.agreed(step): ...
            stop.disconnect()
    """

    def __init__(self, time_left: Callable[[], float | None] = lambda: None) -> None:
        """Note nothing yet.

        Args:
            time_left: gives the seconds until this process is ended from outside;
                None where nobody knows. Asked on rank 0, once, when all have stopped.
        """
        self.time_left = time_left
        self.received: int | None = None
        """The first stop signal that this rank itself received."""
        self._requested = threading.Event()
        self._noted = threading.Event()
        self._lock = threading.Lock()
        self._key = ""
        self._store: Store | None = None
        self._messenger: Store | None = None
        self._world: World | None = None
        self._begun = 0
        self._stop_step: int | None = None
        self._waiting: list[threading.Thread] = []
        self._undo: list[Callable[[], object]] = []
        self._writer: socket.socket | None = None

    @property
    def requested(self) -> bool:
        """Whether this rank knows that somebody asked; not yet when to stop."""
        return self._requested.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Wait until this rank knows of a request; False after the timeout."""
        return self._requested.wait(timeout_s)

    def install(self) -> None:
        """Begin to note signals; only in the main thread, as signal(2) in Python."""
        reader, writer = socket.socketpair()
        writer.setblocking(False)  # noqa: FBT003 - the socket API
        self._writer = writer
        for number in _SIGNALS:
            before = signal.signal(number, _note)
            # Restart interrupted system calls of foreign code (files, NCCL).
            signal.siginterrupt(number, False)  # noqa: FBT003 - the signal API
            self._undo.append(lambda n=number, h=before: signal.signal(n, h))  # type: ignore[misc]
        wakeup = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        self._undo.insert(0, lambda: signal.set_wakeup_fd(wakeup))
        self._start(self._read_signals, reader)

    def connect(self, store: Store, world: World) -> None:
        """Join the others; all ranks must call it, at whatever time.

        Args:
            store: the store that all ranks share.
            world: this rank among the others.
        """
        self._key = f"stop/{next(_USES)}"
        self._store, self._world = store, world
        with self._lock:
            self._messenger = clone_store(store)
        client = clone_store(store)
        waiting = self._start(self._wait_for_request, client, world.rank)
        self._waiting.append(waiting)
        if self._noted.is_set():
            self.request()

    def request(self, text: str = "stop") -> None:
        """Ask all ranks to stop; any thread of any rank may."""
        self._noted.set()
        with self._lock:
            if self._messenger is not None:
                self._messenger.set(f"{self._key}/request", text)

    def agreed(self, step: int) -> bool:
        """Say whether all ranks stop here; every rank asks at every step boundary.

        Args:
            step: the number of finished steps.
        """
        # Before the flag is read, as the thread reads it after the flag is set.
        self._begun = step + 1
        if not self._requested.is_set() or self._store is None or self._world is None:
            return False
        if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
        if self._world.rank == 0 and self._stop_step is None:
            self._name_step(self._store, step, self._world.world_size)
        named = f"{self._key}/step"
        if self._stop_step is None and self._store.check([named]):
            self._stop_step = int(self._store.get(named))
        return self._stop_step is not None and step >= self._stop_step

    def disconnect(self) -> None:
        """Leave the others, when all have agreed on the end; signals stay noted."""
        with contextlib.suppress(RuntimeError):
            self.request(_END)
        with self._lock:
            self._messenger = None
        self._store = None
        for thread in self._waiting:
            thread.join(timeout=_JOIN_S)

    def close(self) -> None:
        """Give the signals back to their former handlers."""
        while self._undo:
            self._undo.pop(0)()
        if self._writer is not None:
            # A forked child may still hold a copy; closing alone would not end it.
            self._writer.shutdown(socket.SHUT_RDWR)
            self._writer.close()
            self._writer = None

    def __enter__(self) -> "StopSignal":
        self.install()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _name_step(self, store: Store, step: int, world_size: int) -> None:
        if world_size == 1:
            self._stop_step = step
        elif store.add(f"{self._key}/announced", 0) == world_size:
            keys = [f"{self._key}/begun/{rank}" for rank in range(world_size)]
            begun = (int(store.get(key)) for key in keys)
            self._stop_step = max(step + 1, *begun)
            store.set(f"{self._key}/step", str(self._stop_step))

    def _start(
        self, target: Callable[..., None], *arguments: object
    ) -> threading.Thread:
        thread = threading.Thread(
            target=target, args=arguments, name=target.__name__, daemon=True
        )
        thread.start()
        return thread

    def _read_signals(self, reader: socket.socket) -> None:
        with reader:
            while data := reader.recv(64):
                # SIGCHLD comes here too when a handler of it is in Python.
                stops = [number for number in data if number in _SIGNALS]
                if stops and self.received is None:
                    self.received = stops[0]
                    with contextlib.suppress(RuntimeError):  # as below
                        self.request()

    def _wait_for_request(self, store: Store, rank: int) -> None:
        # A dead store means a dead rank 0: the collectives will tell.
        with contextlib.suppress(RuntimeError):
            store.wait([f"{self._key}/request"], _LONG)
            self._requested.set()
            store.set(f"{self._key}/begun/{rank}", str(self._begun))
            store.add(f"{self._key}/announced", 1)


def _note(number: int, frame: FrameType | None) -> None:
    """Do nothing: the descriptor has the number; the default would end the rank."""
    del number, frame
