"""When the ranks have said their last word, and what holds them should be gone."""

from clusterddp.runs.directory import AttemptDirectory

__all__ = ["Parting"]

# Longer than ranks need to leave, and than srun needs to end the others when one has
# failed: KillWait is 30 s by default (slurm.conf(5)).
_PATIENCE_S = 60.0
_LOOK_S = 1.0


class Parting:
    """Tells of an srun, or an agent, that outlives its ranks.

    One that stands still (SIGSTOP, a dead file system) never sees that its ranks have
    left, and nothing else would end it before the stall timeout, half an hour at the
    end of a run.
    """

    def __init__(self, attempt: AttemptDirectory, *, has_summary: bool) -> None:
        """Begin when the ranks are started.

        Args:
            attempt: their attempt.
            has_summary: whether rank 0's summary means that all are done; a script's
                rank 0 speaks for itself alone.
        """
        self._attempt, self._has_summary = attempt, has_summary
        self._spoken_at: float | None = None
        self._looked_at = 0.0

    @property
    def has_begun(self) -> bool:
        """Whether the ranks leave: no further step is expected of them."""
        return self._spoken_at is not None

    def is_late(self, age_s: float) -> bool:
        """Say whether the ranks should be gone for long; call it often.

        Args:
            age_s: for how long the ranks have been there, suspensions left out.
        """
        if self._spoken_at is None and age_s - self._looked_at >= _LOOK_S:
            self._looked_at = age_s
            if self._have_spoken():
                self._spoken_at = age_s
        return self._spoken_at is not None and age_s - self._spoken_at > _PATIENCE_S

    def _have_spoken(self) -> bool:
        """A rank writes its verdict when it leaves; the others follow, or are ended."""
        if self._has_summary and self._attempt.summary.exists():
            return True
        return any(self._attempt.verdicts.glob("rank-*.json"))
