"""One agent per node for the `pytorch` launcher: starts the ranks, passes signals on.

Built on torch's elastic launcher API. The stock agent loses what matters here: a
USR2 kills it and leaves its ranks behind, and after one rank leaves with 75 it
terminates the rest and exits 1 (measured on torch 2.13). So the elastic agent runs
in a thread, where it installs no handlers, and this process's main thread does the
signals; ranks that stopped together leave with 0 and the outcome is read from
their verdicts.

Run as `python -m clusterddp.launch.agent RUN_DIR ...` (`plan.py`), by the supervisor
only.
"""

import logging
import os
import signal
import socket
import sys
import threading
import time
from datetime import timedelta

import psutil
from torch.distributed.elastic.multiprocessing.api import (
    LogsDest,
    LogsSpecs,
    SubprocessContext,
)
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from clusterddp.dist.address import address_candidates
from clusterddp.dist.arguments import parse_port_range
from clusterddp.dist.rendezvous import host_store, meet_store
from clusterddp.dist.world import World, world_from_environment
from clusterddp.errors import EXIT_BUG, EXIT_STOPPED, ClusterDDPError
from clusterddp.launch.elastic import NAME, Agents, register
from clusterddp.launch.environment import AGENT, ATTEMPT, OUTPUT
from clusterddp.launch.labels import LabelledOutput
from clusterddp.launch.leaving import leave
from clusterddp.launch.lifeline import end_with_parent
from clusterddp.launch.plan import AgentPlan
from clusterddp.runs.directory import AttemptDirectory, RunDirectory
from clusterddp.runs.verdict import (
    Verdict,
    read_summary,
    read_verdicts,
    write_verdict,
)

_FORWARDED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)
_POLL_S = 0.1


class _Logs(LogsSpecs):
    """Leaves the output alone (each rank opens its own log), or gives it labels."""

    def __init__(self, output: LabelledOutput | None) -> None:
        super().__init__()
        self._output = output

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        ranks = range(len(envs))
        for rank in ranks:
            envs[rank]["TORCHELASTIC_ERROR_FILE"] = ""
        paths = dict.fromkeys(ranks, "")
        if self._output is not None:
            paths = {rank: self._output.open(int(envs[rank]["RANK"])) for rank in ranks}
        return LogsDest(
            stdouts=paths,
            stderrs=paths,
            tee_stdouts={},
            tee_stderrs={},
            error_files=dict.fromkeys(ranks, ""),
        )

    @property
    def root_log_dir(self) -> str:
        return os.devnull


class _Launch(threading.Thread):
    """The elastic agent in a thread of its own; its outcome is one boolean."""

    def __init__(self, config: LaunchConfig, arguments: list[str]) -> None:
        super().__init__(name="elastic-agent", daemon=True)
        self._config = config
        self._arguments = arguments
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            elastic_launch(self._config, sys.executable)(*self._arguments)
        except Exception as error:  # noqa: BLE001 - handed to the main thread
            self.error = error


def main(arguments: list[str]) -> int:
    """Start the ranks of this node, wait for them, and say how it went.

    Returns:
        0 when all ranks completed, 75 when they stopped together, else 1.
    """
    end_with_parent(os.getppid())
    # torch warns that in a thread it leaves the signals alone, as it should here.
    logging.getLogger(SubprocessContext.__module__).setLevel(logging.ERROR)
    requests: list[int] = []
    for signum in _FORWARDED:
        signal.signal(signum, lambda number, _frame: requests.append(number))
    plan = AgentPlan.read(arguments)
    run = RunDirectory(plan.run)
    attempt = run.attempt(int(os.environ[ATTEMPT]))
    world = world_from_environment("none" if plan.is_local else "slurm", os.environ)
    output = _open_output(plan, attempt, world)
    launch = _Launch(_config(plan, attempt, world, output), _rank_command(run))
    os.environ[AGENT], os.environ[OUTPUT] = str(os.getpid()), plan.output
    launch.start()
    while launch.is_alive():
        launch.join(_POLL_S)
        _pass_on(requests)
    if output is not None:
        output.close()
    return _outcome(attempt, launch.error)


def _open_output(
    plan: AgentPlan, attempt: AttemptDirectory, world: World
) -> LabelledOutput | None:
    if plan.output != "node":
        return None
    return LabelledOutput(attempt.node_log(world.node_rank))


def _rank_command(run: RunDirectory) -> list[str]:
    return ["-u", "-m", "clusterddp.train", str(run.path), "--launcher", "pytorch"]


def _config(
    plan: AgentPlan,
    attempt: AttemptDirectory,
    world: World,
    output: LabelledOutput | None,
) -> LaunchConfig:
    """Describe the launch to torch; the meeting itself is ours."""
    agents = _agents(plan, attempt, world)
    register(agents)
    return LaunchConfig(
        min_nodes=agents.count,
        max_nodes=agents.count,
        nproc_per_node=plan.ranks,
        run_id=f"{plan.name}-{attempt.path.name}",
        rdzv_backend=NAME,
        max_restarts=0,
        monitor_interval=_POLL_S,
        logs_specs=_Logs(output),
        local_addr=agents.address,
    )


def _agents(plan: AgentPlan, attempt: AttemptDirectory, world: World) -> Agents:
    wait, ports = timedelta(seconds=plan.wait_s), parse_port_range(plan.ports)
    is_alone = world.num_nodes == 1
    return Agents(
        rank=world.rank,
        count=world.num_nodes,
        address=address_candidates(os.environ, loopback=is_alone)[0],
        meet=lambda: meet_store(
            attempt.rendezvous, world, wait, name="agents", ports=ports
        ),
        host=lambda: host_store(wait, ports=ports, loopback=is_alone),
    )


def _pass_on(requests: list[int]) -> None:
    """Give each signal that came in to every rank that is there to take it."""
    ranks = psutil.Process().children() if requests else []
    if not ranks:
        return
    for signum in requests:
        for rank in ranks:
            if rank.is_running():
                rank.send_signal(signum)
    requests.clear()


def _outcome(attempt: AttemptDirectory, error: Exception | None) -> int:
    if isinstance(error, ChildFailedError):
        _speak_for_the_dead(attempt, error)
        return EXIT_BUG
    if error is not None:
        sys.stderr.write(f"agent: {str(error).partition(chr(10))[0]}\n")
        return EXIT_BUG
    summary = read_summary(attempt)
    if summary is not None and summary.cause == "completed":
        return 0
    stopped = any(verdict.cause == "stopped" for verdict in read_verdicts(attempt))
    return EXIT_STOPPED if stopped else 0


def _speak_for_the_dead(attempt: AttemptDirectory, error: ChildFailedError) -> None:
    """Write a verdict for each rank that was killed and could not write its own.

    Ranks that the elastic agent terminated after the first failure are no cause.
    """
    for rank, failure in error.failures.items():
        if failure.exitcode == -signal.SIGTERM or attempt.verdict(rank).exists():
            continue
        killer = -failure.exitcode
        name = signal.Signals(killer).name if killer > 0 else None
        host, now = socket.gethostname(), time.time()
        verdict = Verdict(rank, "crash", failure.exitcode, None, host, now, signal=name)
        write_verdict(attempt, verdict)


if __name__ == "__main__":
    try:
        leave(main(sys.argv[1:]))
    except ClusterDDPError as problem:
        sys.stderr.write(f"clusterddp: {problem}\n")
        leave(problem.exit_code)
