"""Form the process group, whatever started the ranks, and dissolve it again."""

import itertools
import logging
import os
from collections.abc import Mapping
from datetime import timedelta

import psutil
import torch
import torch.distributed as dist
from torch.distributed import PrefixStore

from clusterddp.dist.address import check_interface_names
from clusterddp.dist.arguments import (
    ArgumentError,
    PortRange,
    parse_limit,
    parse_port_range,
)
from clusterddp.dist.assembly import Terms, assemble
from clusterddp.dist.devices import choose_device
from clusterddp.dist.exports import Exports
from clusterddp.dist.nccl import prepare_nccl
from clusterddp.dist.session import Session, close_session, is_open, open_session
from clusterddp.dist.threads import mismatch
from clusterddp.dist.world import World, world_from_environment
from clusterddp.errors import LaunchError

__all__ = ["ArgumentError", "init_dist", "shutdown"]

_LOG = logging.getLogger(__name__)

_HOUR = timedelta(hours=1)
_TEN_MINUTES = timedelta(minutes=10)
_LEAVE = timedelta(seconds=10)
_OURS = frozenset({"init_method", "rank", "store", "world_size"})
_generations = itertools.count()


def init_dist(
    launcher: str | None = None,
    backend: str = "auto",
    timeout: timedelta | float | str = _HOUR,
    *,
    rendezvous_timeout: timedelta | float | str = _TEN_MINUTES,
    port_range: str | PortRange | None = None,
    **kwargs: object,
) -> World:
    """Form the default process group and give this rank's place in it.

    Under torchrun (`pytorch`) the meeting is torch's own `env://`. Under `slurm`
    rank 0 binds a free port and publishes it; the usual variables (RANK,
    WORLD_SIZE, MASTER_ADDR, ...) are exported for other libraries until
    `shutdown`. `none` is a world of one without any network.

    The timeout holds for the default group, the store and the groups that
    `clusterddp.dist.new_group` makes; torch's own starts from its default again.

    Args:
        launcher: "slurm", "pytorch" or "none"; None takes $CLUSTERDDP_LAUNCHER,
            else detects it.
        backend: "auto" (nccl where a GPU is visible, else gloo) or any backend
            name that torch knows.
        timeout: of the collectives and the store: a timedelta, seconds, or `"30m"`.
        rendezvous_timeout: how long rank 0 waits for the others, and they for it.
        port_range: ports that rank 0 may bind under `slurm`, `"20000-20100"` or a
            pair, for sites with firewalls; None for any. MASTER_PORT wins.
        **kwargs: handed to `torch.distributed.init_process_group`.

    Raises:
        ArgumentError: an argument has a wrong type or value.
        WorldError: the environment does not say which rank this is.
        RendezvousError: the ranks did not meet; it names those missing.
        LaunchError: a second call, or no GPU for this rank.
    """
    limit = parse_limit("timeout", timeout)
    patience = parse_limit("rendezvous_timeout", rendezvous_timeout)
    ports = parse_port_range(port_range)
    _refuse_what_is_ours(kwargs)
    _refuse_second_group()
    name = launcher or os.environ.get("CLUSTERDDP_LAUNCHER")
    world = world_from_environment(name, os.environ)
    if backend == "auto":
        backend = "nccl" if torch.cuda.device_count() else "gloo"
    terms = Terms(patience, next(_generations), ports)
    open_session(_meet_and_form(world, backend, terms, limit, kwargs))
    _warn_of_threads(world)
    return world


def shutdown() -> None:
    """Dissolve the process group and restore the environment, on success only.

    All ranks must call it: rank 0 hosts the store, so it waits (for at most ten
    seconds) until the others are done with it. After a failure just leave; a
    group that lost a member cannot be dissolved in order.
    """
    session = close_session()
    if session is None:
        return
    try:
        if dist.is_initialized():
            dist.destroy_process_group()
        _leave(session)
    finally:
        session.exports.restore()


def _leave(session: Session) -> None:
    world, store = session.world, session.store
    try:
        if world.rank:
            store.set(f"left/{world.rank}", "1")
        elif world.world_size > 1:
            store.wait([f"left/{r}" for r in range(1, world.world_size)], _LEAVE)
    except dist.DistError:
        # Somebody is gone already; the work is done, so that is no failure.
        return


def _refuse_what_is_ours(kwargs: Mapping[str, object]) -> None:
    if taken := sorted(_OURS & set(kwargs)):
        message = (
            f"init_dist: found {', '.join(taken)}, expected them to come from the "
            "launcher; leave them out, or call torch.distributed.init_process_group"
        )
        raise ArgumentError(message)


def _refuse_second_group() -> None:
    if is_open() or dist.is_initialized():
        message = (
            "init_dist: a process group exists already, expected none; call "
            "init_dist once, or shutdown() before the next time"
        )
        raise LaunchError(message)


def _meet_and_form(
    world: World,
    backend: str,
    terms: Terms,
    limit: timedelta,
    options: Mapping[str, object],
) -> Session:
    device = choose_device(backend, world, os.environ)
    check_interface_names(os.environ, list(psutil.net_if_addrs()))
    base, suffix, variables = assemble(world, backend, device, terms)
    base.set_timeout(limit)
    exports = Exports()
    try:
        exports.put({**variables, **prepare_nccl(backend, os.environ)})
        group = PrefixStore(f"default_pg{suffix}", base)
        _form_group(world, backend, device, limit, {**options, "store": group})
    except BaseException:
        exports.restore()
        raise
    return Session(world, base, f"clusterddp{suffix}", device, exports, limit)


def _warn_of_threads(world: World) -> None:
    cpus, on_machine = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    ranks = world.local_world_size
    problem = mismatch(torch.get_num_threads(), cpus, on_machine, ranks)
    if problem and world.local_rank == 0:
        _LOG.warning("%s", problem)


def _form_group(
    world: World,
    backend: str,
    device: torch.device,
    timeout: timedelta,
    options: dict[str, object],
) -> None:
    if device.type == "cuda":
        torch.cuda.set_device(device)
        # Binds NCCL to this device at once, instead of guessing it at the first
        # barrier; in 2.7.0 alone that hangs (pytorch#153960).
        if "nccl" in backend and not torch.__version__.startswith("2.7.0"):
            options.setdefault("device_id", device)
    dist.init_process_group(
        backend,
        rank=world.rank,
        world_size=world.world_size,
        timeout=timeout,
        **options,  # type: ignore[arg-type]  # the caller's word, torch checks it
    )
