"""How the suite compares: results to the bit, errors by type and by the heart of their message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.utils.data


def lists(loader):
    """All batches of one epoch, tensors as plain lists."""
    return [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in loader]


def flat(loader):
    """All samples of one epoch in the order they came."""
    return [sample for batch in loader for sample in batch.tolist()]


def outcomes(loader, limit=100):
    """What each next() gave, batch or exception, up to the end of the epoch."""
    iterator, seen = iter(loader), []
    while len(seen) < limit:
        try:
            seen.append(next(iterator))
        except StopIteration:
            return seen
        except Exception as error:
            seen.append(error.with_traceback(None))
    raise AssertionError(f"no end after {limit} batches")


def first_outcome(loader):
    """What the first next() gave, batch or exception; the iterator is gone by then."""
    try:
        return next(iter(loader))
    except Exception as error:
        return error.with_traceback(None)


def told(error):
    """Everything an exception says: message, notes, and the same of its causes."""
    words = [str(error), *getattr(error, "__notes__", [])]
    cause = error.__cause__ or error.__context__
    return "\n".join(words if cause is None else [*words, told(cause)])


def heart(error):
    """The user's own words in an error of torch's loader: in a worker's traceback, what stands on the last line."""
    return str(error).strip().splitlines()[-1].removeprefix(f"{type(error).__name__}: ")


def assert_same_outcomes(got, expected):
    """Equal batches, and errors of equal type with equal words, in the same places."""
    assert len(got) == len(expected), f"{len(got)} outcomes instead of {len(expected)}: {got}"
    for place, (mine, reference) in enumerate(zip(got, expected, strict=True)):
        if isinstance(reference, Exception):
            assert type(mine) is type(reference), f"batch {place}: {mine!r} instead of {reference!r}"
            assert heart(reference) in told(mine), f"batch {place}"
        else:
            assert_same(mine, reference, f"batch {place}")


def assert_as_reference(loader_class, dataset, **arguments):
    """Batch for batch, error for error, what torch's loader gives."""
    got = outcomes(loader_class(dataset, **arguments))
    assert_same_outcomes(got, outcomes(torch.utils.data.DataLoader(dataset, **arguments)))


def assert_same(got, expected, where="batch"):
    """Equal in type, structure, dtype, shape, strides, and every bit."""
    assert type(got) is type(expected), f"{where}: {type(got)} instead of {type(expected)}"
    if isinstance(expected, torch.Tensor):
        _assert_same_tensor(got, expected, where)
    elif isinstance(expected, np.ndarray):
        assert got.dtype == expected.dtype and np.array_equal(got, expected), where
    elif isinstance(expected, Mapping):
        assert list(got) == list(expected), f"{where}: keys {list(got)} instead of {list(expected)}"
        for key in expected:
            assert_same(got[key], expected[key], f"{where}[{key!r}]")
    elif isinstance(expected, Sequence) and not isinstance(expected, (str, bytes)):
        assert len(got) == len(expected), f"{where}: length {len(got)} instead of {len(expected)}"
        for place, (mine, reference) in enumerate(zip(got, expected, strict=True)):
            assert_same(mine, reference, f"{where}[{place}]")
    else:
        assert got == expected, f"{where}: {got!r} instead of {expected!r}"


def _assert_same_tensor(got, expected, where):
    for trait in ("dtype", "shape", "layout", "device", "requires_grad"):
        assert getattr(got, trait) == getattr(expected, trait), f"{where}.{trait}: {got} instead of {expected}"
    assert _strides(got) == _strides(expected), f"{where}: strides {got.stride()} instead of {expected.stride()}"
    assert _bits(got) == _bits(expected), f"{where}: {got} instead of {expected}"


def _strides(tensor):
    """The strides that matter: those of dimensions one can walk along."""
    return (
        [step for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size > 1] if tensor.numel() else []
    )


def _bits(tensor):
    plain = tensor.detach().as_subclass(torch.Tensor).resolve_conj().resolve_neg().contiguous()
    return bytes(plain.reshape(-1).view(torch.uint8).tolist()) if plain.numel() else b""
