"""Compression of gradients on their way to the other ranks, and what it remembers.

PowerSGD (Vogels et al., NeurIPS 2019) keeps on each rank what it left out of the
gradients so far, to send it later. A run that went on without it would be another run,
so every rank's part is in the checkpoints.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from clusterddp.config.schema import Ddp
from clusterddp.dist import World, operation

__all__ = ["Compression"]


def _bf16(state: None, bucket: dist.GradBucket) -> Future[Tensor]:
    """Call torch's hook under another name: by its own, DDP takes it with NCCL only."""
    return default_hooks.bf16_compress_hook(state, bucket)  # type: ignore[arg-type]


class Compression:
    """DDP's comm hook, if one is asked for."""

    def __init__(
        self, ddp: DistributedDataParallel | None, options: Ddp, world: World
    ) -> None:
        """Hook it in.

        Args:
            ddp: the wrapped model; None in a world of one, where nothing is sent.
            options: say which hook.
            world: this rank among the others.
        """
        self._world = world
        self._device = torch.device("cpu")
        # PowerSGDState, which torch does not annotate.
        self._power: Any = None
        if ddp is None or options.comm_hook is None:
            return
        if options.comm_hook == "bf16":
            ddp.register_comm_hook(None, _bf16)
        elif options.comm_hook == "fp16":
            ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
        else:
            self._device = next(ddp.parameters()).device
            self._power = _hook_in_power_sgd(ddp, options)

    @contextmanager
    def idle(self) -> Iterator[None]:
        """Send gradients as they are, inside, and remember nothing of them."""
        if self._power is None:
            yield
            return
        kept, self._power.iter = self._power.iter, 0
        yield
        self._power.iter = kept

    def state(self) -> dict[str, Any] | None:
        """Give what a checkpoint must hold; None if nothing. All ranks must call it.

        Rank 0 gets the errors of all ranks, one bucket of gradients after the other;
        in host memory, so that a GPU has room for them.
        """
        power = self._power
        if power is None:
            return None
        errors = {key: self._gather(value) for key, value in power.error_dict.items()}
        p, q = dict(power.p_memory_dict), dict(power.q_memory_dict)
        return {"steps": power.iter, "p": p, "q": q, "errors": errors}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` gave.

        What counts is the mean of the errors over the ranks: the hook is linear in
        them up to rounding. So other numbers of ranks each take the mean.
        """
        power = self._power
        if power is None:
            return
        power.iter = state["steps"]
        for key, errors in state["errors"].items():
            is_same = len(errors) == self._world.world_size
            own = errors[self._world.rank] if is_same else torch.stack(errors).mean(0)
            power.error_dict[key] = own.to(self._device)
            power.p_memory_dict[key] = state["p"][key].to(self._device)
            power.q_memory_dict[key] = state["q"][key].to(self._device)

    def _gather(self, error: Tensor) -> list[Tensor]:
        is_first = self._world.rank == 0
        count = self._world.world_size if is_first else 0
        gathered = [torch.empty_like(error) for _ in range(count)]
        with operation("gathering of PowerSGD's errors"):
            dist.gather(error, gathered if is_first else None)
        return [each.cpu() for each in gathered]


def _hook_in_power_sgd(ddp: DistributedDataParallel, options: Ddp) -> object:
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd

    state = power_sgd.PowerSGDState(
        process_group=None,
        matrix_approximation_rank=options.powersgd_rank,
        start_powerSGD_iter=options.powersgd_start,
    )
    is_ordered = dist.get_backend() == "nccl"
    ddp.register_comm_hook(state, power_sgd.powerSGD_hook if is_ordered else _in_turn)
    return state


def _in_turn(state: object, bucket: dist.GradBucket) -> Future[Tensor]:
    """Let one bucket be through before the next begins.

    PowerSGD sends three times for a bucket, the second and third time when the one
    before is over. NCCL's queue keeps that in order; gloo's threads do not: two ranks
    then wait for each other in different buckets (seen with three small ones).
    """
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd

    future: Future[Tensor] = power_sgd.powerSGD_hook(state, bucket)  # type: ignore[arg-type]
    future.wait()
    return future
