"""Which checkpoints stay: the newest, every k-th, the best; and never the last good."""

import math
from pathlib import Path

import pytest

from clusterddp.config.schema import Best
from clusterddp.errors import UsageError
from clusterddp.training.retention import Kept, choose_doomed, is_rated

LOWEST = Best(mode="min", metric="loss")
HIGHEST = Best(mode="max", metric="loss")


def there(**losses: float | None) -> list[Kept]:
    """Give checkpoints by step, `s7=0.5`; None: not rated."""
    return [
        Kept(Path(name), int(name[1:]), {} if loss is None else {"loss": loss})
        for name, loss in losses.items()
    ]


TEN = there(**dict.fromkeys((f"s{step}" for step in range(1, 11)), None))
RATED = there(s1=0.5, s2=0.1, s3=None, s4=0.9, s5=math.nan, s6=0.3, s7=None)


@pytest.mark.parametrize(
    ("found", "keep", "keep_every", "best", "left"),
    [
        ([], 2, None, None, []),
        (TEN[:2], 2, None, None, [1, 2]),
        (TEN, 2, None, None, [9, 10]),
        (TEN, 1, None, None, [9, 10]),
        (TEN, 3, None, None, [8, 9, 10]),
        (TEN[::-1], 2, None, None, [9, 10]),
        (TEN, 2, 4, None, [4, 8, 9, 10]),
        (RATED, 2, None, LOWEST, [2, 6, 7]),
        (RATED, 2, None, HIGHEST, [4, 6, 7]),
        (RATED, 2, 3, LOWEST, [2, 3, 6, 7]),
        (TEN, 2, None, LOWEST, [9, 10]),
        (there(s1=0.1, s2=0.1, s3=0.2, s4=0.2), 2, None, LOWEST, [2, 3, 4]),
        (there(s1=math.nan, s2=None, s3=None), 2, None, LOWEST, [2, 3]),
    ],
)
def test_what_stays(
    found: list[Kept],
    keep: int,
    keep_every: int | None,
    best: Best | None,
    left: list[int],
) -> None:
    """Whatever the order in which they are found; never fewer than two."""
    gone = choose_doomed(found, keep=keep, keep_every=keep_every, best=best)
    assert [each.step for each in found if each.path not in gone] == sorted(
        left, reverse=found == TEN[::-1]
    )


def test_the_best_needs_a_metric_that_there_is() -> None:
    """A misspelt one would keep nothing, silently."""
    assert not is_rated(None, {"loss": 1.0})
    assert not is_rated(LOWEST, {})
    assert is_rated(LOWEST, {"loss": 1.0})
    words = "checkpoint.best: the evaluation gave no loss, only accuracy, top5; name"
    with pytest.raises(UsageError, match=words):
        is_rated(LOWEST, {"top5": 0.9, "accuracy": 0.5})
