"""Presets, scripts for use by hand, and quoting: what a value says stays inert."""

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterddp.config import load_job
from clusterddp.config.checks import check_job
from clusterddp.config.schema import Job
from clusterddp.config.templates import find_template, list_templates
from clusterddp.errors import JobFileError
from clusterddp.launch.step import step_command
from clusterddp.launch.submission import render_script
from clusterddp.runs.directory import RunDirectory
from tests.runs import ROOT
from tests.test_launch import GOLDEN, PYTHON, RUN, check_golden

SCRIPTS = sorted((ROOT / "slurm_templates").glob("*.s*"))
PRESETS = ["apptainer", "cpu", "gpu", "preemptible", "pyxis"]


def write(directory: Path, text: str) -> Path:
    path = directory / "job.yaml"
    path.write_text(f"name: digits\nexperiment: {ROOT}/tests/toy.py:build\n{text}\n")
    return path


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_loads_and_renders(name: str, tmp_path: Path) -> None:
    """The script and the srun line of each preset, to the letter."""
    job = load_job(write(tmp_path, f"slurm: {{template: {name}}}"))
    check_golden(f"preset-{name}.sbatch", render_script(job, RUN, PYTHON))
    words = step_command(job, RUN, RUN.attempt(3), PYTHON)
    check_golden(f"preset-{name}.srun", "\n".join(words) + "\n")


def test_all_presets_are_known() -> None:
    """The list above is the directory's."""
    assert list_templates({"XDG_CONFIG_HOME": "/nowhere"}) == PRESETS


def test_own_presets_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """$CLUSTERDDP_TEMPLATES, then the user's directory, then the package's."""
    named, config = tmp_path / "named", tmp_path / "config"
    mine = config / "clusterddp" / "templates"
    for place in (named, mine):
        place.mkdir(parents=True)
    (mine / "cpu.yaml").write_text("nodes: 7\n")
    (mine / "site.yaml").write_text("nodes: 8\n")
    (named / "site.yaml").write_text("nodes: 9\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(config))
    assert find_template("cpu", tmp_path).values == {"nodes": 7}
    assert find_template("site", tmp_path).values == {"nodes": 8}
    monkeypatch.setenv("CLUSTERDDP_TEMPLATES", f"/nowhere:{named}")
    assert find_template("site", tmp_path).values == {"nodes": 9}
    assert find_template("gpu", tmp_path).values["tasks_per_node"] == 4


def test_preset_of_both_sections(tmp_path: Path) -> None:
    """A preset may set dist_params too; the file and the command line win."""
    text = "slurm: {nodes: 3}\ndist_params: {backend: gloo, timeout: 5m}\n"
    (tmp_path / "site.yaml").write_text(text)
    path = write(tmp_path, "slurm: {template: site.yaml}\ndist_params: {timeout: 2m}")
    job = load_job(path)
    assert (job.slurm.nodes, job.dist_params.backend) == (3, "gloo")
    assert job.dist_params.timeout == 120
    (tmp_path / "site.yaml").write_text("slurm: {nodes: 3}\ntrain: {epochs: 3}\n")
    with pytest.raises(JobFileError, match=r"site.yaml:2: train: found an unknown sec"):
        load_job(path)
    (tmp_path / "site.yaml").write_text("dist_params: {backed: gloo}\n")
    with pytest.raises(JobFileError, match="did you mean backend"):
        load_job(path)


TEXT = st.text(
    st.characters(blacklist_categories=("Cc", "Cs", "Zl", "Zp"), codec="utf-8"),
    min_size=1,
    max_size=30,
) | st.sampled_from(
    [
        "a b",
        "it's",
        '"x"',
        "$(touch hacked)",
        "`touch hacked`",
        "a,b",
        "#",
        "\\",
        "$HOME",
    ]
)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(TEXT, TEXT, TEXT)
def test_values_are_inert_in_the_script(
    tmp_path: Path, account: str, path: str, python: str
) -> None:
    """Bash runs one program with the path as it is; #SBATCH lines hold the values."""
    folder = f"/shared/{path.replace('%', '')}"
    run = RunDirectory(Path(folder) / "digits" / "r")
    values = {"account": account, "extra": {"mail-user": account}}
    job = Job.model_validate({"name": "d", "experiment": "a.b:c", "slurm": values})
    script = render_script(job, run, f"/opt/{python}")
    flags = [line[8:] for line in script.splitlines() if line.startswith("#SBATCH ")]
    assert f"--account={account}" in [_unquote(flag) for flag in flags]
    assert f"--mail-user={account}" in [_unquote(flag) for flag in flags]
    spy = tmp_path / "spy"
    spy.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    spy.chmod(0o755)
    quoted = shlex.quote(f"/opt/{python}")
    replaced = script.replace(f"exec {quoted} ", f"exec {shlex.quote(str(spy))} ")
    done = subprocess.run(
        ["bash"],
        input=replaced,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
    )
    last = done.stdout.partition("submitit.core._submit\n")[2]
    assert last == f"{run.submitit}\n"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["spy"]


def _unquote(flag: str) -> str:
    return "".join(shlex.split(flag))


@pytest.mark.parametrize(
    ("slurm", "text"),
    [
        ({"account": "a\nrm -rf ~"}, "one line of text; no line breaks"),
        ({"extra": {"mail-user": "a\tb"}}, "one line of text; no line breaks"),
        ({"extra": {"mail-user=x --wrap": "y"}}, "an option's long name such as"),
        ({"extra": {"comment": "mine"}}, "an option that clusterddp does not set"),
    ],
)
def test_what_no_quoting_can_hold_is_refused(
    slurm: dict[str, object], text: str
) -> None:
    """A line break would end the #SBATCH line."""
    job = Job.model_validate({"name": "d", "experiment": "a.b:c", "slurm": slurm})
    assert any(text in finding for _, finding in check_job(job))


def rendered() -> list[Path]:
    """Give all scripts that are in the tree: for use by hand, and the golden ones."""
    return [*SCRIPTS, *sorted(GOLDEN.glob("*.sbatch"))]


@pytest.mark.parametrize("script", rendered(), ids=lambda path: path.name)
def test_scripts_are_sound(script: Path) -> None:
    """`bash -n`, and shellcheck where there is one."""
    subprocess.run(["bash", "-n", str(script)], check=True)
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not here; bash -n passed")
    # SC2093, SC2034: our scripts end in exec, and set what their users may read.
    words = ["shellcheck", "--shell=bash", "--severity=style", "--exclude=SC2034"]
    done = subprocess.run(
        [*words, str(script)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_templates_do_not_depend_on_the_environment() -> None:
    """No golden file names a directory of whoever wrote it."""
    home = os.path.expanduser("~")  # noqa: PTH111 - the text is what counts
    for path in GOLDEN.glob("*.s*"):
        assert f"{home}/" not in path.read_text() or home == "/"
