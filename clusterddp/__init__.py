"""PyTorch DDP training on Slurm: submit once, and the run finishes.

Public names are loaded on first use: importing the package never imports torch,
so that the command line stays quick.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clusterddp.dist import World, device, init_dist, shutdown
    from clusterddp.errors import ClusterDDPError
    from clusterddp.training import (
        Checkpoints,
        Experiment,
        GlobalSampler,
        MetricLog,
        ResourceMonitor,
        StopSignal,
        Trainer,
        reduce_mean,
    )

__version__ = "0.1.0"

_HOMES = {
    "Checkpoints": "clusterddp.training",
    "ClusterDDPError": "clusterddp.errors",
    "Experiment": "clusterddp.training",
    "GlobalSampler": "clusterddp.training",
    "MetricLog": "clusterddp.training",
    "ResourceMonitor": "clusterddp.training",
    "StopSignal": "clusterddp.training",
    "Trainer": "clusterddp.training",
    "World": "clusterddp.dist",
    "device": "clusterddp.dist",
    "init_dist": "clusterddp.dist",
    "reduce_mean": "clusterddp.training",
    "shutdown": "clusterddp.dist",
}

__all__ = [
    "Checkpoints",
    "ClusterDDPError",
    "Experiment",
    "GlobalSampler",
    "MetricLog",
    "ResourceMonitor",
    "StopSignal",
    "Trainer",
    "World",
    "device",
    "init_dist",
    "reduce_mean",
    "shutdown",
]


def __getattr__(name: str) -> object:
    """Load a public name from the module that holds it."""
    if name not in _HOMES:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
