"""When no step was finished for too long: a pure clock, told of the progress."""

from collections.abc import Mapping

__all__ = ["StallClock"]

_AUTO_LEAST_S = 300.0
_AUTO_STEPS = 20
_GENEROUS_S = 1800.0
_GENEROUS_TIMES = 10


class StallClock:
    """Counts the seconds since the last news of an attempt.

    While steps are finished the patience is `retry.stall_timeout`; with `auto` 5
    minutes, or 20 of the slowest steps seen, and half an hour until two were. At the
    start, in evaluations, saves and after the last step, which take as long as they
    take, it is half an hour, or 10 times that.
    """

    def __init__(
        self, patience_s: float | None, before: Mapping[str, object] | None, now: float
    ) -> None:
        """Start to count.

        Args:
            patience_s: `retry.stall_timeout`; None: from the measured step time.
            before: what an earlier attempt left in progress.json; no news.
            now: seconds of a clock that never goes back.
        """
        self._patience_s = patience_s
        self._before = dict(before or {})
        self._seen: tuple[object, object, object] | None = None
        self._news_at = now
        self._step_at: tuple[int, float] | None = None
        self._slowest_s = 0.0

    def note(self, progress: Mapping[str, object] | None, now: float) -> None:
        """Take in what progress.json says now."""
        if progress is None or (self._seen is None and dict(progress) == self._before):
            return
        step, phase, saved = (progress.get(k) for k in ("step", "phase", "checkpoint"))
        if step == progress.get("total_steps", -1):
            phase = "end"  # no further step is expected
        elif phase == "save" and saved == step:
            phase = "train"  # the save is done, and a step goes on
        seen = (step, phase, saved)
        if seen == self._seen:
            return
        self._seen, self._news_at = seen, now
        if isinstance(step, int):
            self._measure(step, now)

    def forgive(self, seconds: float) -> None:
        """Leave out a time in which this process itself stood still."""
        if seconds > 0:
            self._news_at += seconds
            self._step_at = None

    def is_over(self, now: float) -> bool:
        """Say whether there was no news for longer than the patience."""
        return now - self._news_at > self.patience_s

    @property
    def patience_s(self) -> float:
        """How long silence is taken for work, in seconds, as things stand."""
        patience = self._patience_s
        if patience is None and not self._slowest_s:
            return _GENEROUS_S  # one step may take longer than any guess
        if patience is None:
            patience = max(_AUTO_LEAST_S, _AUTO_STEPS * self._slowest_s)
        if self._seen is not None and self._seen[1] == "train":
            return patience
        return max(_GENEROUS_S, _GENEROUS_TIMES * patience)

    def _measure(self, step: int, now: float) -> None:
        if self._step_at is not None and step > self._step_at[0]:
            per_step = (now - self._step_at[1]) / (step - self._step_at[0])
            self._slowest_s = max(self._slowest_s, per_step)
        self._step_at = (step, now)
