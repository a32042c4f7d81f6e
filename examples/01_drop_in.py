"""Train a small classifier on generated data. Against torch's loader, one line differs: the import of DataLoader.

python examples/01_drop_in.py
"""
# ruff: noqa: T201  (an example prints)

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from minato import DataLoader  # instead of: from torch.utils.data import DataLoader

EPOCHS = 3


class Spirals(Dataset[tuple[Tensor, int]]):
    """Points on two spirals, and which of the two; a little noise is added at every access."""

    def __init__(self, length: int) -> None:
        turn = torch.rand(length, generator=torch.Generator().manual_seed(0)) * 6
        self.labels = [i % 2 for i in range(length)]
        angle = turn + torch.pi * torch.tensor(self.labels)
        self.points = torch.stack([turn * angle.cos(), turn * angle.sin()], dim=1)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.points[index] + 0.05 * torch.randn(2), self.labels[index]


def train(loader: DataLoader[tuple[Tensor, int]]) -> None:
    torch.set_num_threads(1)  # a model this small gains nothing from more
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(EPOCHS):
        right = seen = 0
        for points, labels in loader:
            scores = model(points)
            loss = nn.functional.cross_entropy(scores, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right += int((scores.argmax(1) == labels).sum())
            seen += len(labels)
        print(f"epoch {epoch + 1}: {right / seen:.1%} of {seen} samples right")


if __name__ == "__main__":
    dataset = Spirals(4_000)
    with DataLoader(dataset, batch_size=64, shuffle=True, num_workers=2, persistent_workers=True) as loader:
        train(loader)
        print(loader.stats())
