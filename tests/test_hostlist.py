"""Host lists read as Slurm reads them."""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from clusterddp.errors import WorldError
from clusterddp.slurm.hostlist import MAX_HOSTS, expand_hostlist, first_host

CAPTURED: dict[str, list[str] | None] = json.loads(
    (Path(__file__).parent / "fixtures/hostlist_22.05.json").read_text()
)

# Slurm 22.05, where the file was captured, refuses a suffix after the last
# bracket. Since 23.02.5 (commit 0994b5f198) it is read, so it is read here.
SUFFIXED = {
    "n[1-2]-ib": ["n1-ib", "n2-ib"],
    "n[1-2].cl.local": ["n1.cl.local", "n2.cl.local"],
    "n[1-3]y4": ["n1y4", "n2y4", "n3y4"],
}
EXPECTED = CAPTURED | SUFFIXED
READABLE = {text: hosts for text, hosts in EXPECTED.items() if hosts is not None}

# From reports of other projects, and from hostlist.c for nested groups.
REPORTED = {
    "overlapping-hosts_[1-3,2-4]": [
        *(f"overlapping-hosts_{n}" for n in (1, 2, 3, 2, 3, 4)),
    ],
    "ml-16-node-[001-002,004],ml-17-node-[001-003]": [
        *(f"ml-16-node-{n}" for n in ("001", "002", "004")),
        *(f"ml-17-node-{n}" for n in ("001", "002", "003")),
    ],
    "c1009a-s17,c1010a-s11": ["c1009a-s17", "c1010a-s11"],
    "c+a[1-2],d:b[3]": ["c+a1", "c+a2", "d:b3"],
    "n[01-1]": ["n01"],
    "n[099-101]": ["n099", "n100", "n101"],
    "r[1]n[1-2]": ["r1n1", "r1n2"],
    "a[1-2]b[1-2]c[1-2]": [
        *("a1b1c1", "a1b1c2", "a2b1c1", "a2b1c2"),
        *("a1b2c1", "a1b2c2", "a2b2c1", "a2b2c2"),
    ],
    "": [],
    " ,\n\t": [],
    "a\tb\nc": ["a", "b", "c"],
    "n": ["n"],
}


@pytest.mark.parametrize("text", READABLE | REPORTED, ids=repr)
def test_list_is_expanded_as_slurm_does(text: str) -> None:
    assert expand_hostlist(text) == (READABLE | REPORTED)[text]


@pytest.mark.parametrize("text", [t for t, h in EXPECTED.items() if h is None])
def test_list_that_slurm_refuses_is_refused(text: str) -> None:
    with pytest.raises(WorldError, match=r"host list '.*': found range .* expected"):
        expand_hostlist(text)


@pytest.mark.parametrize(
    ("text", "character"),
    [("n[1", 2), ("n]", 2), ("n[[1]]", 2), ("{a}", 1), ("a,n[1]]", 7)],
)
def test_unbalanced_bracket_is_refused(text: str, character: int) -> None:
    with pytest.raises(WorldError, match=f"at character {character}, expected a name"):
        expand_hostlist(text)


@pytest.mark.parametrize(
    "text", ["n[--2]", "n[1-2-3]", "n[1-10/2]", "n[1, 2]", "n[-1]", "n[\u0661]"]
)
def test_range_in_another_syntax_is_refused(text: str) -> None:
    with pytest.raises(WorldError, match="expected digits or low-high"):
        expand_hostlist(text)


@pytest.mark.parametrize(
    "text",
    [
        "n[1-999999999]",
        "a[1-65536]b[1-65536]",
        ",".join(["n[1-65536]"] * 9),
        "n[1-" + "9" * 18 + "]",
        "n[1-" + "9" * 5000 + "]",
    ],
    ids=["one range", "product", "many items", "18 digits", "5000 digits"],
)
def test_list_of_too_many_hosts_is_refused_at_once(text: str) -> None:
    start = time.perf_counter()
    with pytest.raises(WorldError, match=f"at most {MAX_HOSTS}|expected digits") as e:
        expand_hostlist(text)
    assert time.perf_counter() - start < 0.5
    assert len(str(e.value)) < 400


def test_first_host_expands_nothing() -> None:
    assert first_host("n[1-999999999]") == "n1"


@pytest.mark.parametrize("text", ["", " , "])
def test_first_host_of_nothing_is_refused(text: str) -> None:
    with pytest.raises(WorldError, match="found no host, expected one at least"):
        first_host(text)


NAMES = st.from_regex(r"[abgn][-._+:0-9abn]{0,3}", fullmatch=True)
NUMBERS = st.integers(0, 120)


@st.composite
def ranges(draw: st.DrawFn) -> str:
    low, extra = draw(NUMBERS), draw(st.integers(0, 4))
    width = draw(st.integers(0, 3))
    if draw(st.booleans()):
        return f"{low:0{width}d}"
    return f"{low:0{width}d}-{low + extra}"


@st.composite
def lists(draw: st.DrawFn) -> str:
    def token() -> str:
        groups = draw(st.lists(st.lists(ranges(), min_size=1, max_size=3), max_size=3))
        return draw(NAMES) + draw(NAMES).join(f"[{','.join(g)}]" for g in groups)

    # A newline separates since 23.02 only, so it is tested apart.
    separators = st.sampled_from([",", " ", "\t", ",,", ", "])
    count = draw(st.integers(1, 4))
    return "".join(token() + draw(separators) for _ in range(count))


@given(lists())
def test_first_host_is_the_first_of_all(text: str) -> None:
    assert first_host(text) == expand_hostlist(text)[0]


@given(st.lists(NAMES))
def test_names_without_brackets_come_back(names: list[str]) -> None:
    assert expand_hostlist(",".join(names)) == names


@given(st.text("n1[]-,{} 0", max_size=12) | st.text(max_size=12))
def test_any_text_is_expanded_or_refused(text: str) -> None:
    try:
        hosts = expand_hostlist(text)
    except WorldError as error:
        assert "expected" in str(error)  # noqa: PT017 - either outcome is right
    else:
        assert all(hosts)


class Environ(dict[str, str]):
    """An environment that a failing property does not print."""

    def __repr__(self) -> str:
        return "<environ>"


@pytest.fixture(scope="module")
def slurm_environ(tmp_path_factory: pytest.TempPathFactory) -> Environ:
    """Give an environment in which `scontrol show hostnames` answers."""
    if shutil.which("scontrol") is None:
        pytest.skip("scontrol is not installed")
    path = tmp_path_factory.mktemp("slurm") / "slurm.conf"
    path.write_text(
        "ClusterName=t\nSlurmctldHost=localhost\nNodeName=n1\n"
        "PartitionName=p Nodes=n1\n"
    )
    environ = Environ(os.environ | {"SLURM_CONF": str(path)})
    if scontrol_hosts("n[1-2]", environ) != ["n1", "n2"]:
        pytest.skip("scontrol does not answer without a cluster here")
    return environ


def scontrol_hosts(text: str, environ: Environ) -> list[str]:
    done = subprocess.run(
        ["scontrol", "show", "hostnames", text],
        env=environ,
        capture_output=True,
        text=True,
        timeout=10,
        check=False,
    )
    return done.stdout.split()


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(text=lists())
@example(text="a[1-2]b[1-2]c[1-2]d[1-3]")
def test_generated_list_agrees_with_scontrol(text: str, slurm_environ: Environ) -> None:
    assert expand_hostlist(text) == scontrol_hosts(text, slurm_environ)
