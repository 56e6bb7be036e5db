"""Bringing runs back: look at all of them, judge each, act, and say what was done."""

import argparse
import json
import logging
import os
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from clusterddp.config.room import judge_room
from clusterddp.errors import ClusterDDPError, SlurmError, UsageError
from clusterddp.launch.successor import (
    find_sent_job,
    note_changes,
    note_sent_job,
    send_further_job,
)
from clusterddp.processes import is_same_process
from clusterddp.runs.changes import check_changes, read_run_job
from clusterddp.runs.claims import count_claims, is_in_progress, unresolved_claim
from clusterddp.runs.directory import RunDirectory
from clusterddp.runs.facts import Facts, read_facts
from clusterddp.runs.finding import find_root, select_runs
from clusterddp.runs.revival import STATES, Judgement, Known, Wish, judge
from clusterddp.runs.timing import read_room
from clusterddp.slurm.hold import lift_hold
from clusterddp.slurm.listing import ask_accounting, ask_queue
from clusterddp.slurm.patience import Backoff
from clusterddp.tables import plain_table

__all__ = ["resubmit"]

_LOG = logging.getLogger("clusterddp")
_HEAD = ("RUN", "STATE", "ACTION", "JOB", "WHY")


@dataclass(frozen=True)
class Row:
    """One line of the table: a run, what it was in, what was done, and why."""

    run: str
    path: str
    state: str
    action: str
    job: str | None
    why: str


@dataclass(frozen=True)
class _Order:
    """What the command line asks for."""

    words: tuple[str, ...]
    changes: tuple[str, ...]
    wish: Wish
    root: str | None
    dry_run: bool


def resubmit(given: argparse.Namespace) -> int:
    """Carry out what `clusterddp.resubmit` was asked, and give its exit code.

    Raises:
        UsageError: a word means no run, or a change may not be made.
        SlurmError: sbatch refuses the one run that was named.
    """
    order = _read_order(given)
    if given.watch is not None:
        _watch(order, given)
    rows = _look_after(order)
    _print(rows, as_json=given.json)
    if any(row.action == "refused" for row in rows):
        return SlurmError.exit_code
    here = [row.path for row in rows if row.action == "runs here"]
    return _run_here(here) if here else 0


def _read_order(given: argparse.Namespace) -> _Order:
    flags = {"nodes": given.nodes, "tasks_per_node": given.tasks_per_node}
    changes = [word for word in given.words if _is_change(word)]
    changes += [f"slurm.{key}={n}" for key, n in flags.items() if n is not None]
    words = tuple(word for word in given.words if not _is_change(word))
    if bool(words) == given.all:
        message = (
            f"resubmit: found {'both RUN and --all' if words else 'no RUN'}, expected "
            "runs by name, or --all for those below the root"
        )
        raise UsageError(message)
    wish = Wish(bool(words), given.force, _states(given.state))
    return _Order(words, check_changes(changes), wish, given.root, given.dry_run)


def _is_change(word: str) -> bool:
    return "=" in word and not os.path.exists(word)  # noqa: PTH110 - a word, no path


def _states(given: str | None) -> tuple[str, ...]:
    if given is None:
        return STATES
    found = tuple(given.replace(" ", "").split(","))
    for name in found:
        if name not in STATES:
            message = f"--state {name}: expected one or more of {', '.join(STATES)}"
            raise UsageError(message)
    return found


def _watch(order: _Order, given: argparse.Namespace) -> NoReturn:
    """Look after runs until somebody ends it; says only what is new."""
    said: dict[str, tuple[str, str, str]] = {}
    pause_s = max(1.0, given.watch)
    refusals = Backoff(pause_s)
    while True:
        rows = _look_after(order, refusals)
        fresh = [row for row in rows if said.get(row.path) != _gist(row)]
        if fresh:
            _print(fresh, as_json=given.json)
        said |= {row.path: _gist(row) for row in rows}
        time.sleep(pause_s)


def _gist(row: Row) -> tuple[str, str, str]:
    return row.state, row.action, row.why


def _look_after(order: _Order, refusals: Backoff | None = None) -> list[Row]:
    """Judge every run with one squeue and one sacct, then act on each.

    Args:
        order: what was asked for.
        refusals: runs that were refused lately and are let rest; they get no row.
    """
    runs = select_runs(order.words, find_root(order.root, os.environ))
    rows = []
    for known in _survey(runs):
        path, now = str(known.facts.run.path), time.monotonic()
        if refusals is not None and refusals.rests(path, now):
            continue
        rows.append(_act(known, judge(known, order.wish), order))
        if refusals is not None:
            refusals.note(path, now, is_refused=rows[-1].action == "refused")
    return rows


def _survey(runs: Sequence[RunDirectory]) -> list[Known]:
    _settle_claims(runs)
    claims = [count_claims(run) for run in runs]  # before anything else is looked at
    facts = [read_facts(run) for run in runs]
    ids = sorted({one.job_id for one in facts if one.job_id and not _is_done(one)})
    queue = ask_queue(ids)
    missing = sorted(set(ids) - set(queue or {}))
    counted = (ask_accounting(missing) or {}) if queue is not None else {}
    return [
        Known(
            one,
            (queue or {}).get(one.job_id or ""),
            counted.get(one.job_id or ""),
            answered=queue is not None,
            is_alive=_is_alive(one),
            in_progress=unresolved_claim(one.run) is not None,
            claims=seen,
        )
        for one, seen in zip(facts, claims, strict=True)
    ]


def _is_done(facts: Facts) -> bool:
    return facts.summary is not None and facts.summary.cause == "completed"


def _settle_claims(runs: Sequence[RunDirectory]) -> None:
    """Find out what became of submissions that nobody could note down."""
    for run in runs:
        claim = unresolved_claim(run)
        if claim is None or is_in_progress(claim):
            continue
        try:
            job_id = find_sent_job(run, claim.token)
        except SlurmError as error:
            _LOG.warning("%s", error)
            continue
        if job_id is None:
            claim.path.unlink(missing_ok=True)
        else:
            note_sent_job(run, job_id, claim)


def _is_alive(facts: Facts) -> bool | None:
    owner = facts.owner or {}
    pid, created = owner.get("pid"), owner.get("created")
    if facts.job_id is not None or not isinstance(pid, int):
        return False
    if owner.get("host") != socket.gethostname():
        return None
    return is_same_process(pid, float(str(created)))


def _act(known: Known, judgement: Judgement, order: _Order) -> Row:
    """Do what was judged; a failure of one run is its row, the others go on."""
    facts = known.facts
    name = f"{facts.name}/{facts.run.id}"
    action, job, why = "left alone", facts.job_id, judgement.why
    if order.dry_run and judgement.action != "leave":
        action = f"would {judgement.action}"
    elif judgement.action != "leave":
        try:
            action, job = _carry_out(known, judgement, order)
        except ClusterDDPError as error:
            action, why = "refused", str(error)
    return Row(name, str(facts.run.path), judgement.state, action, job, why)


def _carry_out(
    known: Known, judgement: Judgement, order: _Order
) -> tuple[str, str | None]:
    run, job_id = known.facts.run, known.facts.job_id
    if judgement.action == "release":
        lift_hold(str(job_id))
        return "released", job_id
    job = read_run_job(run, order.changes)
    if judgement.action == "run here":
        if order.changes:
            note_changes(run, order.changes)
        return "runs here", None
    from clusterddp.supervise import in_job

    if text := judge_room(job, *read_room([run])):
        _LOG.warning("%s: slurm.time: %s", run.path, text)
    sent = send_further_job(
        run, job, os.environ, in_job, changes=order.changes, seen=known.claims
    )
    return "resubmitted", sent


def _run_here(paths: Sequence[str]) -> int:
    """Go on with a local run in the foreground.

    Raises:
        UsageError: there are several.
    """
    from clusterddp.runs.view import live_view
    from clusterddp.supervise import supervise

    if len(paths) > 1:
        message = f"resubmit: found {len(paths)} local runs, expected one; name it"
        raise UsageError(message)
    run = RunDirectory(Path(paths[0]))
    with live_view(run):
        return supervise(run.path)


def _print(rows: Sequence[Row], *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps([vars(row) for row in rows]) + "\n")
    else:
        cells = [(r.run, r.state, _cell(r.action), r.job or "-", r.why) for r in rows]
        sys.stdout.write(plain_table(_HEAD, cells) if cells else "no runs\n")
    sys.stdout.flush()


def _cell(text: str) -> str:
    return text.replace(" ", "-")
