"""The learner: accumulation, precision, clipping, averaging, and numbers gone wrong.

All of it exact under disturbance, and with the gradients that the whole batch has.
"""

import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from clusterddp.config.schema import Train
from clusterddp.dist import World, init_dist, shutdown
from clusterddp.errors import NumbersError, UsageError
from clusterddp.export import main as export
from clusterddp.runs.directory import RunDirectory
from clusterddp.training import Experiment
from clusterddp.training import checkpoint_files as disk
from clusterddp.training.agreement import check_equal
from clusterddp.training.average import WeightAverage
from clusterddp.training.evaluation import Evaluator
from clusterddp.training.gradients import FiniteCheck, gradients, total_norm
from clusterddp.training.guard import NumberGuard
from clusterddp.training.learner import Learner
from clusterddp.training.losses import Share, weigh
from tests import training_ranks as ranks
from tests.training_ranks import Disturber, build_noisy, final_state, logged

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """Give a world of one."""
    yield init_dist("none")
    shutdown()


def settings(
    params: Mapping[str, Any] | None = None,
    /,
    **train: Any,  # noqa: ANN401
) -> dict[str, Any]:
    sizes = {"epochs": 4, "global_batch_size": 48}
    return {
        "params": {"sleep": 0.005, **(params or {})},
        "train": sizes | train,
        "checkpoint": {"every": "5 steps"},
        "log": {"every": 4},
    }


def straight(run: Path, world_size: int, chosen: dict[str, Any]) -> dict[str, Any]:
    started = ranks.start_training(run, 0, world_size, build_noisy, chosen)
    assert set(started.wait()) == {0}, started.output()
    return final_state(run)


ALL = {"ema": 0.9, "eval_weights": "ema", "clip_grad_norm": 0.5, "not_finite": "skip"}
QUICK = [
    (1, {"precision": "bf16", "accumulate": 2}),
    (2, {"precision": "fp16", "accumulate": 3}),
    (3, {"precision": "bf16", "accumulate": 4}),
    (4, {"precision": "fp32", "accumulate": 2}),
]
LONG = [
    (size, {"precision": precision, "accumulate": parts, "workers": workers})
    for size, precision, parts, workers in itertools.product(
        (1, 2, 3, 4), ("fp32", "bf16", "fp16"), (1, 3), (0, 2)
    )
]


@pytest.mark.parametrize(
    ("world_size", "train"),
    [*QUICK, *(pytest.param(*case, marks=pytest.mark.long) for case in LONG)],
    ids=str,
)
def test_a_disturbed_run_equals_a_straight_one(
    tmp_path: Path, world_size: int, train: dict[str, Any]
) -> None:
    """In weights, average, scale, skipped steps and logged values, bit for bit.

    Batches that begin with a certain sample have an infinite loss: those are skipped.
    """
    chosen = settings({"spikes": 0.1}, **ALL, **train)
    expected = straight(tmp_path / "straight", world_size, chosen)
    assert "ema" in expected
    assert any("skipped" in line for line in expected["lines"])
    run = tmp_path / "disturbed"
    disturber = Disturber(run, world_size, build_noisy, chosen, seed=world_size)
    disturber.kills = 0.3
    disturber.finish()
    assert final_state(run) == expected, disturber.history


@pytest.mark.parametrize(
    ("without", "changed"),
    [("", set()), ("scale", {"optimizer"}), ("average", {"ema"}), ("skips", {"lines"})],
)
def test_the_comparison_notices_what_is_missing(
    tmp_path: Path, without: str, changed: set[str]
) -> None:
    """Scale, average and count of skips each have to be in the checkpoint."""
    params = {"spikes": 0.1, "without": [without] if without else []}
    chosen = settings(params, **ALL, precision="fp16")
    expected = straight(tmp_path / "straight", 1, chosen)
    run, stopped = tmp_path / "stopped", settings(params | {"stop_at": 9}, **ALL)
    stopped["train"]["precision"] = "fp16"
    codes = ranks.start_training(run, 0, 1, build_noisy, stopped).wait()
    assert codes == [ranks.STOPPED]
    assert ranks.start_training(run, 1, 1, build_noisy, stopped).wait() == [0]
    found = final_state(run)
    differing = {key for key in expected if expected[key] != found[key]}
    assert (differing >= changed) if changed else (differing == set())


def build_tokens(params: Mapping[str, Any]) -> Experiment:
    """Give sequences of unequal length; the loss is a mean over their tokens."""
    generator = torch.Generator().manual_seed(2)
    rows = torch.randn(31, 7, generator=generator, dtype=torch.float64)
    lengths = torch.randint(1, 8, (31,), generator=generator)
    mask = torch.arange(7) < lengths[:, None]
    model = nn.Linear(7, 7).double()

    def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
        errors = (model(batch[0]) - batch[0].cumsum(1)) ** 2
        mean: Tensor = errors[batch[1]].mean()
        return mean

    return Experiment(
        model,
        TensorDataset(rows, mask),
        loss,
        lambda parameters: torch.optim.SGD(parameters, lr=0.02, momentum=0.5),
        eval_data=TensorDataset(rows, mask),
        weight=(lambda batch: batch[1].sum()) if params.get("weighted") else None,
    )


def weights_of(run: Path) -> Tensor:
    newest = disk.list_checkpoints(run / "checkpoints")[0]
    state = torch.load(newest / "model.pt", weights_only=True)
    return torch.cat([value.flatten().double() for value in state.values()])


def by_hand() -> Tensor:
    """Train as the textbook does: the mean over the tokens of each whole batch."""
    torch.manual_seed(0)
    experiment = build_tokens({})
    rows, mask = experiment.train_data.tensors  # type: ignore[attr-defined]
    optimizer = experiment.optimizer(experiment.model.parameters())
    from clusterddp.training import GlobalSampler

    sampler = GlobalSampler(31, 6)
    for span in sampler.spans(0, 4 * 31):
        chosen = sampler.indices(span)
        optimizer.zero_grad()
        experiment.loss(experiment.model, [rows[chosen], mask[chosen]]).backward()  # type: ignore[union-attr]
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in experiment.model.parameters()])


@pytest.mark.parametrize(
    ("world_size", "accumulate"), [(1, 1), (1, 4), (2, 3), (3, 2), (4, 1)]
)
def test_gradients_are_those_of_the_whole_batch(
    tmp_path: Path, world_size: int, accumulate: int
) -> None:
    """Weighted by tokens over parts and ranks, the last partial batch of 1 too."""
    chosen = settings({"weighted": True}, global_batch_size=6, accumulate=accumulate)
    started = ranks.start_training(tmp_path, 0, world_size, build_tokens, chosen)
    assert set(started.wait()) == {0}, started.output()
    torch.testing.assert_close(weights_of(tmp_path), by_hand(), rtol=1e-9, atol=1e-12)
    last = float(logged(tmp_path)[-1]["eval/loss"])
    model = build_tokens({}).model
    torch.nn.utils.vector_to_parameters(by_hand(), model.parameters())
    rows, mask = build_tokens({}).train_data.tensors  # type: ignore[attr-defined]
    errors = (model(rows) - rows.cumsum(1)) ** 2
    assert math.isclose(last, errors[mask].mean().item(), rel_tol=1e-9)


def test_without_weights_a_mean_over_tokens_is_not_one(tmp_path: Path) -> None:
    """The comparison above notices a mean of means."""
    chosen = settings(global_batch_size=6, accumulate=4)
    started = ranks.start_training(tmp_path, 0, 1, build_tokens, chosen)
    assert started.wait() == [0], started.output()
    assert not torch.allclose(weights_of(tmp_path), by_hand(), rtol=1e-4)


def count_meetings(world: World, accumulate: int) -> int:
    """Give how often one step of so many parts sends gradients."""
    model = nn.Linear(3, 1)
    experiment = Experiment(
        model,
        TensorDataset(torch.ones(8, 3)),
        lambda model, batch: model(batch).mean(),
        torch.optim.SGD,
    )
    learner = Learner(experiment, Train(), world, CPU)
    meetings = []

    def hook(_state: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        meetings.append(bucket.index())
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    assert learner.ddp is not None
    learner.ddp.register_comm_hook(None, hook)
    shares = [Share(torch.ones(2, 3), 2)] * accumulate
    learner.step(shares, 2 * 2 * accumulate, at=0)
    return len(meetings)


def test_parts_of_a_batch_meet_once(tmp_path: Path) -> None:
    """no_sync is around forward and backward of all but the last."""
    started = ranks.start(2, tmp_path, ranks.with_world, count_meetings, 4)
    assert started.values() == [1, 1]


def make_learner(world: World, model: nn.Module, **train: Any) -> Learner:  # noqa: ANN401
    experiment = Experiment(
        model,
        TensorDataset(torch.ones(8, 3)),
        lambda model, batch: (model(batch[0]) - batch[1]).square().mean(),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5),
    )
    return Learner(experiment, Train(**train), world, CPU)


def batch_of(count: int, scale: float = 1.0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(count)
    x = scale * torch.randn(count, 3, generator=generator)
    return [x, x.sum(1, keepdim=True)]


def test_clipping_is_torchs_and_after_unscaling(world: World) -> None:
    """The same bits as clip_grad_norm_, and the norm is that before clipping."""
    torch.manual_seed(0)
    ours, theirs = nn.Linear(3, 1), nn.Linear(3, 1)
    theirs.load_state_dict(ours.state_dict())
    learned = make_learner(world, ours, clip_grad_norm=0.1).step(
        [Share(batch_of(8), 8)], 8, at=0
    )
    x, y = batch_of(8)
    (theirs(x) - y).square().mean().backward()
    norm = nn.utils.clip_grad_norm_(theirs.parameters(), 0.1)
    torch.optim.SGD(theirs.parameters(), lr=0.1).step()
    assert learned.norm is not None
    assert torch.equal(learned.norm, norm)
    assert norm > 0.1
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_an_overflow_in_fp16_is_skipped_and_the_schedule_waits(world: World) -> None:
    """The scale is halved; weights, average and learning rate stay."""
    model = nn.Linear(3, 1)
    learner = make_learner(world, model, precision="fp16", ema=0.9)
    before = [p.detach().clone() for p in model.parameters()]
    learned = learner.step([Share(batch_of(8, 300.0), 8)], 8, at=0)
    assert not learned.made
    assert learner.lr == 0.1
    assert learner.precision.scaler is not None
    assert learner.precision.scaler.get_scale() == 32768.0
    assert learner.average is not None
    assert learner.average.count == 0
    assert all(
        torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True)
    )
    assert learner.step([Share(batch_of(8, 0.01), 8)], 8, at=1).made
    assert learner.lr == 0.05


def test_bf16_computes_in_bf16_and_keeps_weights_in_fp32(world: World) -> None:
    """Autocast reaches the user's loss."""
    seen = []
    model = nn.Linear(3, 1)
    model.register_forward_hook(lambda _m, _i, out: seen.append(out.dtype))
    learner = make_learner(world, model, precision="bf16")
    learner.step([Share(batch_of(4), 4)], 4, at=0)
    assert seen == [torch.bfloat16]
    assert model.weight.dtype == torch.float32


def test_the_average_is_what_its_formula_says() -> None:
    """Hand-written in float64; the weights come back after a look at the average."""
    model = nn.Linear(1, 1, bias=False)
    average = WeightAverage(model, 0.5)
    expected = model.weight.item()
    for count, value in enumerate((1.0, 2.0, 4.0, 8.0), start=1):
        with torch.no_grad():
            model.weight.fill_(value)
        average.update()
        decay = min(0.5, (1 + count) / (10 + count))
        expected = decay * expected + (1 - decay) * value
    with average.in_place():
        assert math.isclose(model.weight.item(), expected, rel_tol=1e-6)
    assert model.weight.item() == 8.0
    assert average.state()["count"] == 4


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_that_are_not_finite_are_seen(value: float, dtype: torch.dtype) -> None:
    """Wherever they are, and only then; looking changes nothing."""
    grads = [torch.randn(5, dtype=dtype), torch.randn(3, 4, dtype=dtype)]
    kept = [grad.clone() for grad in grads]
    are_finite = FiniteCheck()
    assert are_finite(grads)
    assert all(torch.equal(a, b) for a, b in zip(grads, kept, strict=True))
    grads[1][2, 3] = value
    assert not are_finite(grads)
    assert are_finite([])
    assert are_finite(kept)  # what was found once is not remembered


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_in_a_bucket_are_seen(value: float) -> None:
    """One of them among the gradients of a bucket, or two that would cancel."""
    bucket = torch.randn(1000)
    grads = [bucket[:600].view(20, 30), bucket[600:]]
    are_finite = FiniteCheck()
    assert are_finite(grads)
    assert are_finite._buckets  # noqa: SLF001 - else this would test the other way
    bucket[700], bucket[3] = value, -value
    assert not are_finite(grads)
    bucket[3] = 0.0
    assert not are_finite(grads)
    bucket[700] = 1.0
    assert are_finite(grads)


def test_a_sum_that_is_too_large_is_no_infinity() -> None:
    """Sound gradients whose sum a float cannot hold are looked at one by one."""
    bucket = torch.full((1000,), 3e38)
    kept = bucket.clone()
    assert bucket.sum().isinf()
    assert FiniteCheck()([bucket[:500], bucket[500:]])
    assert torch.equal(bucket, kept)


def test_foreign_numbers_beside_gradients_do_not_count() -> None:
    """Only a storage that holds nothing but gradients is summed as a whole."""
    storage = torch.randn(100)
    storage[99] = math.nan
    assert FiniteCheck()([storage[:50], storage[50:90]])


def test_sparse_gradients_have_a_norm() -> None:
    """Their values count, each row once."""
    table = nn.Embedding(5, 2, sparse=True)
    table(torch.tensor([1, 1, 3])).sum().backward()
    grads = gradients(table.parameters())
    assert FiniteCheck()(grads)
    assert math.isclose(float(total_norm(grads)), math.sqrt(2 * 4 + 2), rel_tol=1e-6)


def test_the_guard_stops_skips_or_gives_up() -> None:
    """As the policy says; skipped steps in a row survive a stop."""
    stop = NumberGuard("stop", 3, scaled=False)
    assert stop.allows(finite=True, step=0)
    with pytest.raises(NumbersError, match=r"gradients of step 8: found NaN or Inf in"):
        stop.allows(finite=False, step=7)
    skip = NumberGuard("skip", 3, scaled=False)
    for finite in (False, False, True, False, False):
        assert skip.allows(finite=finite, step=0) == finite
    resumed = NumberGuard("skip", 3, scaled=False)
    resumed.load(skip.state())
    assert resumed.skipped == 4
    with pytest.raises(NumbersError, match="found NaN or Inf in 3 steps in a row"):
        resumed.allows(finite=False, step=9)
    assert not NumberGuard("ignore", 3, scaled=False).is_watching


def evaluate_alone(world: World, weights: str) -> float:
    """Give the evaluation of weights from a file."""
    experiment = build_noisy({})
    experiment.model.load_state_dict(torch.load(weights, weights_only=True))
    evaluator = Evaluator(experiment, world, CPU, Train(global_batch_size=48))
    values = evaluator.run(experiment.model, interrupted=lambda: False)
    assert values is not None
    return values["loss"]


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_what_is_exported_is_what_was_evaluated(
    tmp_path: Path, world_size: int
) -> None:
    """The average, if that was asked for; to the last bit."""
    for chosen, words in (("raw", []), ("ema", ["--ema"])):
        run = tmp_path / chosen
        train = settings({}, ema=0.9, eval_weights=chosen)
        lines = straight(run, world_size, train)["lines"]
        RunDirectory(run).job_file.touch()
        for name, given in (("same", words), ("other", [] if words else ["--ema"])):
            out = run / f"{name}.pt"
            assert export([str(run), str(out), *given]) == 0
            started = ranks.start(
                world_size, run / name, ranks.with_world, evaluate_alone, str(out)
            )
            found = {repr(value) for value in started.values()}
            assert (found == {lines[-1]["eval/loss"]}) is (name == "same")


def build_spoiled(params: Mapping[str, Any]) -> Experiment:
    """Give the noisy experiment; one rank's loss is NaN at some calls."""
    experiment = build_noisy(params)
    calls = itertools.count()

    def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
        mean = nn.functional.cross_entropy(model(batch[0]), batch[1])
        due = model.training and next(calls) in params["bad"]
        return mean * math.nan if due and params["rank"] == params["victim"] else mean

    return replace(experiment, loss=loss, scheduler=None)


@pytest.mark.parametrize(("world_size", "victim"), [(1, 0), (2, 1), (3, 0)])
def test_a_nan_of_one_rank_is_skipped_by_all(
    tmp_path: Path, world_size: int, victim: int
) -> None:
    """Before the optimizer has seen it; calls 0 and 1 are the first look's."""
    params = {"victim": victim, "bad": [5, 6]}
    chosen = settings(params, not_finite="skip", check_equal=1)
    started = ranks.start_training(tmp_path, 0, world_size, build_spoiled, chosen)
    assert set(started.wait()) == {0}, started.output()
    assert torch.isfinite(weights_of(tmp_path)).all()
    lines = logged(tmp_path)
    assert lines[-1]["skipped"] == "2"
    losses = [float(line["loss"]) for line in lines if "loss" in line]
    assert len(losses) > 4
    assert all(map(math.isfinite, losses))


@pytest.mark.parametrize(
    ("world_size", "victim", "policy"),
    [(1, 0, "skip"), (2, 1, "stop"), (3, 2, "skip"), (4, 0, "stop")],
)
def test_a_nan_of_one_rank_stops_all(
    tmp_path: Path, world_size: int, victim: int, policy: str
) -> None:
    """Each says so itself, at once; the newest checkpoint is from before."""
    params = {"victim": victim, "bad": [9] if policy == "stop" else [8, 9]}
    chosen = settings(params, not_finite=policy, max_skips=2)
    started = ranks.start_training(tmp_path, 0, world_size, build_spoiled, chosen)
    assert set(started.wait()) == {1}
    for rank in range(world_size):
        assert "gradients of step 8: found NaN or Inf in" in started.output(rank)
    newest = disk.list_checkpoints(tmp_path / "checkpoints")[0]
    assert newest.name == "step-00000005"


def compare_models(world: World, victim: int) -> str:
    """Give what the comparison says when one rank has another last bit."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3).to(torch.bfloat16))
    check_equal(model, world, 4)
    if world.rank == victim:
        with torch.no_grad():
            bits = next(model[1].parameters()).view(torch.int16)
            bits[1, 2] ^= 1
    try:
        check_equal(model, world, 5)
    except NumbersError as error:
        return str(error)
    return "equal"


@pytest.mark.parametrize(("world_size", "victim"), [(2, 1), (3, 1), (4, 2), (2, -1)])
def test_a_parameter_that_differs_is_named(
    tmp_path: Path, world_size: int, victim: int
) -> None:
    """On all ranks, with the rank: one flipped bit is enough."""
    started = ranks.start(
        world_size, tmp_path, ranks.with_world, compare_models, victim
    )
    for said in started.values():
        if victim < 0:
            assert said == "equal"
        else:
            words = rf"after step 5: 1\.weight \(and 0 more\) of rank {victim} differ"
            assert re.search(words, said)


def build_drifting(params: Mapping[str, Any]) -> Experiment:
    """Give the noisy experiment; rank 1 changes a weight on its own."""
    experiment = build_noisy(params)

    def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
        if params["rank"] == 1:
            with torch.no_grad():
                next(model.parameters())[0, 0] += 0.1
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    return replace(experiment, loss=loss)


def test_ranks_that_drift_apart_are_found(tmp_path: Path) -> None:
    """At the next comparison, by name."""
    chosen = settings(check_equal=3)
    started = ranks.start_training(tmp_path, 0, 2, build_drifting, chosen)
    assert started.wait() == [1, 1]
    assert "parameters after step 3: 0.weight (and 0 more) of rank 1" in started.output(
        0
    )


def test_a_weight_must_be_one_number(world: World) -> None:
    """The message shows what came, and what is meant."""
    assert world.world_size == 1
    experiment = replace(build_tokens({}), weight=lambda batch: batch[1].sum(1))
    share = Share([torch.ones(4, 7), torch.ones(4, 7)], 4)
    with pytest.raises(UsageError, match=r"Experiment.weight: gave shape \(4,\)"):
        weigh(experiment, [share], CPU)


def test_checkpoints_before_these_options_can_still_be_read(tmp_path: Path) -> None:
    """A scale, a count of skips or an average that is not there begins anew."""
    chosen = settings({"stop_at": 6})
    assert ranks.start_training(tmp_path, 0, 1, build_noisy, chosen).wait() == [75]
    chosen = settings({}, ema=0.5, precision="fp16")
    started = ranks.start_training(tmp_path, 1, 1, build_noisy, chosen)
    assert started.wait() == [0], started.output()
    newest = disk.list_checkpoints(tmp_path / "checkpoints")[0]
    assert (newest / "ema.pt").exists()
    assert json.loads((newest / "state.json").read_text())["step"] == 12
