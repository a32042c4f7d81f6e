"""Accelerate and the Trainer of transformers make loaders themselves: under minato.patch() these are minato's.

Needs `pip install accelerate transformers`. python examples/06_accelerate_and_transformers.py
"""
# ruff: noqa: T201  (an example prints)

import warnings

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

import minato


class Points(Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        point = torch.tensor([index % 16 / 16, index // 16 / 16])
        return {"x": point, "labels": (point[0] > point[1]).long()}


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": nn.functional.cross_entropy(self.layers(x), labels)}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with minato.patch():
        accelerator = Accelerator(cpu=True)
        loader = minato.DataLoader(Points(), batch_size=16, shuffle=True, num_workers=2)
        model, prepared = accelerator.prepare(Classifier(), loader)
        for batch in prepared:
            accelerator.backward(model(**batch)["loss"])
        print(f"Accelerate: {prepared.base_dataloader.stats().samples_delivered} samples from minato's loader")

        arguments = TrainingArguments(
            output_dir="out", max_steps=8, dataloader_num_workers=2, use_cpu=True, report_to=[], disable_tqdm=True
        )
        arguments.save_strategy = "no"
        trainer = Trainer(model=Classifier(), args=arguments, train_dataset=Points())
        trainer.train()
        kind = type(trainer.get_train_dataloader().base_dataloader)
        print(f"transformers: {trainer.state.global_step} steps with {kind.__module__}.{kind.__name__}")
