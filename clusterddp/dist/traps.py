"""What goes wrong in an environment although the world can be told from it.

Each trap is a pure function of the scene; it names what it found, and what to do. The
shapes are those captured from a real Slurm. No torch in here.
"""

from collections.abc import Callable, Iterator, Mapping

from clusterddp.dist.nccl import ineffective_timeout
from clusterddp.dist.scene import Problem, Scene
from clusterddp.dist.world import is_in_step, job_tasks
from clusterddp.errors import WorldError

__all__ = ["INTERACTIVE_STEP", "find_traps"]

INTERACTIVE_STEP = "4294967290"
"""The step in which salloc runs a shell (slurm.h: SLURM_INTERACTIVE_STEP)."""

_BOUND = ("gpu:per_task", "gpu:single", "gpu:map_gpu", "gpu:mask_gpu", "gpu:closest")
_LOCAL = ("/tmp", "/var/tmp", "/dev/shm", "/scratch/local")  # noqa: S108 - only read


def find_traps(scene: Scene) -> list[Problem]:
    """Give everything that is suspicious, in a fixed order."""
    return [problem for trap in _TRAPS for problem in trap(scene)]


def _shell(scene: Scene) -> Iterator[Problem]:
    """A batch or interactive shell looks like rank 0 of many, but is alone."""
    if scene.world.world_size > 1 or not scene.get("SLURM_JOB_ID"):
        return
    if _is_step(scene.environ):
        return
    interactive = scene.get("SLURM_STEP_ID") == INTERACTIVE_STEP
    tasks = _tasks(scene.environ)
    # The numbers of a heterogeneous job are those of its first group.
    if tasks == "1" and not interactive and not scene.get("SLURM_HET_SIZE"):
        return
    kind = "interactive" if interactive else "batch"
    where = "interactive step of salloc" if interactive else "batch script or shell"
    yield Problem(
        f"{kind}-{'step' if interactive else 'shell'}",
        f"this is the {where} of job {scene.get('SLURM_JOB_ID')}, which has {tasks} "
        "tasks: here a process is alone, a world of one",
        "prefix the command with `srun` to start one process per task",
    )


def _tasks(environ: Mapping[str, str]) -> str:
    try:
        return str(job_tasks(environ))
    except WorldError:
        return "an unknown number of"


def _is_step(environ: Mapping[str, str]) -> bool:
    try:
        return is_in_step(environ)
    except WorldError:
        return False


def _alone_in_step(scene: Scene) -> Iterator[Problem]:
    tasks = scene.get("SLURM_STEP_NUM_TASKS")
    if scene.world.launcher == "none" and _is_step(scene.environ) and tasks != "1":
        yield Problem(
            "alone-in-step",
            f"the launcher none is asked for in a step of {tasks} tasks: each would "
            "train alone, and all would write the same files",
            "choose the launcher slurm, or start with srun --ntasks=1",
        )


def _stale(scene: Scene) -> Iterator[Problem]:
    if scene.world.launcher != "slurm" or not _is_step(scene.environ):
        return
    world = scene.world
    truth = {"RANK": world.rank, "WORLD_SIZE": world.world_size}
    truth |= {"LOCAL_RANK": world.local_rank}
    wrong = [
        f"{name}={scene.get(name)} (the step says {number})"
        for name, number in truth.items()
        if scene.get(name) not in ("", str(number))
    ]
    if wrong:
        yield Problem(
            "stale-rank",
            f"{', '.join(wrong)}: left over from another launcher; init_dist goes by "
            "the step, other libraries may not",
            f"unset {' '.join(truth)} before srun",
        )


def _stale_store(scene: Scene) -> Iterator[Problem]:
    if scene.world.launcher != "slurm" or not _is_step(scene.environ):
        return
    if scene.get("TORCHELASTIC_USE_AGENT_STORE"):
        yield Problem(
            "stale-agent-store",
            "TORCHELASTIC_USE_AGENT_STORE is left over from a torchrun around srun: "
            "with torch's own env:// every rank waits for a store that nobody hosts; "
            "init_dist removes it",
            "unset TORCHELASTIC_USE_AGENT_STORE before srun",
        )


def _address(scene: Scene) -> Iterator[Problem]:
    host, port = scene.get("MASTER_ADDR"), scene.get("MASTER_PORT")
    if not scene.by_slurm or not (host or port):
        return
    if host and port:
        yield Problem(
            "fixed-address",
            f"MASTER_ADDR={host} and MASTER_PORT={port} are set: the ranks meet there "
            "and nowhere else; two steps of one job would get in each other's way",
            "unset both and rank 0 publishes a free port, unless this is meant",
        )
        return
    name, other = ("MASTER_ADDR", "PORT") if host else ("MASTER_PORT", "ADDR")
    yield Problem(
        "half-address",
        f"{name}={host or port} is set and MASTER_{other} is not: ignored as left over",
        f"unset {name}, or set both",
    )


def _directory(scene: Scene) -> Iterator[Problem]:
    """On several nodes the record must be where all of them see it."""
    names = ("CLUSTERDDP_RUN_DIR", "CLUSTERDDP_RDZV_DIR", "SLURM_SUBMIT_DIR")
    if not scene.by_slurm or scene.world.num_nodes == 1 or scene.get("MASTER_PORT"):
        return
    name = next((name for name in names if scene.get(name)), "")
    path = scene.get(name) if name else ""
    if path.startswith(_LOCAL):
        yield Problem(
            "local-directory",
            f"the ranks of {scene.world.num_nodes} nodes would meet below "
            f"{name}={path}, which looks like a disk that each node has for itself",
            "set CLUSTERDDP_RDZV_DIR to a directory that all nodes see",
        )


def _job_differs(scene: Scene) -> Iterator[Problem]:
    tasks = scene.get("SLURM_NTASKS") or scene.get("SLURM_NPROCS")
    if scene.by_slurm and tasks not in ("", str(scene.world.world_size)):
        yield Problem(
            "job-differs-from-step",
            f"SLURM_NTASKS={tasks} is the job's, this step has "
            f"{scene.world.world_size} tasks; scripts that read it wait for ranks that "
            "never come",
            "take the world from init_dist, not from SLURM_NTASKS",
        )


def _gpus(scene: Scene) -> Iterator[Problem]:
    entries = [e for e in scene.get("CUDA_VISIBLE_DEVICES").split(",") if e]
    on_node, ranks = scene.get("SLURM_GPUS_ON_NODE"), scene.world.local_world_size
    bound = scene.get("SLURMD_TRES_BIND")
    if not entries or scene.world.launcher != "slurm" or ranks == 1:
        return
    if len(entries) < ranks and not bound.startswith(_BOUND):
        yield Problem(
            "too-few-gpus",
            f"{ranks} ranks on this node share {len(entries)} GPUs "
            f"(CUDA_VISIBLE_DEVICES={','.join(entries)}): with nccl, ranks beyond are "
            "refused",
            "start as many ranks on a node as it has GPUs (--ntasks-per-node)",
        )
    elif on_node.isdigit() and len(entries) < int(on_node):
        yield Problem(
            "gpus-per-task",
            f"each rank sees {len(entries)} of the node's {on_node} GPUs "
            f"({bound or 'bound by Slurm'}), its own as index 0: cuda:LOCAL_RANK would "
            "be wrong or absent",
            "use clusterddp.dist.device(); never write CUDA_VISIBLE_DEVICES",
        )


def _cpus(scene: Scene) -> Iterator[Problem]:
    if scene.world.launcher != "slurm" or not _is_step(scene.environ):
        return
    machine, asked = scene.machine, scene.get("SLURM_CPUS_PER_TASK")
    if machine is None:
        alone = asked in ("", "1") and scene.get("SRUN_CPUS_PER_TASK") in ("", "1")
        found = f"SLURM_CPUS_PER_TASK={asked or '(unset)'}"
    else:
        alone = machine.cpus == 1 < machine.on_machine
        found = f"this rank may use 1 of {machine.on_machine} CPUs"
    if alone:
        yield Problem(
            "one-core",
            f"{found}: one core for each rank, loader workers included",
            "give srun itself --cpus-per-task; since 22.05 it does not take sbatch's "
            "(or export SRUN_CPUS_PER_TASK)",
        )


def _threads(scene: Scene) -> Iterator[Problem]:
    if scene.by_slurm and scene.world.local_world_size > 1:
        if scene.get("OMP_NUM_THREADS"):
            return
        yield Problem(
            "threads-unset",
            f"OMP_NUM_THREADS is not set: each of {scene.world.local_world_size} ranks "
            "on this node may start a thread for every core, and the number changes "
            "bits",
            "set train.threads in the job file, or OMP_NUM_THREADS",
        )


def _network(scene: Scene) -> Iterator[Problem]:
    several = scene.world.num_nodes > 1
    machine = scene.machine
    if several and machine is not None and machine.loopback_name:
        yield Problem(
            "loopback-name",
            f"the host name {machine.loopback_name} leads to loopback or nowhere: gloo "
            "would bind where no other node can come; init_dist chooses the interface",
            "set GLOO_SOCKET_IFNAME where init_dist is not used, or mend /etc/hosts",
        )
    if problem := ineffective_timeout(scene.environ):
        message, _, fix = problem.partition("; ")
        yield Problem("nccl-without-timeout", message, fix)


_TRAPS: tuple[Callable[[Scene], Iterator[Problem]], ...] = (
    _shell,
    _alone_in_step,
    _stale,
    _stale_store,
    _address,
    _directory,
    _job_differs,
    _gpus,
    _cpus,
    _threads,
    _network,
)
