"""`clusterddp.why RUN`: what ended it, who was first, where it stands, what to do."""

import argparse
import json
import os
import sys
import textwrap
from collections.abc import Sequence

from clusterddp.runs.explanation import Explanation
from clusterddp.runs.finding import find_root, find_run
from clusterddp.runs.inquiry import examine
from clusterddp.tables import columns_of
from clusterddp.terminal import run_verb, talk_to_stderr

__all__ = ["main", "render_explanation"]

_WIDTH = 88


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
        sys.stdout.write(render_explanation(found, columns_of(sys.stdout, _WIDTH)))
    return 0


def render_explanation(found: Explanation, columns: int = _WIDTH) -> str:
    """Give paragraph and evidence as text, the paragraph in lines so long; pure."""
    width = max(len(label) for label, _ in found.evidence)
    lines = [textwrap.fill(found.paragraph, columns, break_long_words=False), ""]
    for label, text in found.evidence:
        first, *more = text.splitlines() or [""]
        lines.append(f"{label:<{width}}  {first}")
        lines += [f"{'':<{width}}  {line}" for line in more]
    return "".join(f"{line.rstrip()}\n" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
