"""Bodies become arrays that may be written to, and live as long as these."""

import gc

import numpy as np
import pytest

from minato.storage.owning import owned


class Body:
    """What a client library returns: lends its memory for reading."""

    def __init__(self, nbytes: int) -> None:
        self.memory = np.arange(nbytes, dtype=np.uint32).astype(np.uint8)

    def view(self) -> memoryview:
        return memoryview(self.memory).toreadonly()


@pytest.mark.parametrize(("nbytes", "is_shared"), [(1000, False), (100_000, True)])
def test_a_large_body_is_passed_on_and_a_small_one_copied(nbytes: int, is_shared: bool) -> None:
    body = Body(nbytes)
    array = owned(body.view())
    assert np.array_equal(array, body.memory)
    assert np.shares_memory(array, body.memory) is is_shared
    array[:] = 7
    assert array.flags.writeable and bool((array == 7).all())


def test_bytes_of_python_are_copied_whatever_their_size() -> None:
    data = bytes(100_000)
    owned(data)[:] = 7
    assert data == bytes(100_000)


def test_the_memory_lives_as_long_as_the_array() -> None:
    array = owned(memoryview(bytes(range(250)) * 1000))
    gc.collect()
    others = [bytes([1]) * 250_000 for _ in range(20)]
    assert array.tobytes() == bytes(range(250)) * 1000 and len(others) == 20
