"""`clusterddp.drill RUN`: rehearse a failure on a live run, and see what it costs."""

import argparse
import sys
from collections.abc import Sequence

from clusterddp.terminal import run_verb, talk_to_stderr

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the verb and give its exit code."""
    given = build_parser().parse_args(arguments)
    talk_to_stderr()
    return run_verb(lambda: _drill(given))


def build_parser() -> argparse.ArgumentParser:
    """Give the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="clusterddp drill",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Let a live run go through a failure for real, before you trust a\n"
        "site: the same signals, the same save, the same requeue. Reports what was\n"
        "saved, how long it took and how many steps were lost.",
        epilog="examples:\n"
        "  clusterddp drill digits --preempt        signal, save, requeue, go on\n"
        "  clusterddp drill digits --kill-rank 3    kill -9, restart in the job\n"
        "\nexit codes: 0 the run goes on, 1 it does not, 2 no such live run, 4 Slurm",
    )
    add = parser.add_argument
    add("run", metavar="RUN", help="run directory, NAME or NAME/ID")
    kinds = parser.add_mutually_exclusive_group(required=True)
    what = kinds.add_argument
    what("--preempt", action="store_true", help="SIGTERM to the ranks, then a requeue")
    what("--timeout", action="store_true", help="the signal before the time limit")
    what("--kill-rank", type=int, metavar="R", help="kill -9 of a rank")
    what("--stall", type=int, metavar="R", help="SIGSTOP of a rank")
    add("--runs", dest="root", metavar="DIR", help="where runs lie ($CLUSTERDDP_RUNS)")
    add(
        "--patience",
        type=float,
        default=1800.0,
        metavar="SECONDS",
        help="how long to wait for the run to go on (1800)",
    )
    add("--json", action="store_true", help="print a JSON object instead")
    return parser


def _drill(given: argparse.Namespace) -> int:
    from clusterddp.drilling import drill

    return drill(given)


if __name__ == "__main__":
    sys.exit(main())
