"""A Lightning callback that logs what the training loader does. Needs `lightning` (or `pytorch_lightning`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._dataloader import DataLoader
from .scalars import scalars

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer
else:
    try:
        from lightning.pytorch import Callback, LightningModule, Trainer
    except ModuleNotFoundError:
        from pytorch_lightning import Callback, LightningModule, Trainer


class LoaderStatsCallback(Callback):
    """Logs the statistics of every minato loader of the training run through the trainer's loggers.

    `every`: training steps between two records (default 50). Several loaders are numbered.
    """

    def __init__(self, every: int = 50) -> None:
        super().__init__()
        if every < 1:
            raise ValueError(f"every: needed a number of steps of at least 1, found {every}")
        self._every = every

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Called by Lightning."""
        del pl_module, outputs, batch
        if batch_idx % self._every:
            return
        loaders = [each for each in _flat(trainer.train_dataloader) if isinstance(each, DataLoader)]
        for number, loader in enumerate(loaders):
            prefix = "minato/" if len(loaders) == 1 else f"minato/{number}/"
            values = {prefix + name: value for name, value in scalars(loader.stats()).items()}
            for logger in trainer.loggers:
                logger.log_metrics(values, step=trainer.global_step)


def _flat(loaders: Any) -> list[Any]:
    """The loaders in what Lightning calls the train loader: one, or a structure of several."""
    if isinstance(loaders, dict):
        return [each for value in loaders.values() for each in _flat(value)]
    if isinstance(loaders, list | tuple):
        return [each for value in loaders for each in _flat(value)]
    return [loaders]
