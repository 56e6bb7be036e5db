"""The resource monitor: readings that cost little and survive their subjects."""

import subprocess
import sys
import time
from collections.abc import Callable

import psutil
import pytest

from clusterddp.training import ResourceMonitor

NAMES = {"mem/rss_mb", "cpu/percent", "host/mem_percent", "host/cpu_percent"}


def wait_until(condition: Callable[[], object], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_readings_come_from_the_thread() -> None:
    """Nothing is given before the first real reading, then all values are."""
    with ResourceMonitor(interval_s=0.05) as monitor:
        assert monitor.values() == {}
        wait_until(monitor.values)
        values = monitor.values()
    assert set(values) == NAMES
    assert values["mem/rss_mb"] > 10
    assert 0 < values["host/mem_percent"] <= 100


def test_a_busy_process_shows_in_the_first_reading() -> None:
    """The reading that psutil always answers with 0.0 is not shown."""
    with ResourceMonitor(interval_s=0.3) as monitor:
        deadline = time.monotonic() + 0.6
        while not monitor.values() and time.monotonic() < deadline:
            sum(range(1000))
        wait_until(monitor.values)
        assert monitor.values()["cpu/percent"] > 5


def test_children_are_counted_and_may_die() -> None:
    """A child's memory is added while it lives; its death disturbs nothing."""
    code = "data = bytearray(200 << 20); print(flush=True); input()"
    with ResourceMonitor(interval_s=0.02) as monitor:
        wait_until(monitor.values)
        before = monitor.values()["mem/rss_mb"]
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", code]
        with subprocess.Popen(command, stdin=pipe, stdout=pipe) as child:
            wait_until(lambda: monitor.values()["mem/rss_mb"] > before + 150)
            child.kill()
        wait_until(lambda: monitor.values()["mem/rss_mb"] < before + 150)


def test_a_process_that_vanishes_while_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rest of the reading is given."""
    with subprocess.Popen(["sleep", "60"]) as child:
        gone = psutil.Process(child.pid)
        child.kill()
    monkeypatch.setattr(psutil.Process, "children", lambda *_, **__: [gone])
    with ResourceMonitor(interval_s=0.02) as monitor:
        wait_until(monitor.values)
        assert monitor.values()["mem/rss_mb"] > 10
