"""The meeting where the network is not as one would wish: real, in namespaces."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from clusterddp.dist import rendezvous
from clusterddp.dist.address import listen
from clusterddp.dist.client import with_short_lookups
from clusterddp.dist.port import free_port
from clusterddp.dist.rendezvous import meet, meeting_place
from clusterddp.errors import RendezvousError
from tests.forked import run_ranks, step_environ

MINUTE = timedelta(minutes=1)
STARTS = 200

CAN_UNSHARE = os.geteuid() == 0 and shutil.which("unshare") and shutil.which("ip")
in_namespace = pytest.mark.skipif(not CAN_UNSHARE, reason="needs root, unshare and ip")

RANKS = """
import json, socket
from datetime import timedelta
from tests.forked import run_ranks, step_environ
{before}
def body():
    import os
    from clusterddp.dist import init_dist, reduce_sums, shutdown
    world = init_dist(rendezvous_timeout=timedelta(seconds=30))
    sums = reduce_sums([world.rank + 1])
    where = os.environ["MASTER_ADDR"]
    shutdown()
    return [sums, where]
environs = [step_environ(r, {tasks}, **{changes}) for r in range(2)]
print(json.dumps([[o.value, o.error, o.seconds] for o in run_ranks(body, environs)]))
"""


def in_own_network(setup: str, script: str, tmp_path: Path) -> list[list[object]]:
    """Run Python in a network and mount namespace of its own; give what it printed."""
    file = tmp_path / "ranks.py"
    file.write_text(script)
    shell = f"set -e\nip link set lo up\n{setup}\nexec {sys.executable} {file}"
    done = subprocess.run(
        ["unshare", "--net", "--mount", "bash", "-c", shell],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer: list[list[object]] = json.loads(done.stdout.splitlines()[-1])
    return answer


@in_namespace
def test_name_server_that_never_answers_costs_a_moment(tmp_path: Path) -> None:
    """Compute nodes without a way to their name server are common.

    torch's client asks it for the name of the address; left to itself, that takes 10 s
    of a timeout that is shorter, again and again (measured: 22 s until two ranks met).
    """
    (tmp_path / "resolv.conf").write_text("nameserver 127.0.0.1\n")
    setup = f"mount --bind {tmp_path}/resolv.conf /etc/resolv.conf"
    before = (
        "silent = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "silent.bind(('127.0.0.1', 53))"
    )
    script = RANKS.format(before=before, tasks="[2]", changes="{}")
    for value, error, seconds in in_own_network(setup, script, tmp_path):
        assert error == ""
        assert value == [[3.0], "127.0.0.1"]
        # A deadline below what the naive way takes, not a measurement.
        assert isinstance(seconds, float)
        assert seconds < 15


@in_namespace
def test_network_of_ipv6_alone(tmp_path: Path) -> None:
    """Two nodes that have no IPv4 address but loopback meet at an IPv6 one."""
    address = "2001:db8::1"
    setup = f"ip address add {address}/64 dev lo nodad"
    changes = {"CLUSTERDDP_RDZV_DIR": str(tmp_path / "rdzv")}
    script = RANKS.format(before="", tasks="[1, 1]", changes=changes)
    for value, error, _ in in_own_network(setup, script, tmp_path):
        assert error == ""
        assert value == [[3.0], address]


def test_many_starts_at_once_on_one_node_lose_none() -> None:
    """200 jobs of two ranks each, whose ids differ by 10,000: formulas would collide.

    Processes are forked, so that all of them are there at once; the meeting is real.
    """

    def body() -> object:
        rank, job = int(os.environ["SLURM_PROCID"]), os.environ["SLURM_JOB_ID"]
        meeting = meet(meeting_place(os.environ, 1), rank, 2, 2 * MINUTE)
        store = meeting.store
        store.set(f"job/{rank}", job)
        other = store.get(f"job/{1 - rank}").decode()
        if rank:
            store.set("left", "1")
        else:
            store.wait(["left"], MINUTE)
            meeting.close()
        return [job, other]

    environs = [
        step_environ(rank, [2], SLURM_JOB_ID=str(1_000_045 + 10_000 * job))
        for job in range(STARTS)
        for rank in range(2)
    ]
    outcomes = run_ranks(body, environs, timeout_s=200)
    assert {outcome.error for outcome in outcomes} == {""}
    for outcome in outcomes:
        assert isinstance(outcome.value, list)
        mine, other = outcome.value
        assert mine == other


def test_derived_port_loses_all_starts_but_one() -> None:
    """What the test above is for: the usual formula, for jobs 10,000 apart."""

    def body() -> object:
        job = int(os.environ["SLURM_JOB_ID"])
        with listen(15000 + job % 10_000):
            time.sleep(1)
        return job

    with free_port() as held:
        first = 1_000_000 + (held.number - 15000) % 10_000
    environs = [
        step_environ(0, [1], SLURM_JOB_ID=str(first + 10_000 * j)) for j in (0, 1, 2)
    ]
    errors = [outcome.error for outcome in run_ranks(body, environs)]
    assert errors.count("") == 1
    assert sum("is in use" in error for error in errors) == 2


def test_resolver_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """The setting is for one thread; the user's own is kept throughout."""
    assert with_short_lookups(lambda: os.environ["RES_OPTIONS"], 5) == (
        "timeout:1 attempts:1"
    )
    assert "RES_OPTIONS" not in os.environ
    monkeypatch.setenv("RES_OPTIONS", "timeout:9")
    assert with_short_lookups(lambda: os.environ["RES_OPTIONS"], 5) == "timeout:9"
    assert os.environ["RES_OPTIONS"] == "timeout:9"


def test_error_of_the_thread_is_raised_here() -> None:
    """And one that takes too long is left behind."""

    def fail() -> None:
        message = "in the thread"
        raise ValueError(message)

    with pytest.raises(ValueError, match="in the thread"):
        with_short_lookups(fail, 5)
    with pytest.raises(TimeoutError):
        with_short_lookups(lambda: time.sleep(0.5), 0.01)


def test_store_that_does_not_answer_itself_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the port, the host and what to look at."""

    def slow(make: Callable[[], object], _: float) -> None:
        make()
        raise TimeoutError

    monkeypatch.setattr(rendezvous, "with_short_lookups", slow)
    with pytest.raises(RendezvousError) as caught:
        meet(meeting_place(step_environ(0, [2]), 1), 0, 2, MINUTE)
    assert "did not answer on its own port" in str(caught.value)
    assert "does its name server answer?" in str(caught.value)
