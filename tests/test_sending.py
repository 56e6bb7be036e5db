"""Sending a job once: lost answers, twins, dependencies, interpreters nobody sees.

A lost answer cannot be provoked on a real controller at will, so sbatch and squeue
are programs of the test; everything else is real.
"""

import json
import os
import pickle
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from clusterddp.config import load_job
from clusterddp.errors import UsageError
from clusterddp.launch.admission import (
    content_of,
    refuse_odd_root,
    refuse_unseen_python,
)
from clusterddp.launch.dependents import follow
from clusterddp.processes import creation_time
from clusterddp.runs.directory import RunDirectory
from clusterddp.runs.turns import take_turn
from tests.cluster import Cluster
from tests.runs import (
    ROOT,
    Done,
    events,
    finish,
    latest,
    start,
    wait_until,
    write_job,
)
from tests.test_slurm_runs import start as slurm_start

_SBATCH = """#!/bin/sh
echo call >> {home}/sbatch-calls
for word; do script=$word; done
grep -e --comment "$script" > {home}/comment
n=$(wc -l < {home}/sbatch-calls)
[ ! -e {home}/sbatch-first ] || . {home}/sbatch-first
if [ -e {home}/sbatch-says ] && [ "$n" -le "$(cat {home}/sbatch-fails)" ]; then
    cat {home}/sbatch-says >&2
    exit 1
fi
echo "Submitted batch job 7$n"
"""
_SQUEUE = """#!/bin/sh
case "$*" in
*--me*)
    [ -e {home}/squeue-fails ] && {{ echo "Socket timed out" >&2; exit 1; }}
    [ -e {home}/job-was-made ] || exit 0
    sed "s/.*--comment='\\(.*\\)'/70|\\1/" {home}/comment ;;
*) [ -e {home}/queue ] && cat {home}/queue || true ;;
esac
"""
TIMEOUT = "sbatch: error: Batch job submission failed: Socket timed out on send/recv"


class Site:
    """A login node whose sbatch and squeue do what the test wants."""

    def __init__(self, home: Path) -> None:
        self.home = home
        programs = {"sbatch": _SBATCH, "squeue": _SQUEUE, "srun": "#!/bin/sh\n"}
        programs |= {"sacct": "#!/bin/sh\n", "scancel": "#!/bin/sh\n"}
        (home / "bin").mkdir()
        for name, text in programs.items():
            path = home / "bin" / name
            path.write_text(text.format(home=home))
            path.chmod(0o755)
        write_job(home)

    def say(self, name: str, text: str = "") -> None:
        (self.home / name).write_text(text)

    def submit(self, *words: str) -> Done:
        return finish(self.start(*words))

    def start(self, *words: str) -> subprocess.Popen[str]:
        return self.call("submit", "job.yaml", *words)

    def call(self, verb: str, *words: str) -> subprocess.Popen[str]:
        environ = {"PATH": f"{self.home}/bin:/usr/bin:/bin"}
        environ["CLUSTERDDP_SHARED_TMP"] = "1"
        return start((f"clusterddp.{verb}", *words), self.home, environ)

    @property
    def calls(self) -> int:
        return len((self.home / "sbatch-calls").read_text().splitlines())


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_lost_answer_goes_on_with_the_job_that_was_made(site: Site) -> None:
    """Sbatch timed out, squeue knows the token: one job, submitit's files named."""
    site.say("sbatch-says", TIMEOUT)
    site.say("sbatch-fails", "9")
    site.say("job-was-made")
    done = site.submit()
    assert done.code == 0, done.err
    assert site.calls == 1
    run = latest(site.home)
    assert done.out == f"70\t{run.path}\n"
    assert "job 70 was made: going on with it" in done.err
    with (run.submitit / "70_submitted.pkl").open("rb") as file:
        assert pickle.load(file) is not None  # noqa: S301 - our own
    assert (run.submitit / "70_submission.sh").is_file()
    assert [event.values["job"] for event in events(run, "submitted")] == ["70"]


def test_lost_answer_without_a_job_is_sent_again(site: Site) -> None:
    """Sbatch timed out, squeue knows nothing: the second try is the only job."""
    site.say("sbatch-says", TIMEOUT)
    site.say("sbatch-fails", "1")
    done = site.submit()
    assert done.code == 0, done.err
    assert site.calls == 2
    assert done.out.startswith("72\t")
    assert "no job was made: sending it again" in done.err


def test_lost_answer_and_a_silent_queue_keep_the_run(site: Site) -> None:
    """Nobody can tell: exit code 4, the directory stays, and what to do is said."""
    site.say("sbatch-says", TIMEOUT)
    site.say("sbatch-fails", "9")
    site.say("squeue-fails")
    done = site.submit()
    assert done.code == 4
    assert site.calls == 1
    assert "nobody can tell whether the job was sent" in done.err
    assert "clusterddp.resubmit" in done.err
    assert len(list((site.home / "runs" / "toy").glob("2*"))) == 1


def test_plain_refusal_is_not_tried_again(site: Site) -> None:
    """Sbatch's own words, one call, no directory."""
    site.say("sbatch-says", "sbatch: error: Invalid qos specification")
    site.say("sbatch-fails", "9")
    done = site.submit()
    assert done.code == 4
    assert "Invalid qos specification" in done.err
    assert site.calls == 1
    assert not list((site.home / "runs" / "toy").glob("2*"))


def test_same_job_is_refused_while_one_is_active(site: Site) -> None:
    """The same content is named by its run; other values, or --new, are sent."""
    assert site.submit().code == 0
    first = latest(site.home)
    site.say("queue", "71|RUNNING|1|2|n1|None\n")
    again = site.submit()
    assert again.code == 2
    assert f"{first.path}: the same job with the same code is running" in again.err
    assert "(job 71)" in again.err
    assert "--new" in again.err
    assert site.submit("train.seed=1").code == 0
    assert site.submit("--new").code == 0
    site.say("queue", "71|COMPLETED|1|2|n1|None\n")
    assert site.submit().code == 0
    assert site.calls == 4


def test_of_two_at_the_same_moment_one_is_sent(site: Site) -> None:
    """Both looked before either was sent: sbatch is called once, the other told so."""
    site.say("sbatch-first", "sleep 2")
    site.say("queue", "71|PENDING|N/A|N/A||Resources\n")
    both = [site.start(), site.start()]
    done = [finish(one) for one in both]
    assert sorted(one.code for one in done) == [0, 2], [one.err for one in done]
    assert site.calls == 1
    (refused,) = (one.err for one in done if one.code == 2)
    words = "the same job with the same code is pending already (job 71)"
    assert f"{latest(site.home).path}: {words}" in refused
    assert not list((site.home / "runs" / "toy" / ".sending").iterdir())


def test_killed_submission_blocks_nobody(site: Site) -> None:
    """What it announced counts for nothing once its process is gone."""
    site.say("sbatch-first", f"echo > {site.home}/is-sending; sleep 2")
    first = site.start()
    wait_until((site.home / "is-sending").exists)
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    announced = site.home / "runs" / "toy" / ".sending"
    assert len(list(announced.iterdir())) == 1
    site.say("sbatch-first")
    done = site.submit()
    assert done.code == 0, done.err
    assert not list(announced.iterdir())


def test_somebody_else_who_never_ends_is_named(tmp_path: Path) -> None:
    """Nobody waits for ever; other contents are nobody's business."""
    other = subprocess.Popen(["sleep", "60"])
    words = {"host": os.uname().nodename, "pid": other.pid, "contents": ["a"]}
    words["created"] = creation_time(other.pid)
    (tmp_path / ".sending").mkdir()
    (tmp_path / ".sending" / "1-x.json").write_text(json.dumps(words))
    looks: list[str] = []
    expected = f"process {other.pid} on .* submits the same job .* --new"
    turn = take_turn(tmp_path, {"a", "b"}, lambda: looks.append("x"), 0.5)
    with pytest.raises(UsageError, match=expected), turn:
        raise AssertionError
    assert len(looks) > 1
    with take_turn(tmp_path, {"b"}, lambda: None, 0.5):
        assert len(list((tmp_path / ".sending").iterdir())) == 2
    other.kill()
    other.wait()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("echo '# new' >> toy.py", "code: toy.py changed after it was kept"),
        ("rm other.py", "code: other.py changed after it was kept"),
        ("echo >> toy.py; rm other.py", "code: other.py, toy.py changed after"),
        ("touch toy.py; echo > new.py", ""),
    ],
)
def test_code_that_changes_while_it_is_sent(site: Site, change: str, said: str) -> None:
    """The run has what was kept, and the user is told which files are newer."""
    shutil.copy(ROOT / "tests" / "toy.py", site.home)
    (site.home / "other.py").write_text("")
    write_job(site.home, experiment="toy.py:build", code={"snapshot": True})
    site.say("sbatch-first", f"cd {site.home}; {change}")
    done = site.submit()
    assert done.code == 0, done.err
    assert ("changed after" in done.err) == bool(said)
    assert said in done.err
    kept = latest(site.home).code / "toy.py"
    assert kept.read_text() == (ROOT / "tests" / "toy.py").read_text()


def test_content_is_the_job_and_the_code(tmp_path: Path) -> None:
    """A changed value or a changed file is another content."""
    job = load_job(write_job(tmp_path))
    other = job.model_copy(update={"args": ("x",)})
    found = {content_of(job, "a"), content_of(other, "a"), content_of(job, "b")}
    assert len(found) == 3
    assert content_of(job, "a") in found


def test_after_waits_for_a_run(site: Site) -> None:
    """--after becomes sbatch's dependency; what cannot be waited for is refused."""
    assert site.submit().code == 0
    first = latest(site.home)
    site.say("queue", "71|PENDING|N/A|N/A||Resources\n")
    shown = site.submit("--after", "toy", "--dry-run")
    assert "#SBATCH --dependency=afterok:71\n" in shown.out, shown.err
    both = site.submit(
        "--after", "toy", "--dry-run", "slurm.extra={dependency: singleton}"
    )
    assert "#SBATCH --dependency=singleton,afterok:71\n" in both.out, both.err
    here = site.submit("--after", "toy", "--launcher", "none")
    assert here.code == 2
    assert "expected one on Slurm, which alone can wait" in here.err
    site.say("queue", "71|FAILED|1|2|n1|None\n")
    dead = site.submit("--after", "toy")
    assert dead.code == 2
    assert f"--after {first.path}: found died (job FAILED), expected a run" in dead.err
    _finish(first)
    assert "--dependency" not in site.submit("--after", "toy", "--dry-run").out


def test_after_follows_a_run_to_its_newest_job(site: Site) -> None:
    """Brought back by resubmit it has another job, and that is waited for."""
    assert site.submit().code == 0
    site.say("queue", "71|FAILED|1|2|n1|None\n")
    again = finish(site.call("resubmit", "toy"))
    assert again.code == 0, again.err
    assert site.calls == 2
    site.say("queue", "71|FAILED|1|2|n1|None\n72|PENDING|N/A|N/A||Resources\n")
    shown = site.submit("--after", "toy", "--dry-run")
    assert "#SBATCH --dependency=afterok:72\n" in shown.out, shown.err


@pytest.mark.cluster
def test_who_waits_follows_a_run_to_the_job_that_brings_it_back(
    cluster: Cluster, home: Path
) -> None:
    """Slurm itself would let it wait for ever for the job that was cancelled."""

    def call(verb: str, *words: str) -> str:
        words = (f"clusterddp.{verb}", *words)
        done = finish(slurm_start(cluster, home, *words))
        assert done.code == 0, done.err
        return done.out + done.err

    write_job(home)
    later = "slurm.extra={begin: now+1hour}"
    first, path = call("submit", "job.yaml", later).strip().split("\t")
    words = ("job.yaml", "train.seed=1", "--after", path)
    waiting = call("submit", *words).partition("\t")[0]
    cluster.run(["scancel", first])
    cluster.wait_job(first, {"CANCELLED"}, 60)
    ask = ["squeue", "--noheader", f"--jobs={waiting}", "--format=%E|%r"]
    wait_until(lambda: "DependencyNeverSatisfied" in cluster.run(ask).stdout)
    told = call("resubmit", path, "--force", "slurm.extra={begin: now+2hour}", "--json")
    second = events(RunDirectory(Path(path)), "submitted")[-1].values["job"]
    assert second != first
    assert f"afterok:{second}(unfulfilled)" in cluster.run(ask).stdout
    assert f"job {waiting}, which waits for this run, now waits" in told


@pytest.mark.parametrize(
    ("shown", "moved"),
    [
        ("singleton(unfulfilled),afterok:71(failed)", "singleton,afterok:80"),
        ("afterok:7_1(unfulfilled)?afterany:71(failed)", "afterok:80?afterany:71"),
        ("afterok:711(unfulfilled)", None),
        ("(null)", None),
        ("", None),
    ],
)
def test_who_waits_is_moved_to_the_newest_job(shown: str, moved: str | None) -> None:
    """Only what --after writes is changed, and only for that run's jobs."""
    assert follow(shown, {"71", "7_1"}, "80") == moved


def _finish(run: RunDirectory) -> None:
    line = {"time": 9e9, "event": "finished", "reason": "done", "code": 0}
    (run.events / "attempt-0000.jsonl").write_text(json.dumps(line) + "\n")


def test_python_that_no_node_sees_is_refused() -> None:
    """Below /tmp, unless the user says that the nodes share it."""
    with pytest.raises(UsageError, match="lies below /tmp, which every node has for"):
        refuse_unseen_python({}, "/tmp/env")
    refuse_unseen_python({"CLUSTERDDP_SHARED_TMP": "1"}, "/tmp/env")
    refuse_unseen_python({}, "/home/ada/tmp/env")


@pytest.mark.parametrize("name", ["100%j", "two\nlines"])
def test_root_that_sbatch_would_misread_is_refused(name: str) -> None:
    """Sbatch expands percent signs in --output; a line break ends an #SBATCH line."""
    with pytest.raises(UsageError, match="runs cannot lie there: sbatch expands"):
        refuse_odd_root(Path("/shared") / name)
    refuse_odd_root(Path("/shared/my runs/a'b$c"))
