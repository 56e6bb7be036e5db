"""The `clusterddp` command: `clusterddp VERB` is `python -m clusterddp.VERB`."""

import importlib
import importlib.metadata
import sys
from collections.abc import Sequence

from clusterddp.errors import EXIT_INTERRUPTED

__all__ = ["VERBS", "main"]

VERBS = {
    "submit": "send the run that a job file describes to Slurm, or run it here",
    "status": "one table of all runs: state, step, speed, checkpoint, time left",
    "logs": "what the ranks said, in all attempts, equal lines once",
    "why": "what ended a run, which rank was first, what to do",
    "resubmit": "bring back runs that died and should live, never twice",
    "cancel": "let the ranks save, then end a run for good",
    "report": "where the time of a run went, as text or as one HTML page",
    "export": "the weights of a run as one file",
    "drill": "let a live run go through a failure, and see what it costs",
    "supervise": "bring a run to its end; also starts a stopped one again",
    "train": "one rank: what srun, torchrun and our agent start",
    "doctor": "explain the world that init_dist derives here, and name traps",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and give its exit code; a verb's module is loaded only then."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    verb = words[0] if words else "--help"
    if verb in ("-h", "--help"):
        sys.stdout.write(_help())
        return 0
    if verb == "--version":
        sys.stdout.write(f"clusterddp {importlib.metadata.version('clusterddp')}\n")
        return 0
    if verb == "--completion":
        return _print_completion(words[1:])
    if verb not in VERBS:
        known = ", ".join(VERBS)
        sys.stderr.write(f"clusterddp: {verb}: no such verb; expected one of {known}\n")
        return 2
    try:
        code: int = importlib.import_module(f"clusterddp.{verb}").main(words[1:])
    except KeyboardInterrupt:  # while the verb was still being loaded
        sys.stderr.write("clusterddp: interrupted\n")
        return EXIT_INTERRUPTED
    return code


def _print_completion(words: Sequence[str]) -> int:
    from clusterddp.completion import render_completion
    from clusterddp.terminal import run_verb, talk_to_stderr

    talk_to_stderr()
    shell = words[0] if words else "(nothing)"
    return run_verb(lambda: _write(render_completion(shell, list(VERBS))))


def _write(text: str) -> int:
    sys.stdout.write(text)
    return 0


def _help() -> str:
    lines = [f"  {verb:<10} {text}" for verb, text in VERBS.items()]
    return "\n".join(
        [
            "usage: clusterddp VERB ...",
            "",
            "PyTorch DDP training on Slurm: submit once, and the run finishes.",
            "",
            *lines,
            "",
            "clusterddp VERB -h explains a verb; clusterddp --version says which.",
            "source <(clusterddp --completion bash) completes words (or zsh).",
            "",
        ]
    )
