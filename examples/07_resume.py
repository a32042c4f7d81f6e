"""Stop in the middle of an epoch, start again in another process: no sample is lost, none comes twice.

python examples/07_resume.py          trains, and is interrupted on the way
python examples/07_resume.py resume   what the first does then: goes on from checkpoint.pt with other workers
"""
# ruff: noqa: T201  (an example prints)

import subprocess
import sys
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from minato import DataLoader

SAMPLES, EPOCHS = 1_000, 2
CHECKPOINT = Path("checkpoint.pt")


def train(workers: int, stop_after: int | None, seen: list[list[int]]) -> None:
    """`seen`: the samples of each epoch so far, to be counted at the end. A model would be saved beside it."""
    loader: DataLoader[list[Tensor]] = DataLoader(
        TensorDataset(torch.arange(SAMPLES)), batch_size=16, shuffle=True, num_workers=workers
    )
    if CHECKPOINT.exists():
        saved = torch.load(CHECKPOINT)
        loader.load_state_dict(saved["loader"])
        seen[:] = saved["seen"]
    steps = 0
    while len(seen) < EPOCHS or len(seen[-1]) < SAMPLES:
        if not seen or len(seen[-1]) == SAMPLES:
            seen.append([])
        for (numbers,) in loader:  # after load_state_dict: what is left of the epoch
            seen[-1] += numbers.tolist()
            steps += 1
            if steps == stop_after:
                torch.save({"loader": loader.state_dict(), "seen": seen}, CHECKPOINT)
                return


if __name__ == "__main__":
    samples: list[list[int]] = []
    if "resume" in sys.argv:
        train(workers=1, stop_after=None, seen=samples)
        for number, epoch in enumerate(samples):
            print(f"epoch {number + 1}: {len(epoch)} samples, {len(set(epoch))} distinct")
    else:
        CHECKPOINT.unlink(missing_ok=True)
        train(workers=2, stop_after=40, seen=samples)
        print(f"interrupted after {len(samples[-1])} of {SAMPLES} samples of epoch {len(samples)}")
        subprocess.run([sys.executable, __file__, "resume"], check=True)
