"""Loader workers: they outlive the signals that ask their rank to stop.

However they are started, from their first moment on, and whether the cluster signals
every process of a step or its tasks only.
"""

import multiprocessing
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from clusterddp.training import Experiment
from tests import training_ranks as ranks
from tests.training_ranks import build_noisy, final_state


def settings(params: dict[str, Any]) -> dict[str, Any]:
    return {
        "params": params,
        "train": {"epochs": 2, "global_batch_size": 24, "workers": 1},
        "checkpoint": {"every": "100 steps"},
        "log": {"every": 2},
    }


def signal_children(over: threading.Event) -> None:
    """Send every stop signal to every process below this one, as it appears."""
    done: set[int] = set()
    while not over.wait(0.01):
        for child in psutil.Process().children(recursive=True):
            if child.pid not in done:
                done.add(child.pid)
                for number in ranks.STOP_SIGNALS:
                    with suppress(psutil.NoSuchProcess):
                        child.send_signal(number)


def build_signalled(params: Mapping[str, Any]) -> Experiment:
    """Give the noisy experiment; a cluster signals its workers, and then the rank."""
    multiprocessing.set_start_method(params["method"], force=True)
    experiment = replace(build_noisy(params), scheduler=None, eval_data=None)
    if params["attempt"] or not params["disturbed"]:
        return experiment
    over = threading.Event()
    if params["disturbed"] == "step":
        threading.Thread(target=signal_children, args=(over,), daemon=True).start()

    def on_log(step: int, _values: Mapping[str, float]) -> None:
        if step == 4:
            over.set()
            everybody = [psutil.Process()]
            if params["disturbed"] == "step":
                everybody += psutil.Process().children(recursive=True)
            for number in ranks.STOP_SIGNALS:
                for process in everybody:
                    process.send_signal(number)

    return replace(experiment, on_log=on_log)


def run_once(run: Path, attempt: int, params: dict[str, Any]) -> list[int | None]:
    started = ranks.start_training(run, attempt, 1, build_signalled, settings(params))
    codes = started.wait(120)
    for words in ("exited unexpectedly", "died unexpectedly", "Traceback"):
        assert words not in started.output()
    return codes


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The end of a run that nothing disturbed."""
    run = tmp_path_factory.mktemp("straight")
    assert run_once(run, 0, {"method": "fork", "disturbed": ""}) == [0]
    return final_state(run)


HOWS = [
    *(("step", method) for method in ("fork", "spawn", "forkserver")),
    # That a rank's own signal leaves forked workers alone, others test as well.
    pytest.param("task", "spawn", marks=pytest.mark.long),
    pytest.param("task", "forkserver", marks=pytest.mark.long),
]


@pytest.mark.parametrize(("disturbed", "method"), HOWS)
def test_workers_outlive_the_signals(
    tmp_path: Path, straight: dict[str, Any], disturbed: str, method: str
) -> None:
    """Those of a step that is signalled whole, and those of a task alone."""
    params = {"method": method, "disturbed": disturbed}
    assert run_once(tmp_path, 0, params) == [ranks.STOPPED]
    assert run_once(tmp_path, 1, {"method": "fork", "disturbed": ""}) == [0]
    assert final_state(tmp_path) == straight
