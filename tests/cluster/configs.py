"""The text of each configuration file, a pure function of the parameters."""

import hashlib

from tests.cluster.parameters import ClusterParameters

_PARTITIONS = {
    "main": "Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=20",
    "quick": "PriorityTier=1 PreemptMode=REQUEUE GraceTime=5",
    "nograce": "PriorityTier=1 PreemptMode=REQUEUE GraceTime=0",
    "cancel": "PriorityTier=1 PreemptMode=CANCEL GraceTime=20",
    "debug": "PriorityTier=1 PreemptMode=OFF MaxTime=00:02:00",
    "high": "PriorityTier=10 PreemptMode=OFF",
}


def render_slurm_conf(parameters: ClusterParameters) -> str:
    """Give slurm.conf: fast timers, partitions that preempt, accounting."""
    blocks = (
        _addresses(parameters),
        _directories(parameters),
        _timers(),
        _scheduling(parameters),
        _accounting(parameters),
        _nodes(parameters),
        _partitions(parameters),
        parameters.slurm_conf_lines,
    )
    return "".join("".join(f"{line}\n" for line in block) for block in blocks)


def _addresses(parameters: ClusterParameters) -> tuple[str, ...]:
    socket = f"socket={parameters.munge_socket}"
    expire = parameters.cred_expire
    lifetime = "" if expire is None else f",cred_expire={expire}"
    return (
        f"ClusterName={parameters.name}",
        f"SlurmctldHost={parameters.head}({parameters.addresses[parameters.head]})",
        f"SlurmctldPort={parameters.port('slurmctld')}",
        f"SlurmdPort={parameters.port('slurmd')}",
        "SlurmUser=root",
        "AuthType=auth/munge",
        f"AuthInfo={socket}{lifetime}",
    )


def _directories(parameters: ClusterParameters) -> tuple[str, ...]:
    root, log = parameters.root, parameters.log_dir
    return (
        f"StateSaveLocation={root}/controller",
        f"SlurmdSpoolDir={root}/spool/%n",
        f"SlurmctldPidFile={root}/run/slurmctld.pid",
        f"SlurmdPidFile={root}/run/slurmd-%n.pid",
        f"SlurmctldLogFile={log}/slurmctld.log",
        f"SlurmdLogFile={log}/slurmd-%n.log",
    )


def _timers() -> tuple[str, ...]:
    return (
        "SlurmdTimeout=10",
        "KillWait=5",
        "ReturnToService=2",
        "JobRequeue=1",
    )


def _scheduling(parameters: ClusterParameters) -> tuple[str, ...]:
    return (
        "SlurmdParameters=config_overrides",
        f"ProctrackType=proctrack/{parameters.proctrack}",
        "TaskPlugin=task/none",
        "MpiDefault=none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_CPU",
        "SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=1",
        "PreemptType=preempt/partition_prio",
        "PreemptMode=REQUEUE",
    )


def _accounting(parameters: ClusterParameters) -> tuple[str, ...]:
    return (
        "JobAcctGatherType=jobacct_gather/linux",
        "JobAcctGatherFrequency=5",
        "AccountingStorageType=accounting_storage/slurmdbd",
        f"AccountingStorageHost={parameters.head}",
        f"AccountingStoragePort={parameters.port('slurmdbd')}",
        f"AccountingStoragePass={parameters.munge_socket}",
        "AccountingStoreFlags=job_comment",
    )


def _nodes(parameters: ClusterParameters) -> tuple[str, ...]:
    gpus = parameters.gpus_per_node
    gres = f" Gres=gpu:{gpus}" if gpus else ""
    shape = (
        f"CPUs={parameters.cpus_per_node} Boards=1 SocketsPerBoard=1"
        f" CoresPerSocket={parameters.cpus_per_node} ThreadsPerCore=1"
        f" RealMemory={parameters.memory_mb}{gres} State=UNKNOWN"
    )
    nodes = tuple(
        f"NodeName={name} NodeAddr={parameters.addresses[name]} {shape}"
        for name in parameters.node_names
    )
    return ("GresTypes=gpu", *nodes)


def _partitions(parameters: ClusterParameters) -> tuple[str, ...]:
    common = f"Nodes={parameters.node_expression} DefaultTime=00:10:00 State=UP"
    return tuple(
        f"PartitionName={name} {options} {common}"
        for name, options in _PARTITIONS.items()
    )


def render_slurmdbd_conf(parameters: ClusterParameters) -> str:
    """Give slurmdbd.conf; the file must have mode 600."""
    return f"""\
DbdHost={parameters.head}
DbdPort={parameters.port("slurmdbd")}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={parameters.munge_socket}
LogFile={parameters.log_dir}/slurmdbd.log
PidFile={parameters.root}/run/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm_accounting
"""


def render_gres_conf(parameters: ClusterParameters) -> str:
    """Give gres.conf: every node has the same device files."""
    count = parameters.gpus_per_node
    if count == 0:
        return ""
    files = "0" if count == 1 else f"[0-{count - 1}]"
    return (
        f"NodeName={parameters.node_expression} Name=gpu"
        f" File={parameters.root}/devices/nvidia{files}\n"
    )


def render_cgroup_conf(version: int) -> str:
    """Give cgroup.conf for a machine that mounts control groups v1 or v2."""
    lines = [f"CgroupPlugin=cgroup/v{version}", "CgroupMountpoint=/sys/fs/cgroup"]
    if version > 1:
        lines.append("IgnoreSystemd=yes")
    return "".join(f"{line}\n" for line in lines)


def render_my_cnf(parameters: ClusterParameters) -> str:
    """Give my.cnf: a small server on a socket, which may lose data in a crash."""
    data = parameters.root / "database"
    return f"""\
[mariadbd]
user=mysql
datadir={data}
socket={parameters.database_socket}
pid-file={data}/mariadb.pid
log-error={parameters.log_dir}/mariadbd.log
skip-networking
skip-log-bin
innodb-use-native-aio=0
innodb-buffer-pool-size=64M
innodb-log-file-size=16M
innodb-lock-wait-timeout=900
innodb-flush-log-at-trx-commit=0
innodb-doublewrite=0
"""


def config_files(parameters: ClusterParameters, cgroup: int) -> dict[str, str]:
    """Give all files of the configuration directory, by name."""
    return {
        "slurm.conf": render_slurm_conf(parameters),
        "slurmdbd.conf": render_slurmdbd_conf(parameters),
        "gres.conf": render_gres_conf(parameters),
        "cgroup.conf": render_cgroup_conf(cgroup),
        "my.cnf": render_my_cnf(parameters),
    }


def digest(files: dict[str, str]) -> str:
    """Give a short text that changes when any of the files does."""
    return hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:16]
