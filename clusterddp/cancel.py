"""`clusterddp.cancel RUN ...`: let the ranks save, then end the job for good."""

import argparse
import os
import sys
from collections.abc import Sequence

from clusterddp.terminal import run_verb, talk_to_stderr

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the verb and give its exit code."""
    given = build_parser().parse_args(arguments)
    talk_to_stderr()
    return run_verb(lambda: _cancel(given))


def build_parser() -> argparse.ArgumentParser:
    """Give the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="clusterddp cancel",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="End runs for good: their ranks are asked to save and leave, then\n"
        "the job is cancelled. Whatever was about to happen to the job (a requeue, a\n"
        "restart) happens no more, and resubmit leaves the run alone.",
        epilog="examples:\n"
        "  clusterddp cancel digits           its latest run; nothing is lost\n"
        "  clusterddp cancel digits --now     without waiting for a save\n"
        "\nexit codes: 0 over, 2 no such run, 4 Slurm does not answer",
    )
    add = parser.add_argument
    add("runs", metavar="RUN", nargs="+", help="run directory, NAME or NAME/ID")
    add("--now", action="store_true", help="do not wait for the ranks to save")
    add(
        "--patience",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="how long the ranks may take to save (600)",
    )
    add("--runs", dest="root", metavar="DIR", help="where runs lie ($CLUSTERDDP_RUNS)")
    return parser


def _cancel(given: argparse.Namespace) -> int:
    from clusterddp.cancelling import cancel_run
    from clusterddp.runs.finding import find_root, select_runs

    patience_s = 0.0 if given.now else given.patience
    for run in select_runs(given.runs, find_root(given.root, os.environ)):
        sys.stdout.write(f"{run.path}: {cancel_run(run, patience_s)}\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
