"""What the doctor says of every captured shape, and of what is wrong."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from clusterddp.dist.diagnosis import diagnose
from clusterddp.dist.scene import Machine
from clusterddp.doctor import parse_environment, render_text
from clusterddp.errors import LaunchError, UsageError
from tests.forked import step_environ, torchrun_environ
from tests.runs import clean_environ

SHAPES = json.loads(
    (Path(__file__).parent / "fixtures/slurm_env_22.05.json").read_text()
)
FIELDS = ("rank", "world_size", "local_rank", "local_world_size", "node_rank")
TORCHRUN = torchrun_environ(1, 4, 29500) | {"TORCHELASTIC_RUN_ID": "none"}
BATCH = SHAPES["batch_shell_no_srun"]["environ"][0]
MACHINE = Machine("", 4, 8)


def ask(
    *words: str, environ: dict[str, str] | None = None, said: str = ""
) -> tuple[int, str, str]:
    """Run the verb; give its exit code, stdout and stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "clusterddp.doctor", *words],
        env=clean_environ() | (environ or {}),
        input=said,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def codes(environ: dict[str, str], machine: Machine | None = None) -> list[str]:
    return [problem.code for problem in diagnose(environ, machine).problems]


@pytest.mark.parametrize("shape", SHAPES)
def test_every_rank_of_a_captured_shape_is_explained(shape: str) -> None:
    """The world is the true one, and each number names a variable that holds it."""
    shown = zip(SHAPES[shape]["environ"], SHAPES[shape]["expected"], strict=True)
    for environ, true in shown:
        found = diagnose(environ)
        assert found.world is not None
        assert found.in_step == true["in_step"]
        assert found.world.node_rank == true.get("node_rank", 0)
        for name in FIELDS[:-1]:
            assert getattr(found.world, name) == true[name], name
        if true["in_step"]:
            assert found.sources[0].origin == f"SLURM_PROCID={true['rank']}"
            assert all("SLURM_" in source.origin for source in found.sources)
        else:
            assert {s.origin for s in found.sources} == {"alone: a world of one"}


@pytest.mark.parametrize(
    ("shape", "rank"),
    [("uneven_3_1", 3), ("batch_shell_no_srun", 0), ("gpus_per_task_1", 1)],
)
@pytest.mark.parametrize("form", ["json", "env", "env -0"])
def test_json_of_a_file_has_the_exact_shape(
    shape: str, rank: int, form: str, tmp_path: Path
) -> None:
    """From a JSON object, from `env` and from `env -0`; exit code 0."""
    environ, true = (SHAPES[shape][key][rank] for key in ("environ", "expected"))
    lines = [f"{name}={value}" for name, value in environ.items()]
    text = ("\0" if form == "env -0" else "\n").join(lines)
    file = tmp_path / "env"
    file.write_text(json.dumps(environ) if form == "json" else text)
    code, out, err = ask("--env", str(file), "--json")
    assert (code, err) == (0, "")
    value = json.loads(out)
    assert list(value) == ["in_step", *FIELDS, "problems"]
    assert value["in_step"] is true["in_step"]
    assert [value[name] for name in FIELDS] == [true.get(name, 0) for name in FIELDS]
    assert all(set(entry) == {"code", "message", "fix"} for entry in value["problems"])


@pytest.mark.parametrize(
    ("environ", "code", "words"),
    [
        (step_environ(0, [3, 1], SLURM_PROCID="4"), "contradiction", "PROCID=4"),
        (
            step_environ(0, [3, 1], SLURM_STEP_NUM_TASKS="6"),
            "contradiction",
            "adds up to 4",
        ),
        (step_environ(0, [1], SLURM_STEP_ID="x"), "contradiction", "STEP_ID=x"),
        (TORCHRUN | {"RANK": "-1"}, "torchrun-incomplete", "RANK=-1"),
        ({"RANK": "1", "WORLD_SIZE": "4"}, "torchrun-incomplete", "MASTER_PORT not"),
        (
            step_environ(0, [1, 1], **TORCHRUN, GROUP_WORLD_SIZE="1"),
            "torchrun-per-task",
            "each of 2 srun tasks",
        ),
        (BATCH | {"CLUSTERDDP_LAUNCHER": "slurm"}, "batch-shell", "has 6 tasks"),
        (
            SHAPES["interactive_step_shell"]["environ"][0]
            | {"CLUSTERDDP_LAUNCHER": "slurm"},
            "interactive-step",
            "has 4 tasks",
        ),
        ({"CLUSTERDDP_LAUNCHER": "slurm"}, "no-step", "expected a Slurm step"),
        ({"CLUSTERDDP_LAUNCHER": "mpi"}, "unknown-launcher", "found 'mpi'"),
        ({"CLUSTERDDP_LAUNCHER": "pytorch"}, "torchrun-incomplete", "with `torchrun"),
        (
            step_environ(0, [2], MASTER_ADDR="h", MASTER_PORT="0"),
            "contradiction",
            "MASTER_PORT=0",
        ),
        (
            step_environ(0, [1, 1], SLURM_STEP_NODELIST="n[1-999999999]"),
            "contradiction",
            "999999999 hosts",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_init_dist_refuses_is_refused(
    environ: dict[str, str], code: str, words: str
) -> None:
    """One problem with the reason and the way out; no number is made up."""
    found = diagnose(environ)
    assert found.world is None
    (problem,) = found.problems
    assert problem.code == code
    assert words in f"{problem.message}; {problem.fix}"
    assert problem.fix


def test_refusal_is_exit_code_three_with_nulls() -> None:
    """As init_dist itself would leave."""
    environ = step_environ(0, [2], SLURM_PROCID="7")
    code, out, _ = ask("--env", "-", "--json", said=json.dumps(environ))
    value = json.loads(out)
    assert code == LaunchError.exit_code == 3
    assert [value[name] for name in FIELDS] == [None] * 5
    assert value["in_step"] is True
    code, out, _ = ask("--env", "-", said=json.dumps(environ))
    assert code == 3
    assert "init_dist would refuse" in out


@pytest.mark.parametrize(
    ("environ", "code"),
    [
        (BATCH, "batch-shell"),
        (SHAPES["het_batch_shell"]["environ"][0], "batch-shell"),
        (SHAPES["interactive_step_shell"]["environ"][0], "interactive-step"),
        ({"SLURM_JOB_ID": "5", "SLURM_NTASKS": "x"}, "batch-shell"),
        (step_environ(0, [2], CLUSTERDDP_LAUNCHER="none"), "alone-in-step"),
        (step_environ(1, [2], RANK="7", WORLD_SIZE="16"), "stale-rank"),
        (step_environ(1, [2], LOCAL_RANK="0"), "stale-rank"),
        (
            step_environ(0, [2], TORCHELASTIC_USE_AGENT_STORE="True"),
            "stale-agent-store",
        ),
        (step_environ(0, [2], MASTER_ADDR="h", MASTER_PORT="7"), "fixed-address"),
        (step_environ(0, [2], MASTER_PORT="7"), "half-address"),
        (step_environ(0, [2], MASTER_ADDR="h"), "half-address"),
        (step_environ(0, [1, 1], SLURM_SUBMIT_DIR="/tmp/x"), "local-directory"),
        (step_environ(0, [2], SLURM_NTASKS="6"), "job-differs-from-step"),
        (SHAPES["gpus_per_task_1"]["environ"][0], "gpus-per-task"),
        (SHAPES["oversubscribed_4tasks_2gpus"]["environ"][0], "too-few-gpus"),
        (step_environ(0, [2]), "one-core"),
        (step_environ(0, [2]), "threads-unset"),
        (step_environ(0, [2], TORCH_NCCL_ASYNC_ERROR_HANDLING="0"), "nccl-without"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_trap_is_named_although_the_world_is_known(
    environ: dict[str, str], code: str
) -> None:
    """A trap has a message and a fix, and does not change the exit code."""
    found = diagnose(environ)
    assert found.world is not None
    (problem,) = [entry for entry in found.problems if entry.code.startswith(code)]
    assert problem.message
    assert problem.fix


def test_orderly_step_has_no_trap() -> None:
    """Cores asked for, threads set, nothing left over."""
    fine = {"SLURM_CPUS_PER_TASK": "4", "OMP_NUM_THREADS": "4"}
    fine |= {"SLURM_SUBMIT_DIR": "/home/u", "SLURM_NTASKS": "4"}
    assert codes(step_environ(1, [2, 2], **fine)) == []
    assert codes(step_environ(1, [2, 2], **fine), MACHINE) == []
    assert codes({}, MACHINE) == []
    assert codes(TORCHRUN, MACHINE) == []
    assert codes({"SLURM_JOB_ID": "5", "SLURM_NTASKS": "1"}) == []


def test_machine_itself_is_looked_at() -> None:
    """One core of many, and a host name that leads nowhere."""
    environ = step_environ(0, [1, 1], SLURM_CPUS_PER_TASK="4")
    assert codes(environ, Machine("debian", 1, 8)) == ["one-core", "loopback-name"]
    assert codes(environ, Machine("debian", 1, 1)) == ["loopback-name"]
    assert codes(step_environ(0, [1]), Machine("debian", 4, 8)) == []


def test_text_says_why_and_where_from() -> None:
    """For a person: launcher, reason, each number's variable, traps."""
    environ = step_environ(3, [3, 1], SLURM_SUBMIT_DIR="/home/u")
    text = render_text(diagnose(environ))
    assert "launcher slurm: SLURM_STEP_ID=0 is an srun step" in text
    assert "SLURM_PROCID=3" in text
    assert "entry 1 of SLURM_STEP_TASKS_PER_NODE=3,1" in text
    assert "one-core: SLURM_CPUS_PER_TASK=(unset)" in text
    text = render_text(diagnose({}))
    assert "launcher none: neither an srun step nor" in text
    assert "no trap found" in text
    text = render_text(diagnose(TORCHRUN))
    assert "launcher pytorch: TORCHELASTIC_RUN_ID=none" in text
    assert "LOCAL_WORLD_SIZE=4" in text
    text = render_text(diagnose(torchrun_environ(1, 4, 29500)))
    assert "the variables of torchrun are set" in text
    forced = diagnose(step_environ(0, [2], CLUSTERDDP_LAUNCHER="slurm"))
    assert "CLUSTERDDP_LAUNCHER=slurm asks for it" in render_text(forced)


def test_step_counts_of_an_old_slurm_are_named_as_the_source() -> None:
    """Without the step's own variable the job's stands for it."""
    changes = {"SLURM_STEP_TASKS_PER_NODE": None, "SLURM_TASKS_PER_NODE": "1(x2)"}
    found = diagnose(step_environ(1, [1, 1], **changes))
    assert found.sources[3].origin == "entry 1 of SLURM_TASKS_PER_NODE=1(x2)"


def test_this_process_is_alone() -> None:
    """Without a file the verb looks at its own environment."""
    code, out, _ = ask("--json")
    assert code == 0
    assert json.loads(out)["world_size"] == 1


def test_exported_functions_and_odd_values_are_read() -> None:
    """`env` prints values over several lines, and JSON has numbers and nulls."""
    text = "A=1\nBASH_FUNC_f%%=() {  echo x=y\n}\nB=a=b\nEMPTY=\n"
    assert parse_environment(text) == {
        "A": "1",
        "BASH_FUNC_f%%": "() {  echo x=y\n}",
        "B": "a=b",
        "EMPTY": "",
    }
    assert parse_environment('{"A": 1, "B": null}') == {"A": "1"}
    assert parse_environment("") == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("this is no environment", "expected NAME=value lines or a JSON object"),
        ('{"A": ', "found no JSON"),
        ('{"A": {"B": "1"}}', "found A={'B': '1'}, expected a text"),
    ],
)
def test_file_that_is_no_environment_is_refused(text: str, words: str) -> None:
    """As a usage error, with how to make one."""
    with pytest.raises(UsageError) as caught:
        parse_environment(text, "f")
    assert words in str(caught.value)
    assert "--env f" in str(caught.value)


def test_file_that_is_not_there_is_refused() -> None:
    """Exit code 2, a message and no traceback."""
    code, out, err = ask("--env", "/no/such/file")
    assert (code, out) == (2, "")
    assert "--env /no/such/file: No such file" in err
    assert "Traceback" not in err


def test_doctor_loads_neither_torch_nor_pydantic() -> None:
    """So that it answers at once, and where torch is broken."""
    code = "import sys; from clusterddp.doctor import main; main(['--json'])"
    code += "; sys.exit(bool({'torch', 'pydantic'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=clean_environ(),
        stdout=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0
