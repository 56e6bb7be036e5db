"""Time limits and ports as people write them, and what is refused."""

import subprocess
import sys
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterddp.dist.arguments import ArgumentError, parse_limit, parse_port_range
from clusterddp.errors import UsageError


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (timedelta(minutes=5), 300),
        (30, 30),
        (1.5, 1.5),
        ("30m", 1800),
        ("1h30m", 5400),
        ("90s", 90),
        ("1-12:00:00", 129600),
        (0.001, 0.001),
        ("24d", 24 * 86400),
    ],
    ids=repr,
)
def test_limit_is_read(value: object, seconds: float) -> None:
    """A timedelta, seconds, or a duration as in the job file."""
    assert parse_limit("timeout", value) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "value",
    [0, -1, 0.0001, timedelta(0), timedelta(days=-1), "0s", "25d", 1e300, float("inf")],
    ids=repr,
)
def test_limit_that_torch_would_misread_is_refused(value: object) -> None:
    """To torch 0 is "without limit", and milliseconds beyond 31 bits wrap."""
    with pytest.raises(ArgumentError, match="a millisecond at least and 24 days at"):
        parse_limit("timeout", value)


@pytest.mark.parametrize("value", [None, True, [30], float("nan"), b"30m"], ids=repr)
def test_limit_of_another_type_is_refused(value: object) -> None:
    """The message shows the three ways to write one."""
    with pytest.raises(ArgumentError) as caught:
        parse_limit("rendezvous_timeout", value)
    text = str(caught.value)
    assert f"found rendezvous_timeout={value!r}, expected a time limit" in text
    assert "rendezvous_timeout=timedelta(seconds=1800)" in text
    assert "rendezvous_timeout='30m'" in text
    assert isinstance(caught.value, UsageError)
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize("value", ["30", "", "soon", "-5m", "5 parsecs"], ids=repr)
def test_limit_in_other_words_is_refused(value: str) -> None:
    """Text needs a unit, and the message says so."""
    with pytest.raises(ArgumentError, match=r"timeout='.*is not a duration; write 90s"):
        parse_limit("timeout", value)


@given(st.floats() | st.integers() | st.text() | st.timedeltas())
def test_limit_is_read_or_refused(value: object) -> None:
    """Nothing else happens, whatever is given."""
    try:
        limit = parse_limit("timeout", value)
    except ArgumentError:
        return
    assert timedelta(milliseconds=1) <= limit <= timedelta(days=24)


@pytest.mark.parametrize(
    ("value", "ports"),
    [
        (None, None),
        ("20000-20100", (20000, 20100)),
        (" 5 - 5 ", (5, 5)),
        ((1, 65535), (1, 65535)),
        ([7, 8], (7, 8)),
    ],
    ids=repr,
)
def test_port_range_is_read(value: object, ports: object) -> None:
    """Text as in the job file, or a pair."""
    assert parse_port_range(value) == ports


@pytest.mark.parametrize(
    "value",
    [
        "20000",
        "9-8",
        "0-9",
        "1-65536",
        "a-b",
        (1,),
        (1, 2, 3),
        ("1", "2"),
        7,
        (True, 2),
    ],
    ids=repr,
)
def test_port_range_that_is_none_is_refused(value: object) -> None:
    """With what was found and how to write one."""
    with pytest.raises(ArgumentError, match="found port_range=.*'20000-20100'"):
        parse_port_range(value)


def test_arguments_are_read_without_torch_and_pydantic() -> None:
    """Both are slow to load, and only a duration in text needs the job file's code."""
    code = "import sys, clusterddp.dist.arguments"
    code += "; sys.exit(bool({'torch', 'pydantic'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
