"""Fixtures for all tests: the real cluster, and the count of what ran on it."""

import functools
import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.aftermath import look_around
from tests.cluster import Cluster, ClusterParameters, can_run, start, stop

# A slot of its own: a cluster that somebody plays with (slot 0) is not disturbed.
# Two sessions at once take two slots.
_SLOT = int(os.environ.get("CLUSTERDDP_TEST_SLOT", "2"))
# The same tests on another kind of cluster: who gets signals, how long a requeued
# job is held (0: Slurm's default, two minutes).
_HOLD = int(os.environ.get("CLUSTERDDP_TEST_HOLD", "5")) or None
_PARAMETERS = ClusterParameters(
    slot=_SLOT,
    proctrack="cgroup"
    if os.environ.get("CLUSTERDDP_TEST_PROCTRACK") == "cgroup"
    else "linuxproc",
    cred_expire=_HOLD,
)


# What a shell starts in the background ignores Ctrl-C, and so would all programs that
# the tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def _cluster() -> Iterator[Cluster]:
    """One cluster for the whole session; it takes seconds to start."""
    yield start(_PARAMETERS)
    stop(_SLOT)


@pytest.fixture
def cluster(_cluster: Cluster) -> Cluster:
    """The cluster with all nodes idle and no job left by the test before."""
    _cluster.reset()
    return _cluster


@pytest.fixture
def home(cluster: Cluster) -> Path:
    """A directory that all nodes see and the unprivileged user may write."""
    return cluster.make_dir()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what Slurm and the runs say where a test on the cluster fails."""
    report = yield
    names = getattr(item, "funcargs", {})
    if call.when == "call" and report.failed and "home" in names and "cluster" in names:
        shown = look_around(names["cluster"], names["home"])
        report.sections.append(("Slurm and the runs at the failure", shown))
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a cluster where there can be none; in CI that is a failure."""
    reason = can_run(ClusterParameters(slot=_SLOT))
    marked = [item for item in items if item.get_closest_marker("cluster")]
    for item in marked:
        item.user_properties.append(("cluster", True))
    if reason is None or not marked:
        return
    if os.environ.get("CI") == "true":
        pytest.exit(f"CI must run the tests on the real cluster: {reason}", 1)
    for item in marked:
        item.add_marker(pytest.mark.skip(reason=f"needs a real Slurm: {reason}"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Keep files together, and all files with tests on the cluster on one worker.

    There the cluster is started once; the other workers have the rest. (xdist's own
    groups do nothing under pytest 9.)
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByCluster(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            name = nodeid.split("::", maxsplit=1)[0]
            return "cluster" if _uses_cluster(config.rootpath / name) else name

    return ByCluster(config, log)


@functools.cache
def _uses_cluster(path: Path) -> bool:
    return "pytest.mark.cluster" in path.read_text()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tests ran on the real cluster."""
    passed = terminalreporter.stats.get("passed", [])
    count = sum(("cluster", True) in report.user_properties for report in passed)
    terminalreporter.write_line(f"{count} tests passed on the real Slurm cluster")
