"""Evaluation: every sample once, on all ranks, weighted by samples or tokens."""

from collections.abc import Callable, Iterator, Mapping
from itertools import chain, count

import torch
from torch import Tensor, nn

from clusterddp.config.schema import Train
from clusterddp.dist import World, reduce_sums
from clusterddp.errors import UsageError
from clusterddp.training.data import BatchKey, BatchSource, SeededBatches, move
from clusterddp.training.experiment import Experiment
from clusterddp.training.losses import Share, call_loss, evaluating, weigh
from clusterddp.training.precision import Precision
from clusterddp.training.randomness import mix, preserved
from clusterddp.training.sampler import share
from clusterddp.training.sums import WeightedSums, means

__all__ = ["Evaluator"]

_EVALUATION = 0x6576616C  # "eval": keeps this stream apart from the others


class Evaluator:
    """Evaluates the bare model on `eval_data`; equal at every number of ranks."""

    def __init__(
        self,
        experiment: Experiment,
        world: World,
        device: torch.device,
        train: Train,
    ) -> None:
        """Divide the data among the ranks.

        Args:
            experiment: gives the data and the function.
            world: this rank among the others.
            device: where this rank computes.
            train: seed, batch size of all ranks together, workers, precision.
        """
        self._experiment = experiment
        self._world = world
        self._device = device
        self._workers = train.workers
        self._precision = Precision(train.precision, device)
        self._source: BatchSource | None = None
        self._batches: SeededBatches | None = None
        self._plan: list[range] = []
        if experiment.eval_data is not None:
            self._batches = SeededBatches(
                experiment.eval_data, experiment.collate, mix(train.seed, _EVALUATION)
            )
            first, last = share(len(self._batches), world.rank, world.world_size)
            size = -(-train.global_batch_size // world.world_size)
            starts = range(first, last, size)
            self._plan = [range(at, min(at + size, last)) for at in starts]

    @property
    def wanted(self) -> bool:
        """Whether there is anything to evaluate."""
        return self._batches is not None

    def run(
        self, model: nn.Module, *, interrupted: Callable[[], bool]
    ) -> dict[str, float] | None:
        """Give the means over all samples; all ranks must call it.

        The ranks meet only at the end, because they may have unequal numbers of
        batches. Random streams and the modes of all modules are left as they were.

        Args:
            model: the bare model.
            interrupted: asked after each batch; True gives up.

        Returns:
            Values by name, or None on all ranks if one of them gave up.
        """
        if self._batches is None:
            return {}
        sums = WeightedSums(self._device)
        with preserved(self._device), evaluating(model):
            finished = self._collect(self._batches, model, sums, interrupted)
        if reduce_sums([0.0 if finished else 1.0])[0] > 0:
            return None
        reduced = sums.reduce(self._world, source="Experiment.evaluate").finish()
        return means(reduced.sums)

    def _collect(
        self,
        batches: SeededBatches,
        model: nn.Module,
        sums: WeightedSums,
        interrupted: Callable[[], bool],
    ) -> bool:
        if self._source is None:
            self._source = self._start(batches)
        names: set[str] | None = None
        for key in self._keys():
            if interrupted():
                return False
            batch = self._source.next(lambda due=key: due, alone=interrupted)  # type: ignore[misc]
            size = len(key.samples) if self._plan else 0
            share = Share(move(batch, self._device), size)
            with self._precision.autocast():
                values = self._evaluate(model, share.batch)
            names = _check_names(values, names)
            sums.add(values, weigh(self._experiment, [share], self._device)[0])
        return True

    def close(self) -> None:
        """Let the workers go."""
        if self._source is not None:
            self._source.close()

    def _start(self, batches: SeededBatches) -> BatchSource:
        # One source for all evaluations of the process: workers that are not forked
        # import everything again when they start, which takes seconds. An
        # evaluation that gives up is the last one, so the source is never astray.
        return BatchSource(
            batches,
            lambda: chain.from_iterable(self._keys() for _ in count()),
            workers=self._workers,
            pin_memory=self._device.type == "cuda",
        )

    def _keys(self) -> Iterator[BatchKey]:
        # A rank without a sample evaluates one with weight 0: it learns the names.
        for indices in self._plan or [range(1)]:
            yield BatchKey(0, indices)

    def _evaluate(self, model: nn.Module, batch: object) -> Mapping[str, Tensor]:
        if self._experiment.evaluate is not None:
            return self._experiment.evaluate(model, batch)
        loss, values = call_loss(self._experiment.loss, model, batch)
        return {"loss": loss, **values}


def _check_names(values: Mapping[str, Tensor], names: set[str] | None) -> set[str]:
    if names is not None and names != set(values):
        raise UsageError(
            f"Experiment.evaluate: gave {sorted(values)}, before {sorted(names)}; give "
            "the same names for every batch"
        )
    return set(values)
