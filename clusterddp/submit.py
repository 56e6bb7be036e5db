"""`clusterddp.submit JOB.yaml`: from a job file to a run that goes on by itself.

Only the command line is here; `clusterddp.sending`, with all that it loads, comes in
when the words are understood.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from clusterddp.terminal import run_verb, talk_to_stderr

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the verb and give its exit code."""
    given = build_parser().parse_intermixed_args(arguments)
    talk_to_stderr()
    return run_verb(lambda: _submit(given))


def build_parser() -> argparse.ArgumentParser:
    """Give the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="clusterddp submit",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Submit the training run that a job file describes. Prints JOB_ID\n"
        "<tab> RUN_DIR; of a local run RUN_DIR alone, and its exit code is the run's;\n"
        "of a sweep JOB_ID <tab> NAME/SWEEP_ID.",
        epilog="examples:\n"
        "  clusterddp submit jobs/exp.yaml --nodes 2 --wait\n"
        "  clusterddp submit jobs/exp.yaml --launcher pytorch       on this machine\n"
        "  clusterddp submit jobs/exp.yaml train.epochs=10 slurm.partition=gpu\n"
        "  clusterddp submit jobs/exp.yaml 'sweep={grid: {params.lr: [0.1, 0.01]}}'\n"
        "\nexit codes: 0 done, 2 job file or usage, 4 Slurm, 75 stopped",
    )
    add = parser.add_argument
    add("job", metavar="JOB.yaml", type=Path, help="the job file")
    add(
        "overrides",
        metavar="key=value",
        nargs="*",
        default=[],
        help="e.g. train.epochs=3",
    )
    add("--nodes", type=int, metavar="N", help="slurm.nodes")
    add("--tasks-per-node", type=int, metavar="N", help="ranks on each node")
    add("--launcher", choices=["slurm", "pytorch", "none"], help="starts the ranks")
    add("--cluster", choices=["slurm", "local"], help="follows from the launcher")
    add("--template", metavar="NAME", help="a preset of the slurm: section")
    add("--runs", metavar="DIR", help="where runs lie ($CLUSTERDDP_RUNS, runs:)")
    add("--dry-run", action="store_true", help="print script and job, touch nothing")
    add("--wait", action="store_true", help="stay to the end, exit with its code")
    add("--new", action="store_true", help="send it although the same one is active")
    add("--after", metavar="RUN", help="start when that run has finished")
    add("--fork", metavar="RUN[@STEP]", help="start with the full state of that run")
    add("--max-parallel", type=int, metavar="N", help="runs of a sweep at once")
    add("--json", action="store_true", help="print one JSON object instead")
    return parser


def _submit(given: argparse.Namespace) -> int:
    from clusterddp.sending import submit

    return submit(given)


if __name__ == "__main__":
    sys.exit(main())
