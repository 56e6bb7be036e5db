"""Which checkpoints may go: a pure decision over what is there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from clusterddp.config.schema import Best
from clusterddp.errors import UsageError

__all__ = ["Kept", "choose_doomed", "is_rated"]


@dataclass(frozen=True)
class Kept:
    """A published checkpoint, as retention sees it.

    Attributes:
        path: the directory.
        step: finished steps.
        metrics: of the evaluation of these very weights; empty without one.
    """

    path: Path
    step: int
    metrics: Mapping[str, float] = field(default_factory=dict)


def choose_doomed(
    there: Sequence[Kept], *, keep: int, keep_every: int | None, best: Best | None
) -> list[Path]:
    """Give the checkpoints that no rule keeps, the oldest first; pure.

    The newest `keep` (at least 2) stay, and with them the one that the run was
    started from until two newer ones are durable.

    Args:
        there: what is published, in any order.
        keep: how many of the newest stay.
        keep_every: those at multiples of so many steps stay, too.
        best: the one with the best value of this metric stays, too.
    """
    by_step = sorted(there, key=lambda each: each.step)
    staying = {each.step for each in by_step[-max(2, keep) :]}
    if keep_every is not None:
        staying |= {each.step for each in by_step if each.step % keep_every == 0}
    if best is not None:
        staying |= {each.step for each in _best(by_step, best)}
    return [each.path for each in by_step if each.step not in staying]


def is_rated(best: Best | None, metrics: Mapping[str, float]) -> bool:
    """Say whether an evaluation has just rated these weights, so that they be saved.

    Raises:
        UsageError: it has, but not by the metric that `checkpoint.best` names.
    """
    if best is None or not metrics:
        return False
    if best.metric not in metrics:
        raise UsageError(
            f"checkpoint.best: the evaluation gave no {best.metric}, only "
            f"{', '.join(sorted(metrics))}; name one of these"
        )
    return True


def _best(by_step: Sequence[Kept], best: Best) -> list[Kept]:
    """Give the best one as a list; of equal ones the newest; [] if none has it."""
    rated = [each for each in by_step if _is_number(each.metrics.get(best.metric))]
    sign = 1 if best.mode == "max" else -1
    return sorted(rated, key=lambda e: (sign * e.metrics[best.metric], e.step))[-1:]


def _is_number(value: float | None) -> bool:
    return value is not None and value == value  # noqa: PLR0124 - NaN is not itself
