"""Form the process group, whatever started the ranks, and dissolve it again."""

import itertools
import os
from collections.abc import Mapping
from datetime import timedelta

import psutil
import torch
import torch.distributed as dist
from torch.distributed import PrefixStore

from clusterddp.dist.address import check_interface_names
from clusterddp.dist.assembly import assemble
from clusterddp.dist.devices import choose_device
from clusterddp.dist.exports import Exports
from clusterddp.dist.session import Session, close_session, is_open, open_session
from clusterddp.dist.world import World, world_from_environment
from clusterddp.errors import LaunchError, UsageError

__all__ = ["ArgumentError", "init_dist", "shutdown"]

_HOUR = timedelta(hours=1)
_TEN_MINUTES = timedelta(minutes=10)
_LEAVE = timedelta(seconds=10)
_OURS = frozenset({"init_method", "rank", "store", "world_size"})
_generations = itertools.count()


class ArgumentError(UsageError, TypeError):
    """An argument of `init_dist` has a wrong type or value."""


def init_dist(
    launcher: str | None = None,
    backend: str = "auto",
    timeout: timedelta = _HOUR,
    *,
    rendezvous_timeout: timedelta = _TEN_MINUTES,
    **kwargs: object,
) -> World:
    """Form the default process group and give this rank's place in it.

    Under torchrun (`pytorch`) the meeting is torch's own `env://`. Under `slurm`
    rank 0 binds a free port and publishes it; the usual variables (RANK,
    WORLD_SIZE, MASTER_ADDR, ...) are exported for other libraries until
    `shutdown`. `none` is a world of one without any network.

    The timeout holds for the default group. `torch.distributed.new_group` starts
    from torch's own default again: pass it the timeout you want.

    Args:
        launcher: "slurm", "pytorch" or "none"; None takes $CLUSTERDDP_LAUNCHER,
            else detects it.
        backend: "auto" (nccl where a GPU is visible, else gloo) or any backend
            name that torch knows.
        timeout: of the collectives and the store.
        rendezvous_timeout: how long rank 0 waits for the others, and they for it.
        **kwargs: handed to `torch.distributed.init_process_group`.

    Raises:
        ArgumentError: an argument has a wrong type or value.
        WorldError: the environment does not say which rank this is.
        RendezvousError: the ranks did not meet; it names those missing.
        LaunchError: a second call, or no GPU for this rank.
    """
    _check_arguments(timeout, rendezvous_timeout, kwargs)
    _refuse_second_group()
    name = launcher or os.environ.get("CLUSTERDDP_LAUNCHER")
    world = world_from_environment(name, os.environ)
    if backend == "auto":
        backend = "nccl" if torch.cuda.device_count() else "gloo"
    device = choose_device(backend, world, os.environ)
    check_interface_names(os.environ, list(psutil.net_if_addrs()))
    suffix = f".{number}" if (number := next(_generations)) else ""
    base, variables = assemble(world, backend, device, rendezvous_timeout, number)
    base.set_timeout(timeout)
    exports = Exports()
    try:
        exports.put(variables)
        group = PrefixStore(f"default_pg{suffix}", base)
        _form_group(world, backend, device, timeout, {**kwargs, "store": group})
    except BaseException:
        exports.restore()
        raise
    open_session(Session(world, base, f"clusterddp{suffix}", device, exports))
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


def _check_arguments(
    timeout: object, rendezvous_timeout: object, kwargs: Mapping[str, object]
) -> None:
    limits = {"timeout": timeout, "rendezvous_timeout": rendezvous_timeout}
    for name, value in limits.items():
        if not isinstance(value, timedelta):
            message = (
                f"init_dist: found {name}={value!r}, expected a datetime.timedelta; "
                f"write {name}=timedelta(seconds={value!r})"
            )
            raise ArgumentError(message)
        if value < timedelta(milliseconds=1):
            message = (
                f"init_dist: found {name}={value}, expected a millisecond or more; "
                "torch counts in milliseconds, and takes 0 for no limit at all"
            )
            raise ArgumentError(message)
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
