"""A cancelled run stays cancelled, whatever it was about to do; on the real cluster."""

import json
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.runs import events, finish, wait_until
from tests.slurm_drills import start, verb
from tests.slurm_situations import SITUATIONS, Situation

pytestmark = pytest.mark.cluster

OVER = {"CANCELLED", "FAILED", "PREEMPTED"}
QUICK = {
    *(("save", "scancel"), ("between attempts", "cancel"), ("start", "scancel")),
    *(("start", "cancel"), ("pending", "scancel"), ("pending", "cancel")),
}
CASES = [
    pytest.param(
        *case, marks=[] if case in QUICK else [pytest.mark.long], id=" ".join(case)
    )
    for case in ((name, way) for name in SITUATIONS for way in ("scancel", "cancel"))
]


@pytest.mark.parametrize(("name", "way"), CASES)
def test_cancelled_is_over_for_good(
    cluster: Cluster, home: Path, name: str, way: str
) -> None:
    """The job ends and is not requeued; the run is known as cancelled, not as dead."""
    situation = SITUATIONS[name](cluster, home)
    run, before = situation.run, len(events(situation.run, "requeue"))
    strike(cluster, home, situation, way)
    cluster.wait_job(situation.job, OVER, 90)
    assert len(events(run, "requeue")) == before
    assert not events(run, "finished")
    assert not events(run, "needs_resubmit")
    left = verb(cluster, home, "resubmit", "--all", "--dry-run", "--json").out
    states = {row["path"]: row["state"] for row in json.loads(left)}
    assert states[str(run.path)] == "cancelled"
    assert cluster.job_state(situation.job) in OVER, "it does not rise from the dead"


def strike(cluster: Cluster, home: Path, situation: Situation, way: str) -> None:
    """Cancel as a user would, then let go what was held."""
    if way == "scancel":
        cluster.run(["scancel", situation.job], user=cluster.user)
        situation.let_go()
        return
    verb = start(cluster, home, "clusterddp.cancel", str(situation.run.path))
    wait_until(lambda: events(situation.run, "cancel_requested"))
    situation.let_go()
    done = finish(verb)
    assert done.code == 0, done.err
