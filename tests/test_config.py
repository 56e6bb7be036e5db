"""The job file: what is read, what is refused, and in which words."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterddp.config import load_job, parse_override, read_job, render_job, runs_root
from clusterddp.config.checks import warn_about
from clusterddp.config.durations import parse_duration
from clusterddp.config.schema import Every, Job
from clusterddp.config.yaml import parse_value, read_source
from clusterddp.errors import JobFileError, UsageError
from tests.runs import ROOT

JOBS = sorted((ROOT / "jobs").glob("*.yaml"))


def write(tmp_path: Path, text: str) -> Path:
    (tmp_path / "exp.py").write_text("def build(params):\n    return None\n")
    path = tmp_path / "job.yaml"
    path.write_text(f"name: toy\nexperiment: exp.py:build\n{text}")
    return path


def load(path: Path, *overrides: str) -> Job:
    return load_job(path, [parse_override(text) for text in overrides])


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.name)
def test_every_job_file_loads_and_shows_its_command(path: Path) -> None:
    """jobs/*.yaml work as they stand; below the schema stands what runs them."""
    assert load_job(path).name
    assert (
        path.read_text()
        .splitlines()[1]
        .startswith("# python -m clusterddp.submit jobs/")
    )


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("30m", 1800),
        ("2h", 7200),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("1d", 86400),
        ("1-12:00:00", 129600),
        ("1-12:00", 129600),
        ("01:30:00", 5400),
        ("12:30", 750),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    """Units and Slurm's clock forms."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "30", "m", "30 minutes", "-5m", "1:2:3:4", "1e3s"]
)
def test_no_durations(text: str) -> None:
    """What is no duration is told with examples."""
    with pytest.raises(ValueError, match="is not a duration; write 90s, 30m"):
        parse_duration(text)


@given(st.integers(0, 10**7))
def test_written_durations_read_back(seconds: int) -> None:
    """What a resolved job file says reads as the same number."""
    assert parse_duration(f"{seconds}s") == seconds


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1E5", 100000.0),
        (".5", 0.5),
        ("1:30:00", "1:30:00"),
        ("no", "no"),
        ("true", True),
        ("0x10", "0x10"),
        ("2026-01-01", "2026-01-01"),
        ("null", None),
        ("[1, a]", [1, "a"]),
    ],
)
def test_yaml_scalars_have_no_surprises(text: str, value: object) -> None:
    """Learning rates are numbers, times are text, `no` is Norway."""
    assert parse_value(text) == value


def test_yaml_runs_no_code() -> None:
    """A tag that would call Python is refused."""
    with pytest.raises(ValueError, match="is not a YAML value"):
        parse_value("!!python/object/apply:os.system ['true']")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "slurm: {gpu_per_node: 1}",
            "{job}:3: slurm.gpu_per_node: unknown key; did you mean gpus_per_node?",
        ),
        ("trian: {}", "{job}:3: trian: unknown key; did you mean train?"),
        (
            "train:\n  seed: 0\n  epochs: many",
            "{job}:5: train.epochs: found 'many', expected a valid integer",
        ),
        (
            "train: {epochs: 0}",
            "{job}:3: train.epochs: found 0, expected greater than or equal to 1",
        ),
        (
            "slurm: {time: 30}",
            "{job}:3: slurm.time: 30 has no unit; write 30s, 30m or 30h",
        ),
        (
            "checkpoint: {every: often}",
            "{job}:3: checkpoint.every: 'often' is no interval; write `500 steps`, "
            "`10m` or `1 epoch`",
        ),
        (
            "checkpoint: {every: [10m, 1h]}",
            "{job}:3: checkpoint.every: '1h': a second interval in seconds; give one "
            "of each kind",
        ),
        (
            "checkpoint: {best: loss}",
            "{job}:3: checkpoint.best: 'loss' names no best; write `min loss` or "
            "`max accuracy`",
        ),
        (
            "checkpoint: {keep: 1}",
            "{job}:3: checkpoint.keep: found 1, expected greater than or equal to 2",
        ),
        (
            "slurm: {time: 80s, signal_delay: 90s}",
            "{job}:3: slurm.time: found 80s, expected more than slurm.signal_delay "
            "(90s); Slurm would stop the job as it starts: change one of the two",
        ),
        (
            "slurm: {time: 30s, signal_delay: 10s}",
            "{job}:3: slurm.time: found 30s, expected at least 1m; Slurm's limits are "
            "whole minutes",
        ),
        (
            "dist_params: {backend: nccl}",
            "{job}:3: dist_params.backend: found nccl without GPUs asked for, expected "
            "gloo, auto, or slurm.gpus_per_node; auto takes nccl where there are GPUs",
        ),
        (
            "dist_params: {port_range: 9-8}",
            "{job}:3: dist_params.port_range: '9-8' is no range of ports; write "
            "20000-20100",
        ),
        (
            "launcher: slurm\ncluster: local",
            "{job}:3: launcher: found slurm for a run on this machine, expected "
            "pytorch (several processes) or none (one, for a debugger); srun needs a "
            "cluster",
        ),
        (
            "launcher: none\ncluster: slurm",
            "{job}:3: launcher: found none for a run on Slurm, expected slurm or "
            "pytorch; none is one process on this machine",
        ),
        (
            "slurm: {nodes: 40}\ntrain: {global_batch_size: 32}",
            "{job}:4: train.global_batch_size: found 32 for 40 ranks, expected a "
            "sample for each rank at least; use fewer ranks",
        ),
        (
            "train:\n  ddp: {comm_hook: powersgd}\n  precision: fp16",
            "{job}:4: train.ddp.comm_hook: found powersgd with train.precision fp16, "
            "expected fp32 or bf16; a step that is left out would spoil all later ones",
        ),
        (
            "train:\n  ddp: {comm_hook: powersgd}\n  not_finite: skip",
            "{job}:4: train.ddp.comm_hook: found powersgd with train.not_finite skip, "
            "expected stop; a step that is left out would spoil all later ones",
        ),
        (
            "train:\n  eval_weights: ema",
            "{job}:4: train.eval_weights: found ema, expected train.ema, such as "
            "0.999; there is no average without it",
        ),
        (
            "slurm:\n  extra:\n    ntasks-per-node: 3",
            "{job}:5: slurm.extra.ntasks-per-node: found --ntasks-per-node, expected "
            "an option that clusterddp does not set itself; remove it",
        ),
        (
            "slurm: {extra: {partition: x}}",
            "{job}:3: slurm.extra.partition: found --partition, expected the key "
            "slurm.partition",
        ),
        (
            "slurm: {env: {A B: x}}",
            "{job}:3: slurm.env.A B: found 'A B', expected a variable's name like "
            "OMP_PROC_BIND",
        ),
        (
            "slurm: {template: cpux}",
            "{job}:3: template 'cpux': not found; the presets are apptainer, cpu, gpu, "
            "preemptible, pyxis; a file of your own is named by its path, ending in ",
        ),
        (
            "script: exp.py",
            "{job}:2: experiment: found both of experiment and script, expected one of "
            "the two: name your function, as in experiment: train.py:build, or your ",
        ),
        (
            "name: other",
            "{job}:3: name: stands here and in line 1; keep one of the two",
        ),
        ("a: [1", "{job}:3: not YAML: "),
    ],
)
def test_wrong_job_files_are_told_where_and_what(
    tmp_path: Path, text: str, message: str
) -> None:
    """File, line, key, found, expected, nearest valid key."""
    path = write(tmp_path, text)
    with pytest.raises(JobFileError) as caught:
        load_job(path)
    assert str(caught.value).startswith(message.format(job=path))


@pytest.mark.parametrize(
    ("experiment", "message"),
    [
        ("exp.py", "found 'exp.py', expected a function behind it, as in exp.py:build"),
        ("exp.py:biuld", "{dir}/exp.py defines no biuld; did you mean build?"),
        ("gone.py:build", "{dir}/gone.py: No such file or directory; paths count from"),
        ("exp.py:", "found 'exp.py:', expected package.module:function or"),
        ("broken.py:build", "{dir}/broken.py:2: not Python: "),
    ],
)
def test_experiments_are_looked_for_before_anything_is_sent(
    tmp_path: Path, experiment: str, message: str
) -> None:
    """A name that leads nowhere is refused on the login node."""
    path = write(tmp_path, "")
    (tmp_path / "broken.py").write_text("x = 1\ndef (:\n")
    with pytest.raises(JobFileError) as caught:
        load(path, f"experiment='{experiment}'")
    assert message.format(dir=tmp_path) in str(caught.value)
    assert f"command line, experiment='{experiment}'" in str(caught.value)


def test_script_with_a_function_is_refused(tmp_path: Path) -> None:
    """A script is run as main; a function in it means nothing."""
    path = write(tmp_path, "")
    with pytest.raises(JobFileError, match="expected a file or a module without"):
        load(path, "experiment=null", "script=exp.py:main")


def test_paths_become_absolute_from_the_job_file(tmp_path: Path) -> None:
    """Wherever submit is called from, the same file is meant."""
    assert load_job(write(tmp_path, "")).experiment == f"{tmp_path}/exp.py:build"


def test_order_is_template_file_command_line(tmp_path: Path) -> None:
    """The template lies below the file, the command line above it."""
    (tmp_path / "site.yaml").write_text("partition: site\nnodes: 2\ntime: 2h\n")
    path = write(tmp_path, "slurm: {template: site.yaml, nodes: 3}")
    job = load(path, "slurm.time=3h")
    assert (job.slurm.partition, job.slurm.nodes, job.slurm.time) == ("site", 3, 10800)


def test_wrong_key_in_a_template_is_told_there(tmp_path: Path) -> None:
    """The template's own file and line are named."""
    (tmp_path / "site.yaml").write_text("nodes: 2\npartion: x\n")
    path = write(tmp_path, "slurm: {template: site.yaml}")
    with pytest.raises(JobFileError, match=r"site.yaml:2: unknown key; did you mean"):
        load_job(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train.epochs", "expected key=value, as in train.epochs=3"),
        ("=3", "expected key=value"),
        ("a..b=3", "expected key=value"),
        ("a=[1", "is not a YAML value; quote it"),
    ],
)
def test_wrong_overrides(text: str, message: str) -> None:
    """An override is key=value with a YAML value."""
    with pytest.raises(UsageError) as caught:
        parse_override(text)
    assert message in str(caught.value)


def test_override_below_a_value_is_refused(tmp_path: Path) -> None:
    """`name.x=1` cannot go into a string."""
    with pytest.raises(UsageError, match="name holds 'toy', not keys"):
        load(write(tmp_path, ""), "name.x=1")


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "found nothing, expected keys"), (b"- 1", "found list"), (b"\xff", "UTF-8")],
)
def test_files_that_are_no_job(tmp_path: Path, content: bytes, message: str) -> None:
    """Empty, a list, not text: told, not traced."""
    path = tmp_path / "job.yaml"
    path.write_bytes(content)
    with pytest.raises(JobFileError, match=message):
        read_source(path)


def test_missing_file(tmp_path: Path) -> None:
    """A mistyped path is told as such."""
    with pytest.raises(JobFileError, match="cannot be read: No such file or directory"):
        read_source(tmp_path / "nothing.yaml")


def test_resolved_job_reads_back(tmp_path: Path) -> None:
    """job.yaml in the run directory is the same value again."""
    job = load(
        write(tmp_path, "slurm: {extra: {mail-type: END}, time: 90m}"),
        "checkpoint.every=[100 steps, 10m, 1 epoch]",
        "checkpoint.best=min loss",
        "params={a: [1, x], b: 1e-3}",
    )
    copy = tmp_path / "resolved.yaml"
    copy.write_text(render_job(job))
    assert read_job(copy) == job
    assert job.checkpoint.every == Every(steps=100, epochs=1, seconds=600.0)


def test_foreign_resolved_job_is_refused(tmp_path: Path) -> None:
    """A run directory of a newer version is not guessed at."""
    path = tmp_path / "job.yaml"
    path.write_text("name: x\nfuture: 1\n")
    with pytest.raises(JobFileError, match="future: unknown key"):
        read_job(path)


def test_uneven_batches_are_only_warned_about(tmp_path: Path) -> None:
    """97 samples on 2 ranks work; the user hears what it means."""
    job = load(write(tmp_path, "slurm: {nodes: 2}"), "train.global_batch_size=97")
    assert "is not a multiple of 2 ranks" in warn_about(job)[0]
    assert warn_about(load(write(tmp_path, ""), "train.global_batch_size=96")) == []


@pytest.mark.parametrize(
    ("given_dir", "environ", "root"),
    [
        ("a", {"CLUSTERDDP_RUNS": "/b"}, "a"),
        (None, {"CLUSTERDDP_RUNS": "/b"}, "/b"),
        (None, {}, "runs"),
    ],
)
def test_runs_root(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    given_dir: str | None,
    environ: dict[str, str],
    root: str,
) -> None:
    """--runs, else the environment, else the file; from the working directory."""
    monkeypatch.chdir(tmp_path)
    job = load_job(write(tmp_path, ""))
    assert runs_root(job, given_dir, environ) == tmp_path / root
