"""`clusterddp.resubmit`: bring back runs that died and should live.

Only the command line is here; `clusterddp.reviving`, with all that it loads, comes in
when the words are understood.
"""

import argparse
import sys
from collections.abc import Sequence

from clusterddp.terminal import run_verb, talk_to_stderr

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the verb and give its exit code."""
    given = build_parser().parse_intermixed_args(arguments)
    talk_to_stderr()
    return run_verb(lambda: _resubmit(given))


def build_parser() -> argparse.ArgumentParser:
    """Give the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="clusterddp resubmit",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Bring back runs that died and should live, into their own\n"
        "directories, never twice: preempted where the site does not requeue, node\n"
        "failures, timeouts, killed supervisors. Never what is active or finished;\n"
        "what was cancelled only with --force. Prints what it did, and why not.",
        epilog="examples:\n"
        "  clusterddp resubmit digits slurm.time=4h       this run, with more time\n"
        "  clusterddp resubmit --all --dry-run            what would come back\n"
        "  clusterddp resubmit --all --watch 60           look after all, in tmux\n"
        "\nexit codes: 0 done, 2 usage, 4 Slurm refused one, 75 as of a local run",
    )
    add = parser.add_argument
    add(
        "words",
        metavar="RUN|key=value",
        nargs="*",
        default=[],
        help="run, or slurm.*=, retry.*=",
    )
    add("--all", action="store_true", help="all runs below the root")
    add("--state", metavar="KINDS", help="preempted,node_fail,timeout,failed (all)")
    add("--nodes", type=int, metavar="N", help="slurm.nodes")
    add("--tasks-per-node", type=int, metavar="N", help="ranks on each node")
    add("--watch", type=float, metavar="SECONDS", help="do it again and again")
    add("--force", action="store_true", help="bring back cancelled ones, too")
    add("--runs", dest="root", metavar="DIR", help="where runs lie ($CLUSTERDDP_RUNS)")
    add("--dry-run", action="store_true", help="say what would be done, do nothing")
    add("--json", action="store_true", help="print a JSON list instead")
    return parser


def _resubmit(given: argparse.Namespace) -> int:
    from clusterddp.reviving import resubmit

    return resubmit(given)


if __name__ == "__main__":
    sys.exit(main())
