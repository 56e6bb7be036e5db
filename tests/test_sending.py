"""Sending a job once: lost answers, twins, dependencies, interpreters nobody sees.

A lost answer cannot be provoked on a real controller at will, so sbatch and squeue
are programs of the test; everything else is real.
"""

import json
import pickle
from pathlib import Path

import pytest

from clusterddp.config import load_job
from clusterddp.errors import UsageError
from clusterddp.launch.admission import (
    content_of,
    refuse_odd_root,
    refuse_unseen_python,
)
from clusterddp.runs.directory import RunDirectory
from tests.runs import Done, events, latest, run_python, write_job

_SBATCH = """#!/bin/sh
echo call >> {home}/sbatch-calls
for word; do script=$word; done
grep -e --comment "$script" > {home}/comment
n=$(wc -l < {home}/sbatch-calls)
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
        environ = {"PATH": f"{self.home}/bin:/usr/bin:/bin"}
        environ["CLUSTERDDP_SHARED_TMP"] = "1"
        return run_python(("clusterddp.submit", "job.yaml", *words), self.home, environ)

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
