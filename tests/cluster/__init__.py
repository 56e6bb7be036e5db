"""A real Slurm cluster on this one machine, for tests and for trying things out.

Controller, accounting and N nodes, each node in its own network namespace, with
fake GPUs.  From a shell: `eval "$(python -m tests.cluster up)"`; from a test::

    if reason := can_run():
        pytest.skip(reason)
    cluster = start(ClusterParameters(nodes=2))
    job = cluster.sbatch("--nodes=2", "--wrap=srun hostname", user=cluster.user)
    cluster.wait_job(job, {"COMPLETED"}, deadline=30)
    stop()

Modules, lowest first: `errors`, `parameters`, `configs` (texts), `processes`
(what we started and may kill), `network`, `account` (the unprivileged user),
`daemons`, `interpreter`, `client` (what tests use), `lifecycle` (up and down).
"""

from tests.cluster.client import Cluster
from tests.cluster.errors import ClusterError, CommandError
from tests.cluster.lifecycle import can_run, start, stop
from tests.cluster.parameters import ClusterParameters
from tests.cluster.processes import wait_until

__all__ = [
    "Cluster",
    "ClusterError",
    "ClusterParameters",
    "CommandError",
    "can_run",
    "start",
    "stop",
    "wait_until",
]
