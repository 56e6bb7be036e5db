"""Training: what the ranks do, and the pieces of it for a user's own loop."""

from clusterddp.training.checkpoints import Checkpoints, Loaded, Saved, Snapshot
from clusterddp.training.experiment import Experiment
from clusterddp.training.metrics import MetricLog, reduce_mean
from clusterddp.training.resources import ResourceMonitor
from clusterddp.training.sampler import GlobalSampler
from clusterddp.training.stop import StopSignal
from clusterddp.training.trainer import Outcome, Trainer

__all__ = [
    "Checkpoints",
    "Experiment",
    "GlobalSampler",
    "Loaded",
    "MetricLog",
    "Outcome",
    "ResourceMonitor",
    "Saved",
    "Snapshot",
    "StopSignal",
    "Trainer",
    "reduce_mean",
]
