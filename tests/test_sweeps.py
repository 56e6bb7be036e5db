"""Sweeps: many runs of one file, one array of Slurm, and a table of what varies."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from clusterddp.config import load_job
from clusterddp.config.schema import Job, Sweep
from clusterddp.element import main as element
from clusterddp.errors import JobFileError, UsageError
from clusterddp.launch.submission import render_array
from clusterddp.runs.finding import select_runs
from clusterddp.runs.sweeps import SweepDirectory, expand_sweep, find_sweep, read_values
from clusterddp.slurm.programs import Completed
from clusterddp.sweeping import arrays, expand_jobs, largest_array, make_sweep
from tests.cluster import Cluster
from tests.runs import Done, events, finish, wait_until, write_job
from tests.test_launch import PYTHON, check_golden
from tests.test_sending import Site
from tests.test_slurm_runs import start, submit

GRID = {"grid": {"train.seed": [0, 1], "params.lr": [0.1, 0.2, 0.3]}}


def test_grid_and_list() -> None:
    """All combinations of the grid, for each point of the list; the grid wins."""
    both = Sweep.model_validate(
        {
            "list": [{"params.a": 1}, {"params.a": 2, "params.b": 3}],
            "grid": {"x.y": [7, 8]},
        }
    )
    assert expand_sweep(both) == [
        {"params.a": 1, "x.y": 7},
        {"params.a": 1, "x.y": 8},
        {"params.a": 2, "params.b": 3, "x.y": 7},
        {"params.a": 2, "params.b": 3, "x.y": 8},
    ]
    assert len(expand_sweep(Sweep.model_validate(GRID))) == 6


def test_each_element_is_a_checked_job(tmp_path: Path) -> None:
    """Values go where their dotted keys say; a wrong one is told with its key."""
    job = load_job(write_job(tmp_path, sweep=GRID))
    jobs = [one.job for one in expand_jobs(job)]
    assert [(one.train.seed, one.params["lr"]) for one in jobs][:2] == [
        (0, 0.1),
        (1, 0.1),
    ]
    assert all(one.sweep is None for one in jobs)
    wrong = load_job(write_job(tmp_path, sweep={"grid": {"train.seed": ["x"]}}))
    with pytest.raises(UsageError, match=r'sweep train.seed="x": train.seed: found'):
        expand_jobs(wrong)


@pytest.mark.parametrize(
    ("sweep", "text"),
    [
        ({"grid": {"slurm.nodes": [1, 2]}}, "found slurm.nodes, expected a key of"),
        ({"grid": {"params.lr": []}}, "found no values, expected one at least"),
        ({}, "found neither grid nor list"),
    ],
)
def test_what_cannot_be_swept_is_refused(
    tmp_path: Path, sweep: dict[str, object], text: str
) -> None:
    """One array has one shape."""
    with pytest.raises(JobFileError, match=text):
        load_job(write_job(tmp_path, sweep=sweep))


def test_arrays_cover_a_sweep(tmp_path: Path) -> None:
    """Chunks of at most MaxArraySize - 1, each place once."""
    sweep = SweepDirectory(tmp_path)
    found = arrays(sweep, 2500, 1000, None)
    assert [(one.offset, one.count) for one in found] == [
        *((0, 1000), (1000, 1000), (2000, 500))
    ]
    config = "MaxArraySize            = 4001\n"
    assert largest_array(lambda _: Completed(0, config, "")) == 4000
    assert largest_array(lambda _: Completed(1, "", "down")) == 1000


def test_script_of_an_array() -> None:
    """To the letter; the batch task is Python itself, told its sweep and its place."""
    values = {"name": "digits", "experiment": "a.b:build"}
    sweep = SweepDirectory(Path("/shared/my runs/digits/.sweeps/20260101-000000-abcd"))
    array = arrays(sweep, 1500, 1000, 8)[1]
    script = render_array(Job.model_validate(values), array, PYTHON)
    check_golden("array.sbatch", script)


def test_killed_between_sbatch_and_bookkeeping_leaves_no_orphan(site: Site) -> None:
    """Nothing that is written after sbatch has answered is needed by an element."""
    job = load_job(write_job(site.home, sweep=GRID))
    sweep = make_sweep(site.home / "runs", "s", expand_jobs(job), None)
    assert not list((sweep.path / "submitit").iterdir())
    environ = {**os.environ, "SLURM_ARRAY_TASK_ID": "4"}
    code = "import clusterddp.element as e, sys; print(e._find(*sys.argv[1:]).path)"
    done = subprocess.run(
        [sys.executable, "-c", code, str(sweep.path), "1"],
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{sweep.element(5).path}\n"
    assert read_values(sweep.element(5)) == {"train.seed": 1, "params.lr": 0.3}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_element_outside_an_array_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, and what was expected."""
    assert element(["/nowhere", "0"]) == 2
    assert "SLURM_ARRAY_TASK_ID: found ''" in capsys.readouterr().err


def test_sweep_is_sent_shown_and_selected(site: Site) -> None:
    """One sbatch call; runs, values and job ids on the disk; the word finds them."""
    write_job(site.home, sweep=GRID)
    shown = site.submit("--dry-run")
    assert '# 0005 {"params.lr": 0.3, "train.seed": 1}' in shown.out
    assert not (site.home / "runs").exists()
    done = site.submit("--max-parallel", "2")
    assert done.code == 0, done.err
    job_id, word = done.out.rstrip("\n").split("\t")
    runs = select_runs([word], site.home / "runs")
    assert [events(run, "submitted")[0].values["job"] for run in runs] == [
        f"{job_id}_{n}" for n in range(6)
    ]
    found = find_sweep(word, site.home / "runs")
    assert found is not None
    script = next((found.path / "submitit").glob("*_submission.sh")).read_text()
    assert "#SBATCH --array=0-5%2\n" in script
    site.say("queue", f"{job_id}_0|RUNNING|1|2|n1|None\n")
    twin = site.submit()
    assert twin.code == 2
    assert "is running already" in twin.err
    for words, text in (
        (("--wait",), "--wait: found a sweep, expected one run"),
        (("--launcher", "none"), "sweep: found a sweep for this machine"),
    ):
        refused = site.submit(*words)
        assert refused.code == 2
        assert text in refused.err


def test_refused_sweep_leaves_nothing(site: Site) -> None:
    """Sbatch's own words, and no run directory."""
    write_job(site.home, sweep=GRID)
    site.say("sbatch-says", "sbatch: error: Invalid qos specification")
    site.say("sbatch-fails", "9")
    done = site.submit()
    assert done.code == 4
    assert "Invalid qos" in done.err
    assert not list((site.home / "runs" / "toy").glob("2*"))
    assert not list((site.home / "runs" / "toy" / ".sweeps").iterdir())


def ask(cluster: Cluster, home: Path, *words: str) -> Done:
    return finish(start(cluster, home, *words))


@pytest.mark.cluster
def test_sweep_on_a_real_cluster(cluster: Cluster, home: Path) -> None:
    """Every element trains with its values; the one that failed comes back alone."""
    grid = {"grid": {"train.seed": [0, 1], "params.at": [5, 9999]}}
    changes = {"params": {"fault": "exit"}, "retry": {"crashes": 0}}
    write_job(home, sweep=grid, slurm={"tasks_per_node": 1}, **changes)
    done = submit(cluster, home)
    assert done.code == 0, done.err
    job_id, word = done.out.rstrip("\n").split("\t")
    runs = select_runs([word], home / "runs")
    wait_until(
        lambda: all(events(one, "stopped") + events(one, "finished") for one in runs)
    )
    cluster.wait_job(f"{job_id}_3", {"COMPLETED"}, 60)
    found = json.loads(ask(cluster, home, "clusterddp.status", word, "--json").out)
    assert {one["job_id"] for one in found} == {f"{job_id}_{n}" for n in range(4)}
    table = ask(cluster, home, "clusterddp.status", word).out.splitlines()
    assert table[0].split()[-4:] == ["params.at", "train.seed", "ACCURACY", "DETAIL"]
    assert [one["state"] for one in found] == [
        "failed",
        "failed",
        "finished",
        "finished",
    ]
    again = ask(cluster, home, "clusterddp.resubmit", word, "--dry-run").out
    assert again.count("would-send") == 2
