"""Real neighbours with minato's loader: Lightning, Accelerate, transformers, TensorBoard, torch.profiler."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import minato

SAMPLES = 48


class Points(Dataset[dict[str, Tensor]]):
    """Points, whether they lie above the diagonal, and their index."""

    def __init__(self) -> None:
        self.points = torch.randn(SAMPLES, 2, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        point = self.points[index]
        return {"x": point, "labels": (point[0] > point[1]).long(), "index": torch.tensor(index)}


class Classifier(nn.Module):
    """Two layers; remembers which samples it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
        self.seen: list[int] = []

    def forward(self, x: Tensor, labels: Tensor, index: Tensor) -> dict[str, Tensor]:
        self.seen += index.tolist()
        scores = self.layers(x)
        return {"loss": nn.functional.cross_entropy(scores, labels), "logits": scores}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Trainers warn about much that is not ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class TestLightning:
    def fit(self, loader: Any, tmp_path: Path, **options: Any) -> tuple[Any, Any]:
        import lightning.pytorch as lightning

        class Module(lightning.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.model = Classifier()

            def training_step(self, batch: Any) -> Tensor:
                loss: Tensor = self.model(**batch)["loss"]
                return loss

            def configure_optimizers(self) -> torch.optim.Optimizer:
                return torch.optim.SGD(self.parameters(), lr=0.1)

        module = Module()
        trainer = lightning.Trainer(
            accelerator="cpu",
            enable_progress_bar=False,
            enable_checkpointing=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
            **{"max_epochs": 2, "logger": False, **options},
        )
        trainer.fit(module, loader)
        return trainer, module

    @pytest.mark.parametrize("workers", [0, 2])
    def test_every_epoch_trains_on_every_sample_once(self, workers: int, tmp_path: Path) -> None:
        with minato.DataLoader(Points(), batch_size=8, shuffle=True, num_workers=workers) as loader:
            trainer, module = self.fit(loader, tmp_path)
            assert trainer.train_dataloader is loader
        assert sorted(module.model.seen) == sorted([*range(SAMPLES)] * 2)

    def test_a_loader_that_lightning_rebuilds_stays_minatos(self, tmp_path: Path) -> None:
        """`overfit_batches` gives the loader another sampler, by making a new one from its attributes."""
        with minato.DataLoader(Points(), batch_size=8, shuffle=True, num_workers=2, on_error="skip") as loader:
            trainer, module = self.fit(loader, tmp_path, overfit_batches=2, max_epochs=1)
        rebuilt = trainer.train_dataloader
        assert type(rebuilt) is minato.DataLoader
        assert rebuilt.on_error == "skip"
        assert module.model.seen == [*range(16)]

    def test_statistics_are_logged(self, tmp_path: Path) -> None:
        from lightning.pytorch.loggers import CSVLogger

        from minato.integrations.lightning import LoaderStatsCallback

        logger = CSVLogger(tmp_path)
        with minato.DataLoader(Points(), batch_size=8, num_workers=1) as loader:
            self.fit(loader, tmp_path, max_epochs=1, logger=logger, callbacks=[LoaderStatsCallback(every=2)])
        logger.save()
        text = (Path(logger.log_dir) / "metrics.csv").read_text()
        assert "minato/samples_delivered" in text.splitlines()[0]


class TestAccelerate:
    def test_prepare_under_patch_keeps_minatos_loader(self) -> None:
        """Accelerate makes a loader of the class it finds under torch's name."""
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=True)
        loader = minato.DataLoader(Points(), batch_size=8, shuffle=True, num_workers=2)
        with minato.patch():
            model, prepared = accelerator.prepare(Classifier(), loader)
        assert type(prepared.base_dataloader) is minato.DataLoader
        for batch in prepared:
            accelerator.backward(model(**batch)["loss"])
        assert sorted(model.seen) == [*range(SAMPLES)]
        assert prepared.base_dataloader.stats().samples_delivered == SAMPLES
        prepared.base_dataloader.close()

    def test_prepare_without_patch_trains_on_every_sample_too(self) -> None:
        from accelerate import Accelerator

        prepared = Accelerator(cpu=True).prepare(minato.DataLoader(Points(), batch_size=8, num_workers=1))
        assert [i for batch in prepared for i in batch["index"].tolist()] == [*range(SAMPLES)]


class TestTransformers:
    def test_the_trainer_under_patch_uses_minatos_loader(self, tmp_path: Path) -> None:
        from transformers import Trainer, TrainingArguments

        arguments = TrainingArguments(
            output_dir=str(tmp_path),
            per_device_train_batch_size=8,
            num_train_epochs=2,
            dataloader_num_workers=2,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            save_strategy="no",
        )
        model = Classifier()
        with minato.patch():
            trainer = Trainer(model=model, args=arguments, train_dataset=Points())
            inner = trainer.get_train_dataloader().base_dataloader
            trainer.train()
        assert type(inner) is minato.DataLoader
        assert sorted(model.seen) == sorted([*range(SAMPLES)] * 2)

    def test_a_trainer_that_gives_minatos_loader_uses_it(self, tmp_path: Path) -> None:
        """`get_train_dataloader` is the place that transformers documents for a loader of one's own."""
        from transformers import Trainer, TrainingArguments

        class Ours(Trainer):
            def get_train_dataloader(self) -> Any:
                return minato.DataLoader(self.train_dataset, batch_size=8, shuffle=True, num_workers=1)

        arguments = TrainingArguments(
            output_dir=str(tmp_path), max_steps=6, use_cpu=True, report_to=[], disable_tqdm=True, save_strategy="no"
        )
        model = Classifier()
        Ours(model=model, args=arguments, train_dataset=Points()).train()
        assert sorted(model.seen) == [*range(SAMPLES)]


class TestInstruments:
    def test_the_profiler_sees_every_next(self) -> None:
        from torch.profiler import ProfilerActivity, profile

        loader = minato.DataLoader(Points(), batch_size=8, num_workers=1)
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            batches = sum(1 for _ in loader)
        spans = [span for span in profiler.key_averages() if span.key.startswith("enumerate(DataLoader)")]
        assert sum(span.count for span in spans) == batches + 1  # the last one finds the end

    def test_tensorboard_reads_back_what_was_logged(self, tmp_path: Path) -> None:
        pytest.importorskip("tensorboard")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from torch.utils.tensorboard import SummaryWriter

        from minato.integrations import StatsLogger

        loader = minato.DataLoader(Points(), batch_size=8, num_workers=1)
        with SummaryWriter(str(tmp_path)) as writer:
            log = StatsLogger(loader, writer, every=2)
            for step, _ in enumerate(loader):
                log(step)
        events = EventAccumulator(str(tmp_path)).Reload()
        delivered = events.Scalars("minato/samples_delivered")
        assert [(each.step, each.value) for each in delivered] == [(0, 8.0), (2, 24.0), (4, 40.0)]
