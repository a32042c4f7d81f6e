"""A store on disk that cannot be made."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from minato._pipeline.store import CacheStore


@pytest.mark.parametrize("another_was_quicker", [False, True])
def test_a_disk_without_room_says_so_and_keeps_no_empty_file(
    another_was_quicker: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cache" / "samples.cache"

    def refuse(*_: object) -> None:
        if another_was_quicker:  # it met the same full disk, and removed the file
            path.unlink()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(OSError, match="No space left") as raised:
        CacheStore.on_disk(str(path), 10, 1 << 20)
    assert raised.value.errno == errno.ENOSPC
    assert os.listdir(path.parent) == []
