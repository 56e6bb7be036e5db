"""Shell completion in a real bash and a real zsh: what a TAB would offer."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from clusterddp.cli import VERBS, main
from clusterddp.completion import render_completion
from tests.runs import clean_environ

_ASK = r"""
source {script}
COMP_WORDS=({words})
COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
{function}
printf '%s\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with job files, runs, and both scripts."""
    for run in ("digits/20260101-000000-ab12", "digits/20260102-000000-cd34", "net/x"):
        (tmp_path / "runs" / run).mkdir(parents=True)
    (tmp_path / "runs" / "digits" / "latest").symlink_to("20260102-000000-cd34")
    (tmp_path / "runs" / ".code").mkdir()
    (tmp_path / "jobs").mkdir()
    for name in ("exp.yaml", "other.yml", "notes.txt"):
        (tmp_path / "jobs" / name).touch()
    for shell in ("bash", "zsh"):
        script = render_completion(shell, list(VERBS))
        (tmp_path / f"complete.{shell}").write_text(script)
    return tmp_path


def ask(place: Path, shell: str, line: str) -> set[str]:
    """Give what a shell offers for the last word of a line."""
    words = line.split(" ")
    name = "_clusterddp_python" if words[0] == "python" else "_clusterddp"
    quoted = " ".join(f"'{word}'" for word in words)
    text = _ASK.format(script=place / f"complete.{shell}", words=quoted, function=name)
    if shell == "zsh":
        # As bashcompinit calls a function of bash's.
        text = text.replace("COMP_WORDS", "emulate -L sh; COMP_WORDS", 1)
        text = f"ask() {{ {text} }}\nask"
    flags = ["--norc", "--noprofile"] if shell == "bash" else ["-f"]
    done = subprocess.run(
        [shell, *flags, "-c", text],
        cwd=place,
        env=clean_environ(),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert not done.stderr
    return set(done.stdout.split())


LINES = {
    "clusterddp lo": {"logs"},
    "clusterddp --comp": {"--completion"},
    "clusterddp --completion ": {"bash", "zsh"},
    "clusterddp submit --la": {"--launcher"},
    "clusterddp submit --launcher ": {"slurm", "pytorch", "none"},
    "clusterddp submit --launcher p": {"pytorch"},
    "clusterddp submit jobs/e": {"jobs/exp.yaml"},
    "clusterddp submit jobs/": {"jobs/exp.yaml", "jobs/other.yml"},
    "clusterddp submit jobs/exp.yaml train.ep": {"train.epochs="},
    "clusterddp submit jobs/exp.yaml log.": {"log.every=", "log.ranks="},
    "clusterddp submit jobs/exp.yaml --nodes ": set(),
    "clusterddp why d": {"digits"},
    "clusterddp why digits/": {
        "digits/20260101-000000-ab12",
        "digits/20260102-000000-cd34",
    },
    "clusterddp why --runs runs/digits 202601": {
        "20260101-000000-ab12",
        "20260102-000000-cd34",
    },
    "clusterddp report net/": {"net/x"},
    "clusterddp export n": {"net"},
    "clusterddp nothing ": set(),
    "python -m clusterddp.w": {"clusterddp.why"},
    "python -m clusterddp.submit --wa": {"--wait"},
    "python -u -m clusterddp.logs dig": {"digits"},
    "python -m pytest te": set(),
    "python scr": set(),
}


@pytest.mark.parametrize("line", LINES)
def test_bash(place: Path, line: str) -> None:
    """Verbs, options, choices, job files, runs, keys; nothing where nothing fits."""
    assert ask(place, "bash", line) == LINES[line]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
def test_zsh(place: Path) -> None:
    """The same, line for line."""
    found = {line: ask(place, "zsh", line) for line in LINES}
    assert found == LINES


def test_a_tab_in_bash(place: Path) -> None:
    """Bash itself calls the function that was registered for the command."""
    code = f"source {place}/complete.bash; complete -p clusterddp python python3"
    done = subprocess.run(
        ["bash", "--norc", "-c", code], capture_output=True, text=True, check=True
    )
    assert "complete -F _clusterddp clusterddp\n" in done.stdout
    assert done.stdout.count("-F _clusterddp_python") == 2


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="needs shellcheck")
def test_script_is_clean(place: Path) -> None:
    """As the templates are."""
    words = ["shellcheck", "--shell=bash", str(place / "complete.bash")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_unknown_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Both scripts are named."""
    assert main(["--completion", "fish"]) == 2
    expected = "--completion fish: no script for that shell; expected bash or zsh"
    assert expected in capsys.readouterr().err
    assert main(["--completion"]) == 2


def test_making_the_script_loads_no_torch() -> None:
    """It is made in a shell's startup file."""
    code = (
        "import sys; from clusterddp.cli import main; "
        "sys.exit(main(['--completion', 'bash']) or 'torch' in sys.modules)"
    )
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, env=clean_environ(), check=False)
    assert done.returncode == 0
