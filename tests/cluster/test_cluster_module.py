"""The cluster is a real one: it starts, runs, preempts, loses nodes, goes away.

It runs in a slot of its own, so that a cluster that is in use is not disturbed.
"""

import os
import signal
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import (
    Cluster,
    ClusterError,
    ClusterParameters,
    CommandError,
    can_run,
    processes,
    start,
    stop,
    wait_until,
)
from tests.cluster.account import find_user
from tests.cluster.network import HOSTS, namespaces

SLOT = 3
PARAMETERS = ClusterParameters(slot=SLOT)
REASON = can_run(PARAMETERS)
ALL = ("--nodes=4", "--exclusive")

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(REASON is not None, reason=str(REASON)),
]


@pytest.fixture(scope="module")
def shared_cluster() -> Iterator[Cluster]:
    """Give one cluster for the whole file."""
    yield start(PARAMETERS)
    stop(SLOT)


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Cluster:
    """Give the cluster with no jobs and all nodes idle."""
    shared_cluster.reset()
    return shared_cluster


def output_of(cluster: Cluster, script: str, *options: str) -> str:
    """Run a job script as the user; give what it wrote."""
    directory = cluster.make_dir()
    path = directory / "job.sh"
    path.write_text(f"#!/bin/bash\n{textwrap.dedent(script)}")
    job = cluster.sbatch(*options, path, user=cluster.user, cwd=directory)
    cluster.wait_job(job, {"COMPLETED"}, deadline=30)
    return (directory / f"slurm-{job}.out").read_text()


def test_every_node_has_its_own_name_and_gpus(cluster: Cluster) -> None:
    """A step on all nodes sees each node's host name, and the GPUs it asked for."""
    script = "srun bash -c 'echo $(hostname) $CUDA_VISIBLE_DEVICES' | sort"
    text = output_of(cluster, script, "--nodes=4", "--gpus-per-node=2")
    assert text.splitlines() == [f"{node} 0,1" for node in cluster.nodes]


def test_step_output_files(cluster: Cluster) -> None:
    """A step writes one file per task where all nodes see it."""
    script = "srun -n2 -N2 --output=task-%t.txt hostname; cat task-0.txt task-1.txt"
    text = output_of(cluster, script, "--nodes=2")
    assert text.split() == list(cluster.nodes[:2])


def test_nodes_reach_each_other_by_name(cluster: Cluster) -> None:
    """A client on the second node reads from a server on the first."""
    directory = cluster.make_dir()
    (directory / "peers.py").write_text(
        textwrap.dedent("""
            import os, socket, time
            first, second = os.environ["PEERS"].split()
            if socket.gethostname() == first:
                server = socket.create_server((first, 29500))
                connection, _ = server.accept()
                connection.sendall(b"hello " + socket.gethostname().encode())
            else:
                end = time.monotonic() + 20
                while True:
                    try:
                        client = socket.create_connection((first, 29500))
                        break
                    except ConnectionRefusedError:
                        if time.monotonic() > end:
                            raise
                        time.sleep(0.05)
                print(socket.gethostname(), client.recv(100).decode())
        """)
    )
    python = cluster.python_for_user(("sys",))
    peers = " ".join(cluster.nodes[:2])
    script = f"PEERS='{peers}' srun --nodes=2 {python} {directory}/peers.py"
    text = output_of(cluster, script, "--nodes=2")
    assert text.split() == [cluster.nodes[1], "hello", cluster.nodes[0]]


def test_user_has_our_packages(cluster: Cluster) -> None:
    """The unprivileged user imports torch and the project, also inside a job."""
    python = cluster.python_for_user()
    code = "import os, torch, tests.cluster; print(os.getuid(), torch.__version__)"
    done = cluster.run([python, "-c", code], user=cluster.user)
    text = output_of(cluster, f"srun {python} -c '{code}'")
    assert text == done.stdout
    user = find_user(cluster.user)
    assert user is not None
    assert done.stdout.split()[0] == str(user.pw_uid)


def test_preemption_with_grace(cluster: Cluster) -> None:
    """A high job takes the node; the low one gets TERM, then is requeued."""
    script = """
        srun bash -c "trap 'touch got-term' TERM; while :; do sleep 0.1; done"
    """
    directory = cluster.make_dir()
    low = submit(cluster, directory, script, *ALL, "--partition=quick")
    cluster.wait_job(low, {"RUNNING"}, deadline=15)
    wait_step(cluster, low)
    high = submit(cluster, directory, "sleep 1", *ALL, "--partition=high")
    wait_until(
        (directory / "got-term").exists, 15, lambda: ClusterError("no TERM in time")
    )
    assert cluster.show_job(low)["PreemptTime"] != "None"
    cluster.wait_job(low, {"PENDING"}, deadline=25)
    assert cluster.show_job(low)["Restarts"] == "1"
    cluster.wait_job(high, {"COMPLETED"}, deadline=20)


def test_preemption_without_grace_then_runs_again(cluster: Cluster) -> None:
    """Without grace the job is requeued at once, and soon runs again."""
    directory = cluster.make_dir()
    script = "echo $SLURM_RESTART_COUNT >>starts; sleep 60"
    low = submit(cluster, directory, script, *ALL, "--partition=nograce")
    wait_until(
        (directory / "starts").exists, 15, lambda: ClusterError("did not start in time")
    )
    submit(cluster, directory, "true", *ALL, "--partition=high")
    cluster.wait_job(low, {"PENDING"}, deadline=15)
    cluster.wait_job(low, {"RUNNING"}, deadline=25)
    history = [row["State"] for row in cluster.sacct(low)]
    assert history[0] == "PREEMPTED"


def test_a_job_requeues_itself(cluster: Cluster) -> None:
    """`scontrol requeue` works for the user inside the job; the hold is short."""
    directory = cluster.make_dir()
    script = """
        [ "${SLURM_RESTART_COUNT:-0}" = 1 ] && exit 0
        scontrol requeue $SLURM_JOB_ID && sleep 30
    """
    job = submit(cluster, directory, script)
    begin = time.monotonic()
    cluster.wait_job(job, {"COMPLETED"}, deadline=30)
    assert time.monotonic() - begin < 25


def test_array_and_comment(cluster: Cluster) -> None:
    """All elements of an array end in accounting, with their comment."""
    directory = cluster.make_dir()
    job = submit(cluster, directory, "true", "--array=0-2", "--comment=token-1")

    def done() -> bool:
        rows = cluster.sacct(job, ("JobID", "State", "Comment"))
        return [tuple(row.values()) for row in rows] == [
            (f"{job}_{index}", "COMPLETED", "token-1") for index in range(3)
        ]

    wait_until(done, 20, lambda: ClusterError(f"accounting: {cluster.sacct(job)}"))


def test_node_loss_and_return(cluster: Cluster) -> None:
    """A job on a lost node is requeued with NODE_FAIL; the node comes back idle."""
    lost = cluster.nodes[0]
    directory = cluster.make_dir()
    job = submit(cluster, directory, "sleep 300", f"--nodelist={lost}")
    cluster.wait_job(job, {"RUNNING"}, deadline=15)
    cluster.node_down(lost)
    cluster.wait_job(job, {"PENDING"}, deadline=60)
    assert cluster.node_states()[lost].startswith("down")
    cluster.run(["scancel", job])
    cluster.node_up(lost)
    assert cluster.node_states()[lost] == "idle"
    assert cluster.sacct(job)[0]["State"] == "NODE_FAIL"


def test_reset_mends_dead_daemons(cluster: Cluster) -> None:
    """After kill -9 of the controller and of a slurmd, reset brings them back."""
    kill_daemons("slurmctld", f"slurmd-{cluster.nodes[1]}")
    cluster.reset()
    assert set(cluster.node_states().values()) == {"idle"}
    assert output_of(cluster, "srun hostname", "--nodes=4").split()


def test_start_twice(cluster: Cluster) -> None:
    """A second start with the same parameters returns at once, same daemons."""
    before = daemons_of(SLOT)
    begin = time.monotonic()
    assert start(PARAMETERS) == cluster
    assert time.monotonic() - begin < 2
    assert daemons_of(SLOT) == before


def test_command_errors_show_both_streams(cluster: Cluster) -> None:
    """A failed program's message has its exit code, output and error output."""
    with pytest.raises(CommandError, match=r"(?s)exit code 3.*said.*complained"):
        cluster.run(["sh", "-c", "echo said; echo complained >&2; exit 3"])


def test_a_foreign_state_directory_is_left_alone(
    cluster: Cluster, tmp_path: Path
) -> None:
    """A start in somebody's directory is refused before anything is changed."""
    for directory in (tmp_path / "home", tmp_path / f"home-{SLOT}"):
        directory.mkdir()
        (directory / "shared").write_text("precious")
    with pytest.raises(ClusterError, match="not a cluster's; choose another"):
        start(ClusterParameters(slot=SLOT, state_dir=tmp_path / "home"))
    assert (tmp_path / f"home-{SLOT}" / "shared").read_text() == "precious"
    assert set(cluster.node_states().values()) == {"idle"}


def test_stop_needs_no_mark(cluster: Cluster) -> None:
    """What the record names is ours: stop empties it, marked or not."""
    root = cluster.parameters.root
    (root / ".clusterddp-cluster").unlink()
    daemons = daemons_of(SLOT)
    stop(SLOT)
    assert_nothing_left(cluster, daemons)
    assert not (root / "database").exists()
    assert processes.load_record(SLOT) is None
    assert start(PARAMETERS) == cluster


def test_start_after_a_killed_predecessor(shared_cluster: Cluster) -> None:
    """A start copes with dead daemons, living leftovers and a lost record.

    Other parameters give another cluster; stop then leaves nothing behind.
    """
    del shared_cluster
    kill_daemons("slurmctld", "munged")
    processes.record_path(SLOT).unlink()
    small = start(ClusterParameters(slot=SLOT, nodes=2, proctrack="cgroup"))
    assert small.node_states() == {f"k{SLOT}n1": "idle", f"k{SLOT}n2": "idle"}
    assert len(output_of(small, "srun hostname", "--nodes=2").split()) == 2
    job = small.sbatch("--wrap=setsid sleep 300 & wait", user=small.user)
    small.wait_job(job, {"RUNNING"}, deadline=15)
    daemons = daemons_of(SLOT)
    stop(SLOT)
    assert_nothing_left(small, daemons)


def submit(cluster: Cluster, directory: Path, script: str, *options: str) -> str:
    """Submit a script as the user; give the job's id."""
    path = directory / f"{time.monotonic_ns()}.sh"
    path.write_text(f"#!/bin/bash\n{textwrap.dedent(script)}\n")
    return cluster.sbatch(*options, path, user=cluster.user, cwd=directory)


def wait_step(cluster: Cluster, job: str) -> None:
    """Return when the job's first step runs."""

    def running() -> bool:
        argv = ["squeue", "--noheader", "--steps", f"{job}.0", "--format=%i"]
        return cluster.run(argv, check=False).stdout.strip() == f"{job}.0"

    wait_until(running, 15, lambda: ClusterError(f"{job}.0 did not start in time"))


def daemons_of(slot: int) -> dict[str, processes.Process]:
    """Give the daemons that the record of a slot names."""
    record = processes.load_record(slot)
    assert record is not None
    return record.daemons


def kill_daemons(*names: str) -> None:
    """Kill daemons with SIGKILL and wait until they are gone."""
    victims = [daemons_of(SLOT)[name] for name in names]
    assert all(daemon.alive for daemon in victims)
    for daemon in victims:
        os.kill(daemon.pid, signal.SIGKILL)
    wait_until(
        lambda: not any(daemon.alive for daemon in victims),
        5,
        lambda: ClusterError(f"some live: {victims}"),
    )


def assert_nothing_left(
    cluster: Cluster, daemons: dict[str, processes.Process]
) -> None:
    """Check for processes, namespaces, links, names, mounts and the user."""
    assert [daemon.name for daemon in daemons.values() if daemon.alive] == []
    assert list(processes.marked(SLOT)) == []
    assert namespaces(SLOT) == []
    assert not Path("/sys/class/net", cluster.parameters.name).exists()
    assert f"slot {SLOT}" not in HOSTS.read_text()
    assert str(cluster.parameters.root) not in Path("/proc/self/mountinfo").read_text()
    assert find_user(cluster.user) is None
    assert list(Path("/sys/fs/cgroup").glob(f"**/slurm_k{SLOT}*")) == []
