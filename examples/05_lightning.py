"""Lightning trains on minato's loader; a callback logs what the loader does. Needs `pip install lightning`.

python examples/05_lightning.py
"""
# ruff: noqa: T201  (an example prints)

import logging
import warnings

import lightning.pytorch as lightning
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import minato
from minato.integrations.lightning import LoaderStatsCallback


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        points, labels = batch
        return nn.functional.cross_entropy(self.layers(points), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    points = torch.randn(2_000, 2, generator=torch.Generator().manual_seed(0))
    dataset = TensorDataset(points, (points[:, 0] > points[:, 1]).long())
    logger = CSVLogger("logs")
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=logger,
        callbacks=[LoaderStatsCallback(every=10)],
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    with minato.DataLoader(dataset, batch_size=32, shuffle=True, num_workers=2, persistent_workers=True) as loader:
        trainer.fit(Module(), loader)
        print(f"{loader.stats().samples_delivered} samples; what was logged: {logger.log_dir}/metrics.csv")
