"""`clusterddp.doctor`: explain the world that is derived from an environment.

It loads no torch and touches nothing, so it can be asked anywhere: on a login node, in
a batch script, and as `srun python -m clusterddp.doctor` in every rank.
"""

import argparse
import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from clusterddp.dist.diagnosis import Diagnosis, diagnose
from clusterddp.dist.scene import Machine
from clusterddp.errors import LaunchError, UsageError
from clusterddp.terminal import run_verb, talk_to_stderr

__all__ = ["main", "parse_environment", "render_json", "render_text"]

_FIELDS = ("rank", "world_size", "local_rank", "local_world_size", "node_rank")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the verb and give its exit code."""
    given = build_parser().parse_args(arguments)
    talk_to_stderr()
    return run_verb(lambda: _examine(given))


def build_parser() -> argparse.ArgumentParser:
    """Give the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="clusterddp doctor",
        description="Explain the world that init_dist derives here, and name traps; "
        "with JOB.yaml, say what in it works but will hurt.",
        epilog="exit codes: 0 init_dist would work, or the process is simply alone; "
        "3 it would refuse; 2 the file is no environment, or no job file; 4 sbatch "
        "would refuse the job",
    )
    add = parser.add_argument
    add("job", metavar="JOB.yaml", type=Path, nargs="?", help="lint this job file")
    add("--env", metavar="FILE", help="a JSON object or output of `env`; - is stdin")
    add("--json", action="store_true", help="print a JSON object")
    return parser


def _examine(given: argparse.Namespace) -> int:
    if given.job is None:
        return _examine_environment(given.env, as_json=given.json)
    from clusterddp.linting import lint

    return lint(given.job, as_json=given.json)


def _examine_environment(source: str | None, *, as_json: bool) -> int:
    """Print the diagnosis of this process's environment, or of one in a file."""
    if source is None:
        found = diagnose(os.environ, read_machine())
    else:
        found = diagnose(parse_environment(_read(source), source))
    sys.stdout.write(render_json(found) if as_json else render_text(found))
    return 0 if found.world is not None else LaunchError.exit_code


def _read(source: str) -> str:
    try:
        data = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    except OSError as error:
        message = (
            f"--env {source}: {error.strerror}, expected a file; make one with "
            "`env > FILE`"
        )
        raise UsageError(message) from error
    return data.decode(errors="surrogateescape")


def parse_environment(text: str, source: str = "-") -> dict[str, str]:
    """Give the variables of a JSON object, or of what `env` or `env -0` printed.

    A line without a name and an equals sign belongs to the value before it, as in
    exported shell functions.

    Raises:
        UsageError: the text is neither.
    """
    if text.lstrip().startswith("{"):
        return _parse_json(text, source)
    environ: dict[str, str] = {}
    last = ""
    for line in text.split("\0" if "\0" in text else "\n"):
        name, sign, value = line.partition("=")
        if sign and name and not any(c.isspace() for c in name):
            environ[last := name] = value
        elif last and line:
            environ[last] += f"\n{line}"
        elif line:
            message = (
                f"--env {source}: found {line[:40]!r}, expected NAME=value lines or a "
                "JSON object; make the file with `env > FILE`"
            )
            raise UsageError(message)
    return environ


def _parse_json(text: str, source: str) -> dict[str, str]:
    try:
        value = json.loads(text)
    except ValueError as error:
        message = (
            f"--env {source}: found no JSON ({error}), expected one object of names "
            "and values; make the file with `env > FILE`"
        )
        raise UsageError(message) from error
    wrong = [name for name, v in value.items() if isinstance(v, dict | list | bool)]
    if wrong:
        message = (
            f"--env {source}: found {wrong[0]}={value[wrong[0]]!r}, expected a text; "
            "give one object of names and values, that of one process"
        )
        raise UsageError(message)
    return {name: str(v) for name, v in value.items() if v is not None}


def read_machine() -> Machine:
    """Look at this machine: how its name resolves, and which CPUs are ours."""
    # Loads psutil, which an environment in a file does not need.
    from clusterddp.dist.address import is_hostname_loopback

    name = socket.gethostname() if is_hostname_loopback() else ""
    return Machine(name, len(os.sched_getaffinity(0)), os.cpu_count() or 1)


def render_json(found: Diagnosis) -> str:
    """Give the diagnosis as one JSON object; numbers are null where it is refused."""
    world: Mapping[str, object] = asdict(found.world) if found.world else {}
    value = {
        "in_step": found.in_step,
        **{name: world.get(name) for name in _FIELDS},
        "problems": [asdict(problem) for problem in found.problems],
    }
    return json.dumps(value, indent=1) + "\n"


def render_text(found: Diagnosis) -> str:
    """Give the diagnosis for a person."""
    lines = [f"launcher {found.launcher}: {found.reason}"]
    if found.world is None:
        lines.append("init_dist would refuse this environment")
    lines += [f"  {s.name:<17}{s.value:>5}   {s.origin}" for s in found.sources]
    for problem in found.problems:
        lines += [f"{problem.code}: {problem.message}", f"  -> {problem.fix}"]
    if not found.problems:
        lines.append("no trap found")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
