"""`clusterddp.why RUN`: what ended it, who was first, where it stands, what to do."""

import argparse
import json
import os
import sys
import textwrap
import time
from collections.abc import Sequence

from clusterddp.runs.directory import RunDirectory
from clusterddp.runs.evidence import AttemptEvidence, read_evidence, read_last_lines
from clusterddp.runs.explanation import Case, Explanation, explain
from clusterddp.runs.facts import Facts
from clusterddp.runs.finding import find_root, find_run
from clusterddp.runs.survey import survey
from clusterddp.slurm.jobs import Phase
from clusterddp.slurm.listing import ListedJob, ask_accounting
from clusterddp.slurm.programs import Runner, run_program
from clusterddp.terminal import run_verb, talk_to_stderr

__all__ = ["examine", "main", "render_explanation"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the verb and give its exit code."""
    given = build_parser().parse_args(arguments)
    talk_to_stderr()
    return run_verb(lambda: _tell(given))


def build_parser() -> argparse.ArgumentParser:
    """Give the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="clusterddp why",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="One paragraph on why a run is where it is, alive or dead, and\n"
        "what that rests on: cause, first rank, traceback, signals, decision.",
        epilog="examples:\n"
        "  clusterddp why digits              the latest run of that name\n"
        "  clusterddp why runs/digits/20260101-120000-ab12 --json\n"
        "\nexit codes: 0 told, 2 no such run",
    )
    add = parser.add_argument
    add("run", metavar="RUN", help="run directory, NAME or NAME/ID")
    add("--runs", dest="root", metavar="DIR", help="where runs lie ($CLUSTERDDP_RUNS)")
    add("--json", action="store_true", help="print one JSON object instead")
    return parser


def _tell(given: argparse.Namespace) -> int:
    run = find_run(given.run, find_root(given.root, os.environ))
    found = examine(run)
    if given.json:
        sys.stdout.write(json.dumps(found.to_json()) + "\n")
    else:
        sys.stdout.write(render_explanation(found))
    return 0


def examine(
    run: RunDirectory, now: float | None = None, program: Runner = run_program
) -> Explanation:
    """Read all that is known of a run, ask Slurm, and explain it."""
    moment = time.time() if now is None else now
    look = survey([run], moment, program)[0]
    facts = look.facts
    number = _last_ended(facts)
    job, before = _ask_accounting(look.job, program)
    case = Case(
        facts,
        look.status,
        job,
        before,
        None if number is None else read_evidence(facts, number),
        _newest(facts, number),
        _read_batch_log(run),
    )
    return explain(case)


def _last_ended(facts: Facts) -> int | None:
    """Give the newest attempt that ended badly; of a clean run the newest one."""
    ends = [event.values for event in facts.events if event.kind == "attempt_ended"]
    bad = [values for values in ends if values.get("cause") != "completed"]
    found = bad or ends
    return int(str(found[-1].get("attempt", 0))) if found else None


def _ask_accounting(
    job: ListedJob | None, program: Runner
) -> tuple[ListedJob | None, ListedJob | None]:
    """Give the job with its exit code, and how a waiting job's last start ended.

    The queue tells neither.
    """
    if job is None or job.phase not in (Phase.OVER, Phase.WAITING) or job.exit_code:
        return job, None
    counted = (ask_accounting([job.id], program) or {}).get(job.id)
    if counted is None or counted.phase is not Phase.OVER:
        return job, None
    return (counted, None) if job.phase is Phase.OVER else (job, counted)


def _newest(facts: Facts, ended: int | None) -> AttemptEvidence | None:
    is_open = facts.attempt is not None and facts.attempt != ended
    return read_evidence(facts, facts.attempt or 0) if is_open else None


def _read_batch_log(run: RunDirectory) -> tuple[str, ...]:
    logs = sorted(run.submitit.glob("*_log.out"), key=lambda path: path.stat().st_mtime)
    return read_last_lines(logs[-1]) if logs else ()


def render_explanation(found: Explanation) -> str:
    """Give paragraph and evidence as text; pure."""
    width = max(len(label) for label, _ in found.evidence)
    lines = [textwrap.fill(found.paragraph, 88, break_long_words=False), ""]
    for label, text in found.evidence:
        first, *more = text.splitlines() or [""]
        lines.append(f"{label:<{width}}  {first}")
        lines += [f"{'':<{width}}  {line}" for line in more]
    return "".join(f"{line.rstrip()}\n" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
