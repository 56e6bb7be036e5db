"""The cluster's configuration texts are right, and follow from the parameters."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster import ClusterError, ClusterParameters, configs, network
from tests.cluster.client import parse_job
from tests.cluster.interpreter import relocated
from tests.cluster.parameters import from_json, to_json

DEFAULT = ClusterParameters()


def settings(text: str) -> dict[str, str]:
    """Split lines like `Key=value` with one key each."""
    return dict(line.split("=", 1) for line in text.splitlines())


def test_slurm_conf_default() -> None:
    """The default slurm.conf preempts by partition and keeps requeues short."""
    found = settings(configs.render_slurm_conf(DEFAULT))
    assert found["PreemptType"] == "preempt/partition_prio"
    assert found["AuthInfo"].endswith("munge.socket,cred_expire=5")
    assert found["ProctrackType"] == "proctrack/linuxproc"


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("main", "Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=20"),
        ("cancel", "PriorityTier=1 PreemptMode=CANCEL GraceTime=20"),
        ("nograce", "PriorityTier=1 PreemptMode=REQUEUE GraceTime=0"),
        ("high", "PriorityTier=10 PreemptMode=OFF"),
    ],
)
def test_partitions(name: str, options: str) -> None:
    """Each partition says how its jobs are preempted."""
    text = configs.render_slurm_conf(DEFAULT)
    assert f"PartitionName={name} {options} Nodes=n[1-4]" in text


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"cred_expire": None}, "AuthInfo=socket=/s/munge/munge.socket\n"),
        ({"proctrack": "cgroup"}, "ProctrackType=proctrack/cgroup\n"),
        ({"nodes": 1}, " Nodes=n1 "),
        ({"slot": 2}, "SlurmctldHost=k2head(10.77.2.1)\n"),
        ({"gpus_per_node": 0}, "RealMemory=16000 State=UNKNOWN\n"),
        ({"cpus_per_node": 8}, "CPUs=8 Boards=1 SocketsPerBoard=1 CoresPerSocket=8"),
        ({"slurm_conf_lines": ("MaxArraySize=11",)}, "\nMaxArraySize=11\n"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_slurm_conf_follows(change: dict[str, object], wanted: str) -> None:
    """A changed parameter changes its line."""
    given = replace(DEFAULT, state_dir=Path("/s"), **change)  # type: ignore[arg-type]
    assert wanted.replace("/s/", f"{given.root}/") in configs.render_slurm_conf(given)


@pytest.mark.parametrize(
    ("gpus", "wanted"),
    [(0, ""), (1, "/devices/nvidia0\n"), (4, "/devices/nvidia[0-3]\n")],
)
def test_gres_conf(gpus: int, wanted: str) -> None:
    """gres.conf names as many device files as there are GPUs."""
    text = configs.render_gres_conf(replace(DEFAULT, gpus_per_node=gpus))
    assert text.endswith(wanted)
    assert bool(text) == bool(gpus)


def test_other_texts() -> None:
    """slurmdbd.conf, cgroup.conf and my.cnf name the cluster's own places."""
    dbd = settings(configs.render_slurmdbd_conf(DEFAULT))
    assert dbd["DbdHost"] == "head"
    assert dbd["AuthInfo"] == f"socket={DEFAULT.munge_socket}"
    assert "CgroupPlugin=cgroup/v2\n" in configs.render_cgroup_conf(2)
    assert "IgnoreSystemd" not in configs.render_cgroup_conf(1)
    assert f"socket={DEFAULT.database_socket}\n" in configs.render_my_cnf(DEFAULT)


def test_digest() -> None:
    """The digest changes when one of the texts does."""
    other = replace(DEFAULT, memory_mb=1)
    digests = {
        configs.digest(configs.config_files(parameters, cgroup))
        for parameters in (DEFAULT, other)
        for cgroup in (1, 2)
    }
    assert len(digests) == 4


def test_hosts() -> None:
    """Every line for /etc/hosts carries the mark by which it is removed."""
    text = network.render_hosts(replace(DEFAULT, nodes=2))
    assert text.splitlines() == [
        "10.77.0.1 head # clusterddp-cluster slot 0",
        "10.77.0.11 n1 # clusterddp-cluster slot 0",
        "10.77.0.12 n2 # clusterddp-cluster slot 0",
    ]


def test_slots_share_nothing() -> None:
    """Two slots have no name, address, port or directory in common."""
    one, two = DEFAULT, replace(DEFAULT, slot=1)
    assert not {*one.addresses, *one.addresses.values()} & {
        *two.addresses,
        *two.addresses.values(),
    }
    assert one.port("slurmctld") != two.port("slurmctld")
    assert (one.root, one.user, one.name) != (two.root, two.user, two.name)
    assert not two.root.is_relative_to(one.root)


def test_parameters_survive_json() -> None:
    """What is written to the record is read back equal."""
    given = replace(DEFAULT, slurm_conf_lines=("A=1", "B=2"), cred_expire=None)
    assert from_json(to_json(given)) == given


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nodes": 0}, "nodes=0: must be 1 to 64"),
        ({"slot": 10}, "slot=10: must be 0 to 9"),
        ({"state_dir": Path("x")}, "state_dir=x: must be absolute"),
    ],
    ids=["nodes", "slot", "state_dir"],
)
def test_wrong_parameters(change: dict[str, object], message: str) -> None:
    """A parameter that cannot work is refused, with its value."""
    with pytest.raises(ClusterError, match=message):
        replace(DEFAULT, **change)  # type: ignore[arg-type]


def test_parse_job() -> None:
    """Values with blanks and with equals signs stay whole."""
    line = "JobId=7 Comment=a b=c JobName=x y JobState=RUNNING NtasksPerN:B:S:C=0:0 "
    found = parse_job(line)
    assert found["JobName"] == "x y"
    assert found["JobState"] == "RUNNING"
    assert found["NtasksPerN:B:S:C"] == "0:0"


def test_relocated() -> None:
    """The run path is replaced without moving what follows."""
    program = b"head\0/opt/some/python/lib\0tail"
    found = relocated(program, "/opt/some/python/lib")
    assert found == b"head\0$ORIGIN/../lib\0\0\0\0\0\0\0tail"
    assert relocated(b"\0/lib\0", "/lib") == b"\0/lib\0"
