"""Pipelines with the libraries people use, trained for a few steps: MONAI, albumentations, scipy, tokenizers."""

import warnings
from collections.abc import Iterator

import pytest
import torch

import minato
from benchmarks.pipelines import train
from benchmarks.real_pipelines import PIPELINES, Pipeline


@pytest.fixture(autouse=True)
def _quiet_and_single() -> Iterator[None]:
    """The libraries warn about much that is not ours; small models gain nothing from threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("pipeline", PIPELINES, ids=lambda pipeline: pipeline.name)
def test_a_model_learns_from_every_sample_once_per_epoch(pipeline: Pipeline) -> None:
    """`train` raises if an epoch did not deliver each sample once."""
    dataset = pipeline.make_dataset(4 * pipeline.batch_size)
    trained = train(pipeline, minato.DataLoader, dataset, epochs=4)
    assert trained.losses[-1] < trained.losses[0]
