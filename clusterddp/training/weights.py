"""Weights from a file or another run: compared with the model, then taken over."""

import os
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from clusterddp.config.schema import InitFrom
from clusterddp.errors import CheckpointError, UsageError
from clusterddp.runs.finding import find_root
from clusterddp.runs.published import verify
from clusterddp.runs.source import find_named, is_weights
from clusterddp.training.checkpoint_reading import Loaded

__all__ = ["compare", "read_weights", "restore", "start_warm"]

_SHOWN = 4
_WEIGHTS = "model.pt"


class Restorable(Protocol):
    """What takes over the states of a checkpoint; a Learner is one."""

    def load(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Take them over."""


def restore(target: Restorable, model: nn.Module, loaded: Loaded) -> None:
    """Take over the states of a checkpoint of this very experiment.

    Raises:
        CheckpointError: they are those of another model or optimizer.
    """
    advice = (
        "the experiment has changed since: build what it was, or submit a new run "
        "(init_from takes over weights that fit)"
    )
    findings = compare(model, loaded.states[_WEIGHTS])
    if findings:
        raise CheckpointError(
            f"{loaded.path / _WEIGHTS}: of another model: {'; '.join(findings)}; "
            f"{advice}"
        )
    try:
        target.load(loaded.states)
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{loaded.path}: the state beside the weights does not fit: "
            f"{type(error).__name__}: {error}; {advice}"
        ) from error


def start_warm(model: nn.Module, init: InitFrom) -> None:
    """Give a model the weights that `init_from` names; nothing else is taken over.

    Raises:
        UsageError: there are no such weights, or they do not fit, apart from what
            `skip` names.
        CheckpointError: the checkpoint does not verify.
    """
    path = Path(init.source).expanduser()
    if not is_weights(path):
        path = find_named(init.source, find_root(None, os.environ))
    weights = read_weights(path)
    findings = compare(model, weights, init.skip)
    if findings:
        raise UsageError(
            f"init_from {path}: does not fit the model: {'; '.join(findings)}; give "
            "weights of this model, or name the exceptions in init_from.skip"
        )
    fitting = {
        name: value
        for name, value in weights.items()
        if name in model.state_dict() and not _is_skipped(name, init.skip)
    }
    model.load_state_dict(fitting, strict=False)


def read_weights(path: Path) -> dict[str, Tensor]:
    """Give a state dict from a checkpoint's directory, a .pt or a .safetensors file.

    Raises:
        UsageError: the file holds something else.
        CheckpointError: the checkpoint does not verify.
    """
    if path.is_dir():
        verify(path)
        path = path / _WEIGHTS
    value: object
    if path.suffix == ".safetensors":
        value = _read_safetensors(path)
    else:
        try:
            value = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:
            raise UsageError(f"{path}: holds no weights: {error}") from error
    if not isinstance(value, Mapping) or not all(
        isinstance(each, Tensor) for each in value.values()
    ):
        raise UsageError(
            f"{path}: holds no state dict of tensors by name; give what "
            "model.state_dict() gave, alone"
        )
    return {name.removeprefix("module."): each for name, each in value.items()}


def _read_safetensors(path: Path) -> object:
    try:
        from safetensors.torch import load_file
    except ImportError as error:
        raise UsageError(
            f"{path}: the package safetensors is not installed; pip install "
            "'clusterddp[safetensors]', or use a .pt file"
        ) from error
    weights: dict[str, Tensor] = load_file(path)
    return weights


def compare(
    model: nn.Module, weights: Mapping[str, Any], skip: Sequence[str] = ()
) -> list[str]:
    """Give where weights and a model differ in names and shapes; [] if they fit.

    Args:
        model: what the weights are for.
        weights: tensors by name.
        skip: patterns of names that may differ, such as `head.*`.
    """
    own = model.state_dict()
    missing = [name for name in own if name not in weights]
    unknown = [name for name in weights if name not in own]
    other = [
        f"{name} ({_shape(weights[name])}, the model's {_shape(own[name])})"
        for name in own
        if name in weights
        and _shape(own[name]) != _shape(weights[name])
        and not _is_skipped(name, skip)
    ]
    kinds = (("missing", missing), ("unknown", unknown))
    findings = [
        (word, [name for name in names if not _is_skipped(name, skip)])
        for word, names in kinds
    ]
    findings.append(("of another shape", other))
    return [f"{word}: {_name_some(names)}" for word, names in findings if names]


def _is_skipped(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _shape(value: object) -> str:
    return str(tuple(value.shape)) if isinstance(value, Tensor) else repr(value)


def _name_some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"
