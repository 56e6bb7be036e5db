"""The trainer: a disturbed run gives the bits of an undisturbed one."""

import json
import math
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    default_collate,
)
from torch.utils.data._utils import worker as torch_worker

from clusterddp.errors import UsageError
from clusterddp.training import Experiment
from clusterddp.training import checkpoint_files as disk
from clusterddp.training.data import BatchKey, SeededBatches
from clusterddp.training.losses import call_loss
from tests import training_ranks as ranks
from tests.training_ranks import Disturber, build_noisy, final_state, logged

EPOCHS = 3
STEPS = 18  # 130 samples in batches of 24: 6 a epoch, the last one of 10


def settings(workers: int = 0, /, **params: float | str | list[str]) -> dict[str, Any]:
    return {
        "params": {"sleep": 0.01, **params},
        "train": {"epochs": EPOCHS, "global_batch_size": 24, "workers": workers},
        "checkpoint": {"every": "5 steps"},
        "log": {"every": 4},
    }


def finish(
    run: Path, world_size: int, build: ranks.Build, chosen: dict[str, Any], at: int = 0
) -> list[int | None]:
    """Run one attempt; give its exit codes."""
    started = ranks.start_training(run, at, world_size, build, chosen)
    codes = started.wait()
    assert set(codes) <= {0, ranks.STOPPED}, started.output()
    return codes


def straight(run: Path, world_size: int, chosen: dict[str, Any]) -> dict[str, Any]:
    assert set(finish(run, world_size, build_noisy, chosen)) == {0}
    return final_state(run)


CASES = [(1, 0), (2, 0), (3, 0), (4, 0), (1, 2), (3, 2)]


@pytest.mark.parametrize(("world_size", "workers"), CASES)
def test_a_disturbed_run_equals_a_straight_one(
    tmp_path: Path, world_size: int, workers: int
) -> None:
    """In model, optimizer, random streams and logged values, bit for bit.

    Signals go to one rank at random times from before the ranks have met, as
    Slurm's may; then one rank is killed now and then.
    """
    chosen = settings(workers)
    expected = straight(tmp_path / "straight", world_size, chosen)
    assert expected["step"] == f"step-{STEPS:08d}"
    for kills in (0.0, 0.6):
        run = tmp_path / f"kills {kills}"
        disturber = Disturber(run, world_size, build_noisy, chosen, seed=world_size)
        disturber.kills = kills
        disturber.finish()
        assert final_state(run) == expected, disturber.history


def stopped_and_resumed(
    tmp_path: Path, world_size: int, **params: float | list[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Give the ends of a straight run, and of one stopped once, within step 8."""
    expected = straight(tmp_path / "straight", world_size, settings(**params))
    run, chosen = tmp_path / "stopped", settings(stop_at=9, **params)
    assert set(finish(run, world_size, build_noisy, chosen)) == {ranks.STOPPED}
    assert set(finish(run, world_size, build_noisy, chosen, at=1)) == {0}
    return expected, final_state(run)


@pytest.mark.parametrize(
    ("without", "world_size", "changed"),
    [
        ("", 3, set()),
        ("warm-up", 3, {"model", "optimizer"}),
        ("warm-up", 2, set()),
        ("random streams", 2, {"model", "optimizer", "ranks"}),
        ("loss sums", 2, {"lines"}),
        ("optimizer", 2, {"model", "optimizer"}),
    ],
)
def test_the_comparison_notices_what_is_missing(
    tmp_path: Path, without: str, world_size: int, changed: set[str]
) -> None:
    """Each part of exactness is needed; two ranks would hide the warm-up's."""
    params = {"without": [without]} if without else {}
    expected, found = stopped_and_resumed(tmp_path, world_size, **params)
    differing = {key for key in expected if expected[key] != found[key]}
    assert (differing >= changed) if changed else (differing == set())


@pytest.mark.parametrize("without", [[], ["sample seeds"]], ids=str)
def test_workers_change_no_bits(tmp_path: Path, without: list[str]) -> None:
    """Draws in the data follow from the sample, and do not disturb dropout."""
    none = straight(tmp_path / "none", 2, settings(0, without=without))
    two = straight(tmp_path / "two", 2, settings(2, without=without))
    assert (two == none) is not bool(without)


@pytest.mark.parametrize("parts", [0, 1, 2])
def test_rows_of_tensors_take_a_short_way(parts: int) -> None:
    """To the same batch; also from a part of a part of them."""
    data: Dataset[Any] = TensorDataset(torch.randn(30, 3), torch.arange(30))
    for _ in range(parts):
        data = Subset(data, [*range(len(data) - 1, 0, -2), 0, 0, 2])  # type: ignore[arg-type]
    key = BatchKey(0, (3, 1, 8))
    short = SeededBatches(data, None, 0).__getitems__(key)
    long = SeededBatches(data, default_collate, 0).__getitems__(key)
    assert type(short) is type(long)
    assert all(torch.equal(a, b) for a, b in zip(short, long, strict=True))


def build_signalling(params: Mapping[str, Any]) -> Experiment:
    """Give the noisy experiment; one rank signals itself during an evaluation."""
    experiment = build_noisy(params)
    calls = iter(range(1000))

    def evaluate(model: nn.Module, batch: list[Tensor]) -> dict[str, Tensor]:
        due = params["attempt"] == 0 and params["rank"] == params["victim"]
        if due and next(calls) == params["call"]:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.3)
        return {"loss": nn.functional.cross_entropy(model(batch[0]), batch[1])}

    return replace(experiment, evaluate=evaluate, eval_data=ranks.NoisyRows(100))


@pytest.mark.parametrize(("world_size", "victim"), [(1, 0), (2, 0), (2, 1), (3, 2)])
@pytest.mark.parametrize("epoch", [1, EPOCHS], ids=["first", "last"])
def test_a_stop_during_an_evaluation(
    tmp_path: Path, world_size: int, victim: int, epoch: int
) -> None:
    """It is given up at once, and made up for when the run goes on."""
    batches = -(-100 // world_size // -(-24 // world_size))
    calls_before = (epoch - 1) * batches
    chosen = settings(victim=victim, call=calls_before)
    run = tmp_path / "stopped"
    codes = finish(run, world_size, build_signalling, chosen)
    assert set(codes) == {ranks.STOPPED}
    state = json.loads((newest(run) / "state.json").read_text())
    assert state["step"] == epoch * STEPS // EPOCHS
    assert state["noted"] < state["step"]
    assert set(finish(run, world_size, build_signalling, chosen, at=1)) == {0}
    chosen["params"]["call"] = -1
    expected = tmp_path / "straight"
    assert set(finish(expected, world_size, build_signalling, chosen)) == {0}
    assert final_state(run) == final_state(expected)


def newest(run: Path) -> Path:
    return disk.list_checkpoints(run / "checkpoints")[0]


def build_stopped_by_log(params: Mapping[str, Any]) -> Experiment:
    """Give the noisy experiment; rank 0 signals itself right before a save."""

    def on_log(step: int, values: Mapping[str, float]) -> None:
        assert values["loss"] > 0
        if step == 4 and params["attempt"] == 0:
            os.kill(os.getpid(), signal.SIGUSR2)
            time.sleep(0.2)

    return replace(build_noisy(params), on_log=on_log)


def test_a_save_is_a_place_to_stop(tmp_path: Path) -> None:
    """A request that comes before a save is done costs no further step."""
    chosen = settings() | {"checkpoint": {"every": "4 steps"}}
    codes = finish(tmp_path, 2, build_stopped_by_log, chosen)
    assert codes == [ranks.STOPPED] * 2
    assert newest(tmp_path).name == "step-00000004"


def test_too_little_time_for_a_save(tmp_path: Path) -> None:
    """The snapshot before is what stays, and the end is the same in bits."""
    chosen = settings(stop_at=7, time_left=0.0)  # far from the next save
    assert set(finish(tmp_path, 2, build_noisy, chosen)) == {ranks.STOPPED}
    assert newest(tmp_path).name == "step-00000005"
    log = (tmp_path / "attempts" / "0000" / "rank-0.log").read_text()
    assert "0 s left, too few for a save" in log
    assert set(finish(tmp_path, 2, build_noisy, chosen, at=1)) == {0}
    assert final_state(tmp_path) == straight(tmp_path / "straight", 2, settings())


def build_standing_still(params: Mapping[str, Any]) -> Experiment:
    """Give the noisy experiment; rank 1 stops itself before a save, or after eval."""
    experiment, evaluated = build_noisy(params), threading.Event()

    def stand_still() -> None:
        if params["rank"] == 1:
            os.kill(os.getpid(), signal.SIGSTOP)

    def optimizer(parameters: Any) -> torch.optim.Optimizer:  # noqa: ANN401 - torch's
        made = torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
        if params["where"] == "save":
            made.register_state_dict_pre_hook(lambda _: stand_still())
        return made

    def loss(model: nn.Module, batch: list[Tensor]) -> Any:  # noqa: ANN401 - as it is
        if not model.training:
            evaluated.set()
        elif evaluated.is_set() and params["where"] == "evaluation":
            stand_still()
        return experiment.loss(model, batch)

    return replace(experiment, optimizer=optimizer, loss=loss)


@pytest.mark.parametrize(("where", "step"), [("save", 5), ("evaluation", 6)])
def test_who_waits_for_a_rank_says_that_it_trains(
    tmp_path: Path, where: str, step: int
) -> None:
    """Saving and evaluating may take half an hour; what comes beside them may not."""
    chosen = settings(where=where)
    started = ranks.start_training(tmp_path, 0, 2, build_standing_still, chosen)
    victim, deadline = started.processes[1].pid, time.monotonic() + 60
    assert victim is not None
    while psutil.Process(victim).status() != psutil.STATUS_STOPPED:
        assert time.monotonic() < deadline, started.output()
        time.sleep(0.02)
    time.sleep(2.5)  # progress.json is written once a second
    said = json.loads((tmp_path / "progress.json").read_text())
    while started.processes[0].is_alive() and time.monotonic() < deadline:
        started.send(1, signal.SIGCONT)
        time.sleep(0.01)
    assert set(started.wait()) == {0}, started.output()
    assert (said["step"], said["phase"]) == (step, "train")


def build_on_a_slow_disk(params: Mapping[str, Any]) -> Experiment:
    """Give the noisy experiment; what it saves takes its time until it is durable."""
    write = disk.write_files

    def write_slowly(
        target: Path, contents: Mapping[str, object], fields: Mapping[str, object]
    ) -> int:
        time.sleep(params["write_s"])
        return write(target, contents, fields)

    disk.write_files = write_slowly
    return build_noisy(params)


def test_too_little_time_while_the_first_save_is_in_flight(tmp_path: Path) -> None:
    """How long a save takes is not known yet, but it is more than what is left."""
    chosen = settings(stop_at=7, time_left=0.0, write_s=2.0)
    assert set(finish(tmp_path, 2, build_on_a_slow_disk, chosen)) == {ranks.STOPPED}
    assert newest(tmp_path).name == "step-00000005"
    assert set(finish(tmp_path, 2, build_noisy, chosen, at=1)) == {0}
    assert final_state(tmp_path) == straight(tmp_path / "straight", 2, settings())


def test_enough_time_for_a_save(tmp_path: Path) -> None:
    """It is made, as ever."""
    chosen = settings(stop_at=9, time_left=1000.0)
    assert set(finish(tmp_path, 2, build_noisy, chosen)) == {ranks.STOPPED}
    assert newest(tmp_path).name > "step-00000005"


def build_logging(params: Mapping[str, Any]) -> Experiment:
    """Give the noisy experiment; log points go to a file with the run's id."""

    def on_log(step: int, values: Mapping[str, float], *, run_id: str) -> None:
        with (params["run"] / "told").open("a") as file:
            file.write(f"{run_id} {step} {'loss' in values}\n")

    return replace(build_noisy(params), on_log=on_log)


def test_log_points_are_told_with_the_run(tmp_path: Path) -> None:
    """Which is the same after a stop, so that a curve goes on."""
    run = tmp_path / "the-run"
    finish(run, 2, build_logging, settings(stop_at=9))
    finish(run, 2, build_logging, settings(), at=1)
    told = [line.split() for line in (run / "told").read_text().splitlines()]
    assert {name for name, _, _ in told} == {"the-run"}
    assert sorted({int(step) for _, step, _ in told}) == [4, 6, 8, 12, 16, 18]
    assert all(has_loss == "True" for _, _, has_loss in told)


class Recorder(Dataset[Tensor]):
    """Rows that write down, per process, which ones were asked for."""

    def __init__(self, notes: Path) -> None:
        self.notes = notes

    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor(float(index))


def build_recording(params: Mapping[str, Any]) -> Experiment:
    """Give an experiment that writes down the samples of each finished step."""
    notes = params["run"] / f"seen-{params['attempt']}-{params['rank']}"

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        with notes.open("a") as file:
            file.write(json.dumps(batch.tolist()) + "\n")
        time.sleep(0.005)
        if params["attempt"] < params["stops"] and params["rank"] == 0:
            lines = notes.read_text().count("\n")
            if lines == params["stop_after"]:
                os.kill(os.getpid(), signal.SIGTERM)
        values: Tensor = model(batch[:, None])
        return values.mean()

    return Experiment(
        nn.Linear(1, 1),
        Recorder(notes),
        loss,
        lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )


@pytest.mark.parametrize("worlds", [(4, 2, 3), (1, 4, 2), (2, 1, 3)], ids=str)
def test_every_sample_once_over_changing_worlds(
    tmp_path: Path, worlds: tuple[int, ...]
) -> None:
    """Stopped twice and started on other numbers of ranks, within two epochs."""
    chosen = settings(stops=2, stop_after=5)
    chosen["train"] |= {"epochs": 2, "global_batch_size": 6}
    steps = [0]
    for attempt, world_size in enumerate(worlds):
        codes = finish(tmp_path, world_size, build_recording, chosen, at=attempt)
        assert set(codes) == {0 if attempt == 2 else ranks.STOPPED}
        steps.append(int(newest(tmp_path).name[5:]))
    seen: Counter[float] = Counter()
    for attempt, world_size in enumerate(worlds):
        done = steps[attempt + 1] - steps[attempt]
        for rank in range(world_size):
            path = tmp_path / f"seen-{attempt}-{rank}"
            # First come the warm-up's and, in a fresh run, the first look's.
            before = 1 if attempt else 2
            for line in path.read_text().splitlines()[before : before + done]:
                seen.update(json.loads(line))
    # A tail of 2 samples on more ranks than that adds fillers, with weight 0.
    assert set(seen) == {float(i) for i in range(50)}
    fillers = sum(seen.values()) - 100
    assert fillers == sum(_fillers(steps, worlds))
    assert min(seen.values()) == 2


def _fillers(steps: list[int], worlds: tuple[int, ...]) -> list[int]:
    tails = (9, 18)  # the ninth step of each epoch has 2 samples
    return [
        max(0, world - 2)
        for world, first, last in zip(worlds, steps, steps[1:], strict=False)
        for tail in tails
        if first < tail <= last
    ]


def build_plain(_params: Mapping[str, Any]) -> Experiment:
    """Give an experiment without dropout and batch norm: a function of the batch."""
    rows = torch.randn(31, 5, generator=torch.Generator().manual_seed(2))
    data = TensorDataset(rows, rows.sum(1, keepdim=True))

    def loss(model: nn.Module, batch: list[Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        error = model(batch[0]) - batch[1]
        return (error**2).mean(), {"bias": error.mean()}

    return Experiment(
        nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1)),
        data,
        loss,
        lambda parameters: torch.optim.SGD(parameters, lr=0.05),
        eval_data=data,
    )


def test_losses_and_gradients_are_weighted_by_samples(tmp_path: Path) -> None:
    """Any number of ranks gives the same training, but for the order of sums.

    31 samples in batches of 6 leave a last batch of 1: three ranks have none.
    """
    chosen = settings()
    chosen["train"]["global_batch_size"] = 6
    lines = {}
    for world_size in (1, 2, 3, 4):
        run = tmp_path / str(world_size)
        assert set(finish(run, world_size, build_plain, chosen)) == {0}
        lines[world_size] = logged(run)
    for found in lines.values():
        for ours, alone in zip(found, lines[1], strict=True):
            assert ours.keys() == alone.keys()
            for name, value in alone.items():
                assert math.isclose(float(ours[name]), float(value), rel_tol=1e-4)
    assert "eval/bias" in lines[1][-1]


def test_a_finished_run_is_left_alone(tmp_path: Path) -> None:
    """Started again it gives its result and touches no file of the run."""
    chosen = settings()
    first = ranks.start_training(tmp_path, 0, 2, build_noisy, chosen).values()
    kept = (tmp_path / "metrics.jsonl", tmp_path / "progress.json", newest(tmp_path))
    before = [path.stat().st_mtime_ns for path in kept]
    second = ranks.start_training(tmp_path, 1, 2, build_noisy, chosen).values()
    assert second == first
    assert first[0]["finished"]
    assert first[0]["metrics"]["loss"] > 0
    assert [path.stat().st_mtime_ns for path in kept] == before


def build_larger(params: Mapping[str, Any]) -> Experiment:
    return replace(build_noisy(params), train_data=ranks.NoisyRows(131))


def test_other_data_is_refused(tmp_path: Path) -> None:
    """A position means nothing in data of another size."""
    finish(tmp_path, 1, build_noisy, settings(stop_at=3))
    started = ranks.start_training(tmp_path, 1, 1, build_larger, settings())
    assert started.wait() == [1]
    assert "written with 130 training samples, now there are 131" in started.output()


class KilledByStop(Dataset[Tensor]):
    """Rows whose worker dies of a stop that its rank is sent."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        self.params = params

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Tensor:
        is_worker = torch.utils.data.get_worker_info() is not None
        died = self.params["run"] / "died"
        is_victim = self.params["rank"] == self.params["victim"]
        if is_worker and is_victim and index == 17 and not died.exists():
            died.touch()
            os.kill(os.getppid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.tensor([float(index)])


def build_killed(params: Mapping[str, Any]) -> Experiment:
    return Experiment(
        nn.Linear(1, 1),
        KilledByStop(params),
        lambda model, batch: model(batch).mean(),
        lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
    )


@pytest.mark.parametrize(("world_size", "victim"), [(1, 0), (2, 1), (3, 0), (4, 2)])
def test_a_worker_that_dies_at_the_stop(
    tmp_path: Path, world_size: int, victim: int
) -> None:
    """The last steps load in the rank itself, and the state is saved."""
    chosen = settings(1, victim=victim)
    chosen["train"] |= {"epochs": 4, "global_batch_size": 4}
    codes = finish(tmp_path, world_size, build_killed, chosen)
    assert set(codes) == {ranks.STOPPED}
    assert (tmp_path / "died").exists()
    assert set(finish(tmp_path, world_size, build_killed, chosen, at=1)) == {0}


def build_with_patient_workers(params: Mapping[str, Any]) -> Experiment:
    """Give the noisy experiment; workers look for their rank every ten minutes."""
    torch_worker.MP_STATUS_CHECK_INTERVAL = 600.0
    return build_noisy(params)


@pytest.mark.parametrize(("world_size", "victim"), [(2, 1), (3, 0), (4, 2)])
def test_a_killed_rank_is_noticed_at_once_in_spite_of_workers(
    tmp_path: Path, world_size: int, victim: int
) -> None:
    """Its forked workers would keep its sockets open until they look for it."""
    chosen, build = settings(2), build_with_patient_workers
    chosen["train"]["epochs"] = 1000
    started = ranks.start_training(tmp_path, 0, world_size, build, chosen)
    started.wait_for("joined")
    deadline = time.monotonic() + 20
    while not list((tmp_path / "checkpoints").glob("step-????????")):
        assert time.monotonic() < deadline, started.output()
        time.sleep(0.01)
    started.send(victim, signal.SIGKILL)
    killed = time.monotonic()
    codes = started.wait()
    assert codes.pop(victim) == -9
    assert set(codes) == {1}
    assert time.monotonic() - killed < 50


def build_leaving(params: Mapping[str, Any]) -> Experiment:
    """Give the noisy experiment; one rank leaves without a word, or raises."""
    experiment = build_noisy(params)
    calls = iter(range(1000))

    def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
        if model.training and next(calls) == 6 and params["rank"] == params["victim"]:
            if params["how"] == "exit":
                os._exit(3)
            message = "the only one"
            raise ValueError(message)
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    return replace(experiment, loss=loss)


@pytest.mark.parametrize(
    ("world_size", "victim", "how"),
    [(2, 0, "exit"), (3, 2, "exit"), (2, 1, "raise"), (4, 0, "raise")],
)
def test_a_rank_that_leaves_takes_the_others_along(
    tmp_path: Path, world_size: int, victim: int, how: str
) -> None:
    """Long before the timeout of collectives, a minute here; nobody saves."""
    chosen = settings(victim=victim, how=how)
    started = ranks.start_training(tmp_path, 0, world_size, build_leaving, chosen)
    codes = started.wait(30)
    assert codes[victim] == (3 if how == "exit" else 1)
    assert {code for rank, code in enumerate(codes) if rank != victim} == {1}
    assert not (tmp_path / "checkpoints" / "step-00000005").exists()
    if how == "raise":
        assert "ValueError: the only one" in started.output(victim)


def test_progress_and_lines(tmp_path: Path) -> None:
    """Rank 0 says where the training stands, to files and to people."""
    started = ranks.start_training(tmp_path, 0, 2, build_noisy, settings())
    assert started.wait() == [0, 0], started.output()
    progress = json.loads((tmp_path / "progress.json").read_text())
    expected = {
        "step": 18,
        "total_steps": 18,
        "epoch": 3,
        "epochs": 3,
        "checkpoint": 18,
    }
    assert progress.items() >= expected.items()
    assert set(progress) > {"time", "loss", "samples_per_s", "phase"}
    assert "epoch 1/3 · step 4/18 · loss 0." in started.output(0)
    assert "step 18/18 · evaluation: loss 0." in started.output(0)
    assert started.output(1) == ""


MODEL = nn.Linear(1, 1)
DATA = TensorDataset(torch.zeros(2, 1))
VALID: dict[str, Any] = {
    "model": MODEL,
    "train_data": DATA,
    "loss": lambda model, batch: model(batch).mean(),
    "optimizer": torch.optim.SGD,
}


class Stream(IterableDataset[int]):
    """Data without positions."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("model", nn.Linear, "is no torch.nn.Module; give the module itself"),
        ("model", nn.Flatten(), "no parameter of Flatten requires a gradient"),
        ("train_data", Stream(), "iterable dataset, which has no positions"),
        ("train_data", 3, "int lacks __len__ or __getitem__"),
        ("train_data", [], "the dataset is empty"),
        ("eval_data", Stream(), "Experiment.eval_data: Stream is an iterable"),
        ("loss", None, "Experiment.loss: NoneType cannot be called"),
        ("optimizer", torch.optim.SGD(MODEL.parameters()), "not the optimizer itself"),
        ("scheduler", 3, "Experiment.scheduler: int cannot be called"),
    ],
)
def test_an_impossible_experiment_is_refused(
    field: str, value: object, words: str
) -> None:
    """The message names the field, what was found, and what to give."""
    with pytest.raises(UsageError, match=words):
        Experiment(**(VALID | {field: value}))


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (lambda _m, _b: torch.zeros(3), r"gave shape \(3,\), expected a scalar"),
        (lambda _m, _b: 0.5, "gave 0.5, expected a scalar tensor"),
    ],
    ids=["one per sample", "a number"],
)
def test_a_loss_must_be_a_scalar(loss: Callable[..., Any], words: str) -> None:
    """The message shows what came instead."""
    with pytest.raises(UsageError, match=words):
        call_loss(loss, MODEL, None)
