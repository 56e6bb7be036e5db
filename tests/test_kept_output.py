"""log.ranks: whose output is kept, in which files, and what `logs` makes of them."""

import subprocess
import sys
from pathlib import Path

import pytest

from clusterddp.config.schema import Job
from clusterddp.launch.labels import LabelledOutput
from clusterddp.logs import main as logs
from clusterddp.runs.directory import AttemptDirectory, RunDirectory
from clusterddp.runs.logfiles import find_log, list_logs, read_last_words
from clusterddp.runs.output import Follower, read_ranks, render_attempt
from tests.cluster import Cluster
from tests.runs import finish, latest, run_python, write_job
from tests.test_slurm_runs import start

FAULT = {"fault": "exception", "rank": 1, "at": 4}


def check(run: RunDirectory, kept: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Look at a run of two ranks, of which the second failed once."""

    def said(*words: str) -> str:
        assert logs([str(run.path), *words]) == 0
        return capsys.readouterr().out

    names = {log.path.name for log in list_logs(run.attempt(0))}
    assert (
        names
        == {
            "0": {"rank-0000.log"},
            "node": {"node-0000.log"},
            "all": {"rank-0000.log", "rank-0001.log"},
        }[kept]
    )
    whole = said()
    assert "step 30/30" in whole
    assert "== attempt 1" in whole
    errors = said("--errors")
    assert "[1] ValueError: the toy broke" in errors
    assert "tests/toy.py" in errors
    if kept == "0":
        assert logs([str(run.path), "--rank", "1"]) == 2
        words = "has words of ranks 0; give one that there is (log.ranks"
        assert words in capsys.readouterr().err
    else:
        alone = said("--rank", "1").splitlines()
        assert "ValueError: the toy broke" in alone


@pytest.mark.parametrize(
    "kept", ["0", "node", pytest.param("all", marks=pytest.mark.long)]
)
def test_local_run_keeps_what_was_asked_for(
    kept: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two ranks of our agent; the failed one's traceback is known in any case."""
    write_job(tmp_path, params=FAULT, launcher="pytorch")
    words = ("clusterddp.submit", "job.yaml", f"log.ranks={kept}")
    done = run_python(words, tmp_path)
    assert done.code == 0, done.err
    assert "step 30/30" in done.err
    check(latest(tmp_path), kept, capsys)


@pytest.mark.cluster
@pytest.mark.parametrize("kept", ["0", "node"])
@pytest.mark.parametrize(
    "launcher", ["slurm", pytest.param("pytorch", marks=pytest.mark.long)]
)
def test_slurm_run_keeps_what_was_asked_for(
    kept: str,
    launcher: str,
    cluster: Cluster,
    home: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The same through srun's --output, or through one agent on a node."""
    write_job(home, params=FAULT)
    words = [f"log.ranks={kept}", "--launcher", launcher, "--cluster", "slurm"]
    done = finish(
        start(cluster, home, "clusterddp.submit", "job.yaml", "--wait", *words)
    )
    assert done.code == 0, done.err
    assert "step 30/30" in done.err
    check(latest(home), kept, capsys)


@pytest.mark.parametrize(
    ("given", "ranks", "kept"),
    [
        ({}, 64, "all"),
        ({}, 65, "node"),
        ({"ranks": "all"}, 65, "all"),
        ({"ranks": "node"}, 1, "node"),
        ({"ranks": 0}, 1, 0),
    ],
)
def test_default_follows_from_the_number_of_ranks(
    given: dict[str, object], ranks: int, kept: object
) -> None:
    """A thousand ranks are not a thousand files, unless somebody wants that."""
    values = {"name": "x", "log": given, "slurm": {"tasks_per_node": ranks}}
    assert Job.model_validate(values).kept_output == kept


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptDirectory:
    """An attempt of twelve ranks on two nodes, in files as srun --label writes them."""
    found = RunDirectory(tmp_path / "run").attempt(0)
    found.path.mkdir(parents=True)
    found.node_log(0).write_text(
        " 0: hello\n 1: hello\n 0: \n 0: 10%\r20%\n 1: 3: not a label\n"
    )
    found.node_log(1).write_text("10: hello\n11: hello\nslurmstepd: error: x\n")
    return found


def test_labels_say_who(attempt: AttemptDirectory) -> None:
    """One label a line; a line without one goes with the line before."""
    assert read_ranks(attempt) == {
        0: ["hello", "", "20%"],
        1: ["hello", "3: not a label"],
        10: ["hello"],
        11: ["hello", "slurmstepd: error: x"],
    }
    assert "[x4] hello" in list(render_attempt(attempt))
    assert find_log(attempt, 10) == attempt.node_log(1)
    assert find_log(attempt, 5) is None
    assert read_last_words(attempt, 1, 1) == ("3: not a label",)
    assert read_last_words(attempt, 5) == ()


def test_follower_reads_labelled_files(attempt: AttemptDirectory) -> None:
    """Half a line waits; one rank's lines stand alone."""
    run = RunDirectory(attempt.path.parent.parent)
    alone, both = Follower(run, rank=1), Follower(run)
    assert alone.look() == ["hello", "3: not a label"]
    assert len(both.look()) == 6
    with attempt.node_log(0).open("a") as file:
        file.write(" 1: more\n 0: half")
    assert alone.look() == ["more"]
    assert both.look() == ["[1] more"]


def test_words_of_a_rank_outlive_it(tmp_path: Path) -> None:
    """Through pipes; each line whole and labelled, the last without its end, too."""
    output = LabelledOutput(tmp_path / "node.log")
    code = "import os; os.write(1, b'a\\nb' * {n}); os.kill(os.getpid(), 9)"
    children = []
    for rank in (3, 12):
        with Path(output.open(rank)).open("w") as sink:
            words = [sys.executable, "-c", code.format(n=rank)]
            children.append(subprocess.Popen(words, stdout=sink))
    assert [child.wait() for child in children] == [-9, -9]
    output.close()
    lines = (tmp_path / "node.log").read_text().splitlines()
    for rank in (3, 12):
        mine = [line for line in lines if line.startswith(f"{rank}: ")]
        assert mine == [f"{rank}: a", *[f"{rank}: ba"] * (rank - 1), f"{rank}: b"]
    assert len(lines) == 4 + 13
