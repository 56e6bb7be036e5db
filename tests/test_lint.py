"""doctor JOB.yaml: each known trap has a rule, and a sound file has none."""

import json
from pathlib import Path

import pytest

from clusterddp.config import load_job
from clusterddp.config.lint import RULES, Site, lint_job
from clusterddp.doctor import main as doctor
from clusterddp.linting import read_site
from clusterddp.slurm.programs import Completed
from tests.cluster import Cluster
from tests.runs import ROOT, finish, write_job
from tests.test_slurm_runs import start

TRAPS: dict[str, tuple[dict[str, object], Site, str]] = {
    "CD001": ({"slurm": {"time": "4m"}}, Site(), "expected less than half of it"),
    "CD002": ({}, Site(kill_wait_s=5), "found KillWait=5 in slurm.conf"),
    "CD003": ({"slurm": {"extra": {"gpus-per-task": 1}}}, Site(), "one device only"),
    "CD004": ({"train": {"workers": 2}}, Site(), "found 1 for a rank with 2 loader"),
    "CD005": ({"slurm": {"mem": "1G"}}, Site(), "found 1G for 2 ranks, expected 500"),
    "CD006": ({"slurm": {"env": {"MASTER_PORT": "29500"}}}, Site(), "found '29500'"),
    "CD007": (
        {"train": {"global_batch_size": 25}},
        Site(),
        "not a multiple of 2 ranks",
    ),
    "CD008": ({}, Site(free_mb=100), "found 0.1 GiB free, expected room for 4"),
    "CD011": ({}, Site(start_s=500.0), "expected more than 500s to start (measured)"),
}


@pytest.mark.parametrize("rule", TRAPS)
def test_trap_is_named(rule: str, tmp_path: Path) -> None:
    """One trap, one finding, with the rule's id."""
    changes, site, text = TRAPS[rule]
    found = lint_job(load_job(write_job(tmp_path, **changes)), site)
    assert [one.rule for one in found] == [rule]
    assert text in found[0].text


def test_every_rule_is_tested() -> None:
    """The table above has them all."""
    assert set(TRAPS) == set(RULES)


def test_short_warning_is_named_too(tmp_path: Path) -> None:
    """Two steps and a save must fit into it."""
    job = load_job(write_job(tmp_path, slurm={"signal_delay": "10s"}))
    assert [one.rule for one in lint_job(job, Site())] == ["CD001"]


@pytest.mark.parametrize("path", sorted((ROOT / "jobs").glob("*.yaml")), ids=str)
def test_examples_have_no_traps(path: Path) -> None:
    """What we show is sound."""
    assert lint_job(load_job(path), Site(kill_wait_s=30)) == []


def test_site_is_read(tmp_path: Path) -> None:
    """KillWait from scontrol; the space of the nearest directory that there is."""
    config = "KillOnBadExit = 0\nKillWait                = 30 sec\n"
    site = read_site(tmp_path / "no" / "runs", lambda _: Completed(0, config, ""))
    assert site.kill_wait_s == 30
    assert site.free_mb is not None


def test_doctor_lints_a_file(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Text, JSON, and a file that cannot be used."""
    monkeypatch.setenv("PATH", "/nowhere")
    path = write_job(tmp_path, train={"workers": 2})
    assert doctor([str(path)]) == 0
    assert f"{path}: CD004 slurm.cpus_per_task: found 1" in capsys.readouterr().out
    assert doctor([str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["rule"] == "CD004"
    sound = write_job(tmp_path)
    assert doctor([str(sound)]) == 0
    assert "nothing to say" in capsys.readouterr().out
    assert doctor([str(tmp_path / "none.yaml")]) == 2
    assert "cannot be read" in capsys.readouterr().err


@pytest.mark.cluster
def test_sbatch_is_asked(cluster: Cluster, home: Path) -> None:
    """`sbatch --test-only`: what the real Slurm would refuse, before it is sent."""
    write_job(home)
    words = ("clusterddp.doctor", "job.yaml")
    good = finish(start(cluster, home, *words))
    assert good.code == 0, good.err
    assert "CD002 site: found KillWait=5" in good.out
    write_job(home, slurm={"partition": "nowhere"})
    bad = finish(start(cluster, home, *words))
    assert bad.code == 4
    assert "CD009 slurm: sbatch --test-only refuses it" in bad.out
    assert cluster.squeue() == {}
