"""The training in Lightning, which requeues itself on Slurm (SLURMEnvironment).

A checkpoint each 20 steps as last.ckpt, and at the signal that
`sbatch --signal=SIGUSR1@90` asks for; Lightning then calls `scontrol requeue`.
"""

import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from benchmarks.peers import common

warnings.filterwarnings("ignore")
import lightning  # noqa: E402
from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402
from lightning.pytorch.plugins.environments import SLURMEnvironment  # noqa: E402


class Module(lightning.LightningModule):  # type: ignore[misc, unused-ignore]
    """The model and its diary."""

    def __init__(self, place: Path, pause_s: float) -> None:
        super().__init__()
        self.model = common.make_model()
        self.pause_s = pause_s
        self.diary = common.Diary(place, int(os.environ["SLURM_PROCID"]))

    def training_step(self, batch: tuple[Tensor, Tensor], _index: int) -> Tensor:
        """Give the loss."""
        return common.loss_of(self.model, batch, self.pause_s)

    def on_train_batch_end(self, *_arguments: Any) -> None:  # noqa: ANN401
        """Enter the step."""
        self.diary.finished(self.global_step)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Give the optimizer."""
        return common.make_optimizer(self.model)


def main(place: Path, pause_s: float) -> None:
    """Be one rank."""
    torch.set_num_threads(1)
    keep = ModelCheckpoint(place, every_n_train_steps=20, save_last=True, save_top_k=1)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_steps=10**6,
        callbacks=[keep],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=place,
        plugins=[SLURMEnvironment(requeue_signal=signal.SIGUSR1)],
    )
    loader = DataLoader(common.make_data(), common.BATCH // 2)
    last = place / "last.ckpt"
    module = Module(place, pause_s)
    trainer.fit(module, loader, ckpt_path=last if last.exists() else None)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
