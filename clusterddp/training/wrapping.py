"""The model as DDP has it, with the options of `train:` that are DDP's own."""

import time

import torch
from torch import device as Device  # noqa: N812 - the type, beside values of its name
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from clusterddp.config.schema import Ddp, Train
from clusterddp.dist import World, operation
from clusterddp.errors import UsageError

__all__ = ["Waiting", "prepare", "warm_ups", "wrap"]

_MODES = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_SHAPES = 64
# Of the hook, which clusterddp.training.compression brings in.
_NOT_DDPS = {"comm_hook", "powersgd_rank", "powersgd_start"}


def prepare(model: nn.Module, train: Train, device: Device) -> nn.Module:
    """Give the model on its device, its batch norms replaced if that is asked for.

    Compilation is in place, so that names in checkpoints stay as they are.

    Raises:
        UsageError: SyncBatchNorm was asked for on a CPU, where torch has none.
    """
    if train.sync_batchnorm:
        if device.type == "cpu" and any(isinstance(m, _MODES) for m in model.modules()):
            raise UsageError(
                "train.sync_batchnorm: found a CPU, expected a GPU: torch computes "
                "SyncBatchNorm only there; set it to false"
            )
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
    model = model.to(device)
    if train.compile is not None:
        _compile(model, train.compile)
    return model


def _compile(model: nn.Module, backend: str) -> None:
    """Compile in place, anew for each shape.

    By default torch compiles a second shape for all shapes at once, and uses that for
    the first one as well. Then the bits of a step depend on which shapes came before
    in this process, and a resumed run has met others (measured on 2.13 with inductor).
    So they do with more shapes than torch's limit, 8: later ones are not compiled.
    """
    from torch._dynamo import config  # 1.3 s, where it is not needed

    # Its name before torch 2.6 was the second.
    names = [n for n in ("recompile_limit", "cache_size_limit") if hasattr(config, n)]
    setattr(config, names[0], _SHAPES)
    if type(model).__module__.partition(".")[0] == "torch":
        # Of a class of torch's own, nn.Sequential for one, `compile` compiles nothing
        # and does not say so (2.13): its frames are skipped, as all of torch's.
        model.forward = torch.compile(model.forward, backend=backend, dynamic=False)
    else:
        model.compile(backend=backend, dynamic=False)


def wrap(
    model: nn.Module, options: Ddp, world: World, device: Device
) -> DistributedDataParallel | None:
    """Give the model in DDP, with rank 0's weights; None in a world of one."""
    if world.world_size == 1:
        return None
    given = options.model_dump(exclude=_NOT_DDPS, exclude_none=True)
    with operation("comparison of the ranks' models"):
        return DistributedDataParallel(
            model, device_ids=[device] if device.type == "cuda" else None, **given
        )


class Waiting:
    """Measures how long DDP waits for rank 0's buffers before a forward pass.

    Without that a slow rank could not be told from those that wait for it.
    """

    def __init__(self, ddp: DistributedDataParallel | None, model: nn.Module) -> None:
        self.seconds = 0.0
        self._since: float | None = None
        if ddp is not None and any(True for _ in model.buffers()):
            ddp.register_forward_pre_hook(self._begin)
            model.register_forward_pre_hook(self._end)

    def take(self) -> float:
        """Give the seconds since the last call."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds

    def _begin(self, _module: nn.Module, _inputs: object) -> None:
        self._since = time.perf_counter()

    def _end(self, _module: nn.Module, _inputs: object) -> None:
        if self._since is not None:
            self.seconds += time.perf_counter() - self._since
            self._since = None


def warm_ups(options: Ddp) -> int:
    """Give how many backward passes DDP takes to settle its buckets.

    With a static graph the first one only records (measured: after one, a resumed
    run of 3 ranks differs in bits; after two it does not).
    """
    return 2 if options.static_graph else 1
