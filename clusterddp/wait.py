"""Staying with a submitted run until it has ended: `submit --wait`."""

import logging
import time

from clusterddp.errors import EXIT_INTERRUPTED, EXIT_STOPPED, SlurmError
from clusterddp.runs.directory import RunDirectory
from clusterddp.runs.history import last_job, read_exit_code
from clusterddp.runs.view import RunView
from clusterddp.slurm.hold import is_held, lift_hold
from clusterddp.slurm.jobs import JobInfo, Phase, query_job
from clusterddp.slurm.patience import patiently

__all__ = ["wait_for"]

_LOG = logging.getLogger("clusterddp")
_LOOK_S = 0.5
_ASK_FIRST_S, _ASK_LAST_S = 1.0, 15.0


def wait_for(run: RunDirectory, job_id: str) -> int:
    """Show a run until it has ended, and give its exit code.

    Ctrl-C leaves the job alone and says how to cancel it. A requeued job is held
    by Slurm for two minutes; the hold is lifted here, which a user may do once the
    job is pending.
    """
    view = RunView(run)
    try:
        return _Wait(run, job_id, view).until_over()
    except KeyboardInterrupt:
        _LOG.warning(
            "detached: job %s goes on; cancel it with scancel %s", job_id, job_id
        )
        return EXIT_INTERRUPTED
    finally:
        view.close()


class _Wait:
    """Asks Slurm ever less often while nothing changes, and looks at files often."""

    def __init__(self, run: RunDirectory, job_id: str, view: RunView) -> None:
        self._run = run
        self._job_id = job_id
        self._view = view
        self._said = ""
        self._lifted = -1
        self._interval = _ASK_FIRST_S

    def until_over(self) -> int:
        overs = 0
        while True:
            info = patiently(lambda: query_job(self._job_id))
            # A job that Slurm requeues by itself is over for a moment: look twice.
            overs = overs + 1 if info is None or info.phase is Phase.OVER else 0
            if overs > 1 and not self._follow_successor():
                return self._judge(info)
            if info is not None:
                self._tell(info)
                self._lift_hold(info)
            self._look_for(self._interval if overs == 0 else _ASK_FIRST_S)

    def _follow_successor(self) -> bool:
        """Go over to the job that goes on with the run, where another one does."""
        newest = last_job(self._run)
        if newest is None or newest == self._job_id:
            return False
        self._job_id, self._lifted = newest, -1
        return True

    def _look_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._view.update()
            if read_exit_code(self._run) is not None:
                self._interval = _ASK_FIRST_S
                return
            time.sleep(min(_LOOK_S, max(0.0, end - time.monotonic())))

    def _tell(self, info: JobInfo) -> None:
        reason = f" ({info.reason})" if info.reason not in ("", "None") else ""
        text = f"{info.state}{reason}"
        if text == self._said:
            self._interval = min(self._interval * 1.5, _ASK_LAST_S)
            return
        self._said, self._interval = text, _ASK_FIRST_S
        self._view.say(f"job {self._job_id}: {text}")

    def _lift_hold(self, info: JobInfo) -> None:
        if is_held(info.state, info.reason) and info.restarts > self._lifted:
            self._lifted = info.restarts
            lift_hold(self._job_id)

    def _judge(self, info: JobInfo | None) -> int:
        code = read_exit_code(self._run)
        if code is not None:
            return code
        state = info.state if info is not None else "gone from squeue and sacct"
        if state.startswith(("CANCELLED", "PREEMPTED", "NODE_FAIL", "TIMEOUT")):
            _LOG.warning("job %s: %s; the run can be resumed", self._job_id, state)
            return EXIT_STOPPED
        message = (
            f"job {self._job_id}: {state}, and its supervisor left no word; see "
            f"{self._run.submitit}"
        )
        raise SlurmError(message)
