"""NCCL's environment, checked and completed; no GPU is needed for that."""

import logging
from pathlib import Path

import pytest

from clusterddp.dist.nccl import (
    ineffective_timeout,
    prepare_nccl,
    recorder_directory,
    recorder_variables,
)

OFF = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
HERE = Path("/runs/r/attempts/0002/flight")


@pytest.mark.parametrize("name", [OFF, "NCCL_ASYNC_ERROR_HANDLING"])
def test_switched_off_error_handling_is_reported(name: str) -> None:
    """With what it does, what is expected and what to do."""
    problem = ineffective_timeout({name: "0"})
    assert f"{name}=0: with it no timeout ends a stuck NCCL" in problem
    assert "unset it, or set TORCH_NCCL_BLOCKING_WAIT=1" in problem


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {OFF: ""},
        {OFF: "1"},
        {OFF: "3"},
        {OFF: "0", "TORCH_NCCL_BLOCKING_WAIT": "1"},
        {OFF: "0", "NCCL_BLOCKING_WAIT": "1"},
        {OFF: "1", "NCCL_ASYNC_ERROR_HANDLING": "0"},
    ],
    ids=str,
)
def test_effective_timeout_is_not_reported(environ: dict[str, str]) -> None:
    """The default, any mode of handling, or a wait that blocks; new names win."""
    assert not ineffective_timeout(environ)


def test_blocking_wait_that_is_off_does_not_help() -> None:
    """0 means off there, too."""
    assert ineffective_timeout({OFF: "0", "TORCH_NCCL_BLOCKING_WAIT": "0"})


def test_traces_go_to_the_attempt() -> None:
    """Under the supervisor there is one; by hand torch's default stands."""
    environ = {"CLUSTERDDP_RUN_DIR": "/runs/r", "CLUSTERDDP_ATTEMPT": "0002"}
    assert recorder_directory(environ) == HERE
    assert recorder_directory({"CLUSTERDDP_RUN_DIR": "/runs/r"}) is None


def test_recorder_is_switched_on_under_both_names() -> None:
    """An older torch reads the older ones."""
    variables = recorder_variables({}, HERE)
    trace = f"{HERE}/nccl_trace_rank_"
    assert variables == {
        "TORCH_FR_DUMP_TEMP_FILE": trace,
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": trace,
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    }


def test_users_own_settings_of_the_recorder_win() -> None:
    """Under either name."""
    environ = {
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/mine",
        "TORCH_FR_BUFFER_SIZE": "0",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    }
    assert not recorder_variables(environ, HERE)


def test_recorder_is_prepared_and_trouble_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Before the group is formed; the directory is there by then."""
    run = {"CLUSTERDDP_RUN_DIR": str(tmp_path), "CLUSTERDDP_ATTEMPT": "0002"}
    with caplog.at_level(logging.WARNING):
        variables = prepare_nccl("cpu:gloo,cuda:nccl", run | {OFF: "0"})
    flight = tmp_path / "attempts" / "0002" / "flight"
    assert flight.is_dir()
    assert variables["TORCH_FR_DUMP_TEMP_FILE"] == str(flight / "nccl_trace_rank_")
    assert f"{OFF}=0: with it no timeout ends a stuck NCCL collective" in caplog.text
    assert prepare_nccl("gloo", run | {OFF: "0"}) == {}
    assert prepare_nccl("nccl", {}) == {}
