"""A character-level transformer on the sources of Python's own standard library.

    python -m clusterddp.submit jobs/charlm.yaml --launcher pytorch

Real text that every machine with Python has; nothing is downloaded. Whole files are
held out, so no passage of the evaluation was seen in training. As the job file has it
(489 steps, minutes on two CPU cores) it comes to 2.86 bits per held-out character;
guessing by frequency costs 4.53 bits, by the character before 3.45.
"""

import math
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

import clusterddp

_HELD_OUT = 10  # every tenth file is for the evaluation
_CHARACTERS = [*map(chr, range(32, 127)), "\n"]
_OTHER = len(_CHARACTERS)  # stands for every character that is not ASCII


def build(params: Mapping[str, Any]) -> clusterddp.Experiment:
    """Give the experiment.

    `params` are `context` (characters), `width`, `layers`, `lr`, `steps` (of the
    learning rate's schedule) and `train_chars`, `eval_chars` (how much text).
    """
    context = int(params["context"])
    train, held_out = load(int(params["train_chars"]), int(params["eval_chars"]))
    return clusterddp.Experiment(
        model=Transformer(context, int(params["width"]), int(params["layers"])),
        train_data=Windows(train, context),
        eval_data=Windows(held_out, context),
        loss=loss,
        evaluate=evaluate,
        weight=count_characters,
        optimizer=lambda parameters: torch.optim.AdamW(
            parameters, lr=float(params["lr"]), weight_decay=0.1
        ),
        scheduler=lambda optimizer: torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: rate(step, int(params["steps"]))
        ),
    )


class Windows(Dataset[Tensor]):
    """Text cut into windows that do not overlap; the last one may be shorter.

    A window has one character more than the context: the last one is only predicted.
    """

    def __init__(self, text: Tensor, context: int) -> None:
        self._text, self._context = text, context

    def __len__(self) -> int:
        return (len(self._text) - 1) // self._context

    def __getitem__(self, index: int) -> Tensor:
        start = index * self._context
        return self._text[start : start + self._context + 1]


class Transformer(nn.Module):
    """A causal transformer: (n, t) characters -> (n, t, characters) scores."""

    def __init__(self, context: int, width: int, layers: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(_OTHER + 1, width)
        self.places = nn.Embedding(context, width)
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.1, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.scores = nn.Linear(width, _OTHER + 1)
        self.register_buffer(
            "mask", nn.Transformer.generate_square_subsequent_mask(context)
        )

    def forward(self, text: Tensor) -> Tensor:
        """Give the scores of the character after each one."""
        length = text.shape[1]
        places = torch.arange(length, device=text.device)
        hidden = self.characters(text) + self.places(places)
        mask = self.get_buffer("mask")[:length, :length]
        scores: Tensor = self.scores(self.layers(hidden, mask=mask, is_causal=True))
        return scores


def loss(model: nn.Module, batch: Tensor) -> Tensor:
    """Give the mean cross entropy per character, in nats."""
    scores = model(batch[:, :-1])
    return functional.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten())


def evaluate(model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
    """Give nats and bits per character, and how often the best guess is right."""
    scores, truth = model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten()
    nats = functional.cross_entropy(scores, truth)
    return {
        "loss": nats,
        "bits_per_char": nats / math.log(2),
        "accuracy": (scores.argmax(1) == truth).double().mean(),
    }


def count_characters(batch: Tensor) -> int:
    """Give over how many characters a batch's loss is a mean."""
    return batch[:, 1:].numel()


def rate(step: int, steps: int) -> float:
    """Give the share of the learning rate: up for a tenth of the steps, then a cosine.

    After `steps` it stays at a tenth.
    """
    warm = max(1, steps // 10)
    if step < warm:
        return (step + 1) / warm
    done = min(1.0, (step - warm) / max(1, steps - warm))
    return 0.1 + 0.45 * (1 + math.cos(math.pi * done))


def load(train_chars: int, eval_chars: int) -> tuple[Tensor, Tensor]:
    """Give the text for training and the one held out, the same ones every time."""
    root = Path(sysconfig.get_path("stdlib"))
    files = sorted(root.glob("*.py")) + sorted(root.glob("[a-z]*/*.py"))
    ours = [path for path in files if "packages" not in path.parent.name]
    held_out = ours[::_HELD_OUT]
    kept = [path for index, path in enumerate(ours) if index % _HELD_OUT]
    return read(kept, train_chars), read(held_out, eval_chars)


def read(files: list[Path], most: int) -> Tensor:
    """Give the first characters of some files, as numbers."""
    numbers = {character: number for number, character in enumerate(_CHARACTERS)}
    text = ""
    for path in files:
        text += path.read_text(encoding="utf-8", errors="replace")
        if len(text) >= most:
            break
    return torch.tensor([numbers.get(character, _OTHER) for character in text[:most]])
