"""Handwritten digits: a small CNN on scikit-learn's 1,797 images of 8 x 8.

    python -m clusterddp.submit jobs/exp.yaml --launcher pytorch

Takes seconds on two CPU cores and ends with more than 95 % of the held-out images
right. Needs no download: the images come with scikit-learn
(https://scikit-learn.org/stable/modules/generated/sklearn.datasets.load_digits.html).
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import clusterddp
from clusterddp.errors import UsageError

_HELD_OUT = 5  # every fifth image of each digit is for the evaluation
_MEAN, _SPREAD = 4.88, 6.02  # of all pixels, which go from 0 to 16


def build(params: Mapping[str, Any]) -> clusterddp.Experiment:
    """Give the experiment; `params` are `channels` (int) and `lr` (float)."""
    train, held_out = load()
    return clusterddp.Experiment(
        model=Net(int(params["channels"])),
        train_data=train,
        eval_data=held_out,
        loss=loss,
        evaluate=evaluate,
        optimizer=lambda parameters: torch.optim.SGD(
            parameters, lr=float(params["lr"]), momentum=0.9, nesterov=True
        ),
    )


class Net(nn.Module):
    """Two convolutions and a linear layer: (n, 1, 8, 8) images -> (n, 10) scores."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(channels, 2 * channels, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.25),
            nn.Linear(2 * channels * 16, 10),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Give the scores of the ten digits."""
        scores: Tensor = self.layers(images)
        return scores


def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
    """Give the mean cross entropy over a batch of images and digits."""
    images, digits = batch
    return functional.cross_entropy(model(images), digits)


def evaluate(model: nn.Module, batch: list[Tensor]) -> dict[str, Tensor]:
    """Give mean cross entropy and accuracy over a batch."""
    images, digits = batch
    scores = model(images)
    hits = (scores.argmax(1) == digits).double()
    return {
        "loss": functional.cross_entropy(scores, digits),
        "accuracy": hits.mean(),
    }


def load() -> tuple[TensorDataset, TensorDataset]:
    """Give the images for training and those held out, the same ones every time.

    Raises:
        UsageError: scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise UsageError(
            "examples/digits.py: scikit-learn, which brings the images, is not "
            "installed; install the extra: pip install 'clusterddp[examples]'"
        ) from error
    data = load_digits()
    pixels = torch.tensor(data.images, dtype=torch.float32)[:, None]
    images = (pixels - _MEAN) / _SPREAD
    digits = torch.tensor(data.target, dtype=torch.long)
    held_out = _every_fifth(digits)
    return (
        TensorDataset(images[~held_out], digits[~held_out]),
        TensorDataset(images[held_out], digits[held_out]),
    )


def _every_fifth(digits: Tensor) -> Tensor:
    """Mark every fifth image of each digit, so that the parts look alike."""
    marks = torch.zeros(len(digits), dtype=torch.bool)
    for digit in range(10):
        marks[(digits == digit).nonzero()[::_HELD_OUT]] = True
    return marks
