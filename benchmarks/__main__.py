"""`python -m benchmarks`: ask all questions, one after the other, then make the page.

A question that fails or takes too long is shown as failed and stops no other. Exit
code 1 if one failed; a missed target is no failure.
"""

import argparse
import json
import signal
import subprocess
import sys
import time

from benchmarks.harness import RESULTS
from benchmarks.scene import SLOT
from tests.runs import ROOT

LIMITS_S = {
    "overhead": 660,
    "stall": 540,
    "start": 420,
    "recovery": 900,
    "meeting": 420,
    "tools": 360,
    "input": 300,
    "parts": 120,
    "ettr": 780,
}
_USE_CLUSTER = ("start", "recovery")
_LAST_WORDS_S = 60


def main() -> int:
    """Ask, and give the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("questions", nargs="*", default=list(LIMITS_S))
    parser.add_argument("--quick", action="store_true", help="try all; write nothing")
    given = parser.parse_args()
    begin = time.monotonic()
    failed = [name for name in given.questions if not ask(name, quick=given.quick)]
    minutes = (time.monotonic() - begin) / 60
    print(f"\n{minutes:.1f} minutes; failed: {', '.join(failed) or 'none'}")
    if not given.quick:
        subprocess.run([sys.executable, "-m", "benchmarks.page"], cwd=ROOT, check=True)
    return 1 if failed else 0


def ask(name: str, *, quick: bool) -> bool:
    """Run one program to its end; say whether it answered."""
    print(f"\n=== {name} ===", flush=True)
    words = [
        sys.executable,
        "-m",
        f"benchmarks.{name}",
        *(["--quick"] if quick else []),
    ]
    began = time.time()
    process = subprocess.Popen(words, cwd=ROOT, start_new_session=True)
    code = _wait(process, LIMITS_S.get(name, 600))
    print(f"({name}: {time.time() - began:.0f} s)", flush=True)
    if code != 0:
        if name in _USE_CLUSTER:
            down = ["-m", "tests.cluster", "--slot", str(SLOT), "down"]
            subprocess.run([sys.executable, *down], cwd=ROOT, check=False)
        if not quick:
            _note_failure(name, began, code)
    return code == 0


def _wait(process: "subprocess.Popen[bytes]", limit_s: float) -> int:
    """Give the exit code; one that takes too long is asked to write what it has."""
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
    except BaseException:
        process.send_signal(signal.SIGTERM)
        process.wait(_LAST_WORDS_S)
        raise
    try:
        return process.wait(_LAST_WORDS_S) or 1
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _note_failure(name: str, began: float, code: int) -> None:
    """Leave no older answer behind where the program could not even say it failed."""
    path = RESULTS / f"{name}.json"
    if path.exists() and path.stat().st_mtime >= began:
        return
    page = {"name": name, "failed": f"ended with code {code} without a word"}
    RESULTS.mkdir(exist_ok=True)
    path.write_text(json.dumps({**page, "results": []}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
