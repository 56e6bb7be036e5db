"""The guard against NaN and Inf: whether a step is made, left out, or the last one."""

from collections.abc import Mapping
from typing import Any, Literal

from clusterddp.errors import NumbersError

__all__ = ["NumberGuard", "Policy"]

Policy = Literal["stop", "skip", "ignore"]


class NumberGuard:
    """Decides on steps whose averaged gradients are not finite; equal on all ranks.

    A NaN or Inf of one rank is in the average of all ranks, so all decide alike
    without a word, and before the optimizer has touched the weights.
    """

    def __init__(self, policy: Policy, most: int, *, scaled: bool) -> None:
        """Begin with no skipped step.

        Args:
            policy: `stop` at the first; `skip` it; or `ignore`: do not look.
            most: stop when so many steps in a row were skipped.
            scaled: whether the loss is scaled (fp16): an overflow is then no fault
                but the way in which the scale is found.
        """
        self._policy, self._most, self._scaled = policy, most, scaled
        self.skipped = 0
        """Steps left out since the start of the training."""
        self._in_a_row = 0

    @property
    def is_watching(self) -> bool:
        """Whether anything has to be looked at."""
        return self._scaled or self._policy != "ignore"

    def allows(self, *, finite: bool, step: int) -> bool:
        """Say whether the step is made.

        Args:
            finite: whether all averaged gradients are.
            step: the number of finished steps.

        Raises:
            NumbersError: the policy ends the training here.
        """
        if finite:
            self._in_a_row = 0
            return True
        self.skipped += 1
        self._in_a_row += 1
        if self._policy == "stop" and not self._scaled:
            self._end(step, "found NaN or Inf in the average over all ranks")
        if self._in_a_row >= self._most:
            self._end(step, f"found NaN or Inf in {self._in_a_row} steps in a row")
        return False

    def state(self) -> dict[str, int]:
        """Give what a checkpoint must hold."""
        return {"skipped": self.skipped, "in_a_row": self._in_a_row}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` gave."""
        self.skipped, self._in_a_row = state["skipped"], state["in_a_row"]

    def _end(self, step: int, found: str) -> None:
        raise NumbersError(
            f"gradients of step {step + 1}: {found}, expected finite numbers; the "
            "weights are as after the step before, and so is the newest checkpoint: "
            "lower the learning rate, set train.clip_grad_norm, or leave such steps "
            "out with train.not_finite=skip (train.max_skips in a row)"
        )
