"""Resources: what this rank and its host use, read in a thread."""

import threading
from collections.abc import Iterator
from types import TracebackType
from typing import final

import psutil
import torch

__all__ = ["ResourceMonitor", "gpu_memory"]

_MIB = 1 << 20


@final
class ResourceMonitor:
    """Reads memory and CPU of this process, its children and the host.

    Values by name: `mem/rss_mb` (resident, process and children, MiB),
    `cpu/percent` (process and children; 100 is one core), `host/mem_percent` and
    `host/cpu_percent` (the whole host, of all its memory and cores).
    """

    def __init__(self, interval_s: float = 5.0) -> None:
        """Prepare; `start` or `with` begins to read.

        Args:
            interval_s: seconds between two readings; one takes about 1 ms.
        """
        self._interval_s = interval_s
        self._process = psutil.Process()
        self._children: dict[int, psutil.Process] = {}
        self._values: dict[str, float] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="resources", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        # The first cpu_percent of a process is always 0.0 (psutil's documentation):
        # it only starts the measurement.
        self._read()
        self._thread.start()

    def values(self) -> dict[str, float]:
        """Give the last reading; empty before the first."""
        return dict(self._values)

    def close(self) -> None:
        """End the thread."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()

    def __enter__(self) -> "ResourceMonitor":
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self) -> None:
        while not self._closing.wait(self._interval_s):
            self._values = self._read()

    def _read(self) -> dict[str, float]:
        rss = cpu = 0.0
        for process in self._family():
            try:
                with process.oneshot():
                    rss += process.memory_info().rss
                    cpu += process.cpu_percent()
            except psutil.Error:  # it ended between two lines, or is not ours
                self._children.pop(process.pid, None)
        return {
            "mem/rss_mb": round(rss / _MIB, 1),
            "cpu/percent": round(cpu, 1),
            "host/mem_percent": psutil.virtual_memory().percent,
            "host/cpu_percent": psutil.cpu_percent(),
        }

    def _family(self) -> Iterator[psutil.Process]:
        yield self._process
        try:
            found = {
                child.pid: child for child in self._process.children(recursive=True)
            }
        except psutil.Error:
            return
        # The same objects as last time: they remember their last CPU times.
        self._children = {
            pid: self._children.get(pid, child) for pid, child in found.items()
        }
        yield from list(self._children.values())


def gpu_memory(device: torch.device) -> dict[str, float]:
    """Give MiB of this rank's GPU: the most so far, and now reserved; {} on a CPU.

    torch keeps these counts on the host; nothing is waited for.
    """
    if device.type != "cuda":
        return {}
    return {
        "gpu/peak_mb": round(torch.cuda.max_memory_allocated(device) / _MIB, 1),
        "gpu/reserved_mb": round(torch.cuda.memory_reserved(device) / _MIB, 1),
    }
