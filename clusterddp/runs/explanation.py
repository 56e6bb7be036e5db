"""Why a run is where it is: one paragraph and its evidence; a pure function."""

from collections.abc import Iterator
from dataclasses import dataclass

from clusterddp.runs.evidence import AttemptEvidence
from clusterddp.runs.exhibits import Case, list_evidence
from clusterddp.runs.status import Status
from clusterddp.slurm.hold import was_not_started
from clusterddp.tables import brief_seconds

__all__ = ["Explanation", "explain"]

_CAUSES = {
    "completed": "the last step is done and saved",
    "preempted": "Slurm preempted the job: the ranks stopped together and saved",
    "time limit": "the job's time limit came near: the ranks stopped and saved",
    "signalled": "a signal asked the ranks to stop, and nobody claims it",
    "suspended": "the job was suspended, and its ranks did not outlive that",
    "node failure": "a node of the job no longer answered",
    "crash": "a rank failed",
    "stalled": "no step was finished for longer than retry.stall_timeout",
    "out of memory": "the memory was used up",
    "cancelled": "somebody cancelled the job",
    "requeued": "somebody requeued the job",
    "interrupted": "somebody asked the run to stop (Ctrl-C or a signal)",
    "wrong job": "all ranks failed alike before the first step",
}
_NEW_CODE = "a run keeps the code it was submitted with, so mended code is a new run"
_ADVICE = {
    "crash": f"Mend what the traceback shows and submit anew ({_NEW_CODE})",
    "wrong job": f"Mend the error and submit anew ({_NEW_CODE})",
    "out of memory": "Ask for more memory (slurm.mem), or make "
    "train.global_batch_size smaller",
    "stalled": "The stacks say where each rank waited",
    "node failure": "The node is at fault, not the run",
    "time limit": "A larger slurm.time or retry.timeouts lets it go further",
    "preempted": "retry.preemptions is used up",
}
_DEEDS = {
    "restart": "started it again",
    "requeue": "requeued the job",
    "successor": "sent a further job",
    "refused": "could not send a further job yet",
    "needs_resubmit": "could not bring it back",
    "stopped": "stopped",
    "finished": "left",
}
_KILLED = (
    "A rank that is killed from outside usually met the kernel's out-of-memory killer: "
    "see `sacct -j {job} -o JobID,State,MaxRSS`, or the node's dmesg"
)


@dataclass(frozen=True)
class Explanation:
    """A paragraph for a person, and what it rests on, by label."""

    paragraph: str
    evidence: tuple[tuple[str, str], ...]

    def to_json(self) -> dict[str, object]:
        """Give it as a JSON object."""
        return {"paragraph": self.paragraph, "evidence": dict(self.evidence)}


def explain(case: Case) -> Explanation:
    """Give the paragraph and the evidence of a run, alive or dead."""
    sentences = [_opening(case), *_past(case), _standing(case.status), _advice(case)]
    return Explanation(" ".join(filter(None, sentences)), tuple(list_evidence(case)))


def _opening(case: Case) -> str:
    status = case.status
    run = f"Run {status.name}/{status.id}"
    job = f"job {status.job_id}"
    tries = _count(case)
    texts = {
        "finished": f"{run} has finished{_last_step(status)}{tries}.",
        "running": f"{run} is running ({status.detail}){tries}.",
        "pending": f"{run} is waiting in Slurm's queue as {job}: {_waiting(status)}.",
        "stopped": f"{run} has stopped ({status.detail}) and can go on{tries}.",
        "failed": f"{run} has failed ({status.detail}){tries}.",
        "died": f"{run} is over, and its supervisor could not say why: {_end(case)}.",
        "unknown": f"Nobody knows how run {status.name}/{status.id} stands: "
        f"{status.detail}.",
    }
    return texts[status.state]


def _last_step(status: Status) -> str:
    """A script of the user's own tells of no steps."""
    return f": step {status.step} is done and saved" if status.step else ""


def _count(case: Case) -> str:
    if case.status.attempt is None:
        return ""
    return f", in attempt {case.status.attempt}" if case.status.attempt else ""


def _waiting(status: Status) -> str:
    starts = status.starts_in_s
    when = "" if starts is None else f", expected to start in {brief_seconds(starts)}"
    return f"{status.detail}{when}"


def _end(case: Case) -> str:
    if case.job is None:
        return case.status.detail
    code, _, signum = case.job.exit_code.partition(":")
    how = f" (killed by signal {signum})" if signum not in ("", "0") else ""
    how = how or (f" (exit code {code})" if code not in ("", "0") else "")
    where = f" on {case.job.nodes}" if case.job.nodes else ""
    return f"job {case.job.id} ended as {case.job.state}{how}{where}"


def _past(case: Case) -> Iterator[str]:
    """Say how the last attempts ended, and what the supervisor made of it."""
    if case.facts.attempt is None and case.status.state in ("died", "failed"):
        yield "The job ended before its supervisor could start the first attempt."
    last = case.last
    if last is not None and last.cause not in (None, "completed"):
        yield _ended(last)
    if case.newest is not None and case.status.state != "running":
        yield _broken_off(case.newest)
        if case.before is not None:
            yield f"Its allocation on {case.before.nodes} ended as {case.before.state}."


def _ended(one: AttemptEvidence) -> str:
    cause = one.cause or ""
    meaning = _CAUSES.get(cause, "see the ledger")
    text = f"Attempt {one.attempt.number} ended as {cause}: {one.blame or meaning}."
    if one.decision is None:
        return text
    kind = one.decision.kind
    verb = _DEEDS.get(kind, f"said {kind.replace('_', ' ')}")
    reason = str(one.decision.values["reason"]).rstrip(".")
    return f"{text} The supervisor {verb}: {reason}."


def _broken_off(one: AttemptEvidence) -> str:
    text = f"Attempt {one.attempt.number} was broken off without a word of its end"
    saved = [verdict for verdict in one.verdicts if verdict.cause == "stopped"]
    if saved:
        return f"{text}, but its ranks stopped and saved at step {saved[0].step}."
    if one.blame:
        return f"{text}: {one.blame}."
    return f"{text}: a killed supervisor or a lost node leaves none."


def _standing(status: Status) -> str:
    if status.state == "finished":
        return ""
    total = "?" if status.total_steps is None else status.total_steps
    if status.checkpoint_step is None:
        return "There is no checkpoint yet: it begins with the first step."
    age = brief_seconds(status.checkpoint_age_s)
    text = f"The newest checkpoint is of step {status.checkpoint_step} of {total}"
    return f"{text}, {age} old; it goes on from there."


def _advice(case: Case) -> str:
    status, cause = case.status, case.last.cause if case.last else None
    if status.state in ("running", "pending", "finished"):
        return _patience(case)
    if status.state == "unknown" and not case.facts.events:
        return (
            "Its submission was broken off before a job was sent, or its ledger is "
            "lost: submit it once more."
        )
    if status.state == "unknown":
        return "Ask again when Slurm answers; nothing was decided meanwhile."
    first = _first_step(case, cause)
    if cause == "wrong job" and status.state == "failed":
        return f"{first}."
    way = "The command that goes on from there stands below"
    return f"{first}. {way}." if first else f"{way}."


def _patience(case: Case) -> str:
    status = case.status
    if status.state == "finished":
        return ""
    if status.detail == "BeginTime":
        return (
            "Slurm holds a requeued job for a while (two minutes by default); "
            f"`scontrol update JobId={status.job_id} StartTime=now` lifts that. "
            "Else there is nothing to do."
        )
    if was_not_started(status.detail):
        return (
            "A node could not start it, so Slurm drained that node and holds the job "
            "until somebody releases it: `python -m clusterddp.resubmit "
            f"{case.facts.run.path}` does."
        )
    return "There is nothing to do."


def _first_step(case: Case, cause: str | None) -> str:
    if case.status.state == "died" or cause is None:
        before = case.facts.attempt is None
        return "Read the batch task's log below and slurm.setup" if before else ""
    if case.last and _is_killed(case.last):
        return _KILLED.format(job=case.status.job_id or "JOB")
    if cause in ("time limit", "preempted") and case.status.state == "stopped":
        return _ADVICE[cause]
    return _ADVICE.get(cause, "")


def _is_killed(one: AttemptEvidence) -> bool:
    return one.cause == "crash" and ("Killed" in one.blame or "SIGKILL" in one.blame)
