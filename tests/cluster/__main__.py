"""The cluster from a shell: `python -m tests.cluster up|down|reset|status`."""

import argparse
import sys
import time
from pathlib import Path

from tests.cluster.client import Cluster
from tests.cluster.errors import ClusterError
from tests.cluster.lifecycle import start, status, stop
from tests.cluster.parameters import ClusterParameters


def main(arguments: list[str] | None = None) -> int:
    """Run one verb; give the exit code."""
    options = _parser().parse_args(arguments)
    verbs = {"up": _up, "down": _down, "reset": _reset, "status": _status}
    try:
        return verbs[options.verb](options)
    except ClusterError as error:
        _say(f"error: {error}")
        return 1


def _up(options: argparse.Namespace) -> int:
    begin = time.monotonic()
    cluster = start(_parameters(options))
    seconds = time.monotonic() - begin
    _say(f"up after {seconds:.1f} s: nodes {', '.join(cluster.nodes)};")
    _say(f"unprivileged user {cluster.user}; shared directory {cluster.shared_dir}")
    sys.stdout.write(cluster.exports())
    return 0


def _down(options: argparse.Namespace) -> int:
    begin = time.monotonic()
    stop(options.slot)
    _say(f"down after {time.monotonic() - begin:.1f} s")
    return 0


def _reset(options: argparse.Namespace) -> int:
    found = status(options.slot)
    if found is None:
        _say("no cluster is up; run `python -m tests.cluster up`")
        return 1
    Cluster(found[0]).reset()
    return 0


def _status(options: argparse.Namespace) -> int:
    found = status(options.slot)
    if found is None:
        _say("no cluster is up; run `python -m tests.cluster up`")
        return 1
    parameters, problems = found
    for problem in problems:
        _say(problem)
    if problems:
        _say(f"logs: {parameters.log_dir}; `up` builds a new cluster")
        return 1
    for node, state in Cluster(parameters).node_states().items():
        sys.stdout.write(f"{node}\t{state}\n")
    return 0


def _parameters(options: argparse.Namespace) -> ClusterParameters:
    return ClusterParameters(
        nodes=options.nodes,
        cpus_per_node=options.cpus,
        gpus_per_node=options.gpus,
        prefix=options.prefix,
        proctrack=options.proctrack,
        cred_expire=options.cred_expire or None,
        state_dir=options.state_dir,
        slurm_conf_lines=tuple(options.conf_line),
        slot=options.slot,
    )


def _parser() -> argparse.ArgumentParser:
    default = ClusterParameters()
    parser = argparse.ArgumentParser(prog="python -m tests.cluster")
    parser.add_argument("--slot", type=int, default=0, help="which cluster (0)")
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb, text in (
        ("down", "take the cluster down"),
        ("reset", "cancel all jobs, bring all nodes back"),
        ("status", "say what is up; exit code 1 when something is not"),
    ):
        verbs.add_parser(verb, help=text)
    up = verbs.add_parser("up", help="bring it up; prints exports for a shell")
    up.add_argument("--nodes", type=int, default=default.nodes)
    up.add_argument("--cpus", type=int, default=default.cpus_per_node)
    up.add_argument("--gpus", type=int, default=default.gpus_per_node)
    up.add_argument("--prefix", type=Path, default=default.prefix)
    up.add_argument("--proctrack", choices=("linuxproc", "cgroup"), default="linuxproc")
    up.add_argument("--cred-expire", type=int, default=5, help="0: Slurm's default")
    up.add_argument("--state-dir", type=Path, default=default.state_dir)
    up.add_argument("--conf-line", action="append", default=[], metavar="LINE")
    return parser


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
