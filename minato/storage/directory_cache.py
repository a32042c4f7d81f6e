"""Bytes in a directory: kept between runs, shared by all jobs that name the same directory.

    directory/ledger            bytes in use, one number, changed under an `fcntl` lock
    directory/tmp/…             files being written; the name says by whom and for how many bytes
    directory/3f/3f9a…          one object: its bytes, then 24 bytes of length, checksum and mark

An object is written under another name and renamed when it is whole, so nobody ever opens a partial one; what a power
failure leaves of a renamed file does not match its checksum, and is removed. A file is verified by the first of a job's
processes that reads it, and again whenever it has changed since (known_files.py). Files of writers that died are
removed when the directory is next opened.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import socket
import struct
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from .cache import Bytes, CacheStats, checksum, digest_of, parse_bytes
from .known_files import KnownFiles
from .locks import locked_file

Read = TypeVar("Read", bytes, Bytes)
_TRAILER = struct.Struct("<QQ8s")
_MARK = b"minato\x00\x03"
_LEDGER = struct.Struct("<QQ")  # bytes, objects
_SHARE_OF_DISK = 0.8  # of what is free when the directory is first used, where no limit is given
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FULL_S = 60.0  # so long after the disk was found full a process does not try again
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)  # file systems without hard links


class DirectoryCache:
    """At most `max_bytes` (a number, a text such as "500GB", or None: four fifths of what is free) in a directory."""

    def __init__(self, path: str | os.PathLike[str], max_bytes: int | str | None = None) -> None:
        self.path = Path(path).expanduser().absolute()
        self._root = str(self.path)
        try:
            (self.path / "tmp").mkdir(parents=True, exist_ok=True)
            used_bytes, _ = self._counts()
        except OSError as error:
            raise ValueError(f"cache: a directory to write to was needed, found {self.path} ({error})") from None
        self.max_bytes = (
            int(shutil.disk_usage(self.path).free * _SHARE_OF_DISK) + used_bytes
            if max_bytes is None
            else parse_bytes(max_bytes, "max_bytes")
        )
        self._remove_remains()
        self._known = KnownFiles()
        self._try_from = 0.0

    def get(self, name: str) -> bytes | None:
        """The bytes put under `name`, or None."""
        return self._read(name, _read_exactly)

    def get_writable(self, name: str) -> Bytes | None:
        """As `get`, in memory of the caller's own."""
        return self._read(name, _read_into_new)

    def _read(self, name: str, read: Callable[[int, int], tuple[Read, bytes]]) -> Read | None:
        """The data of the file of `name`, if they are what its trailer says. `read` reads so many bytes, and then the
        trailer."""
        digest = digest_of(name)
        path = self._path_of(digest)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            status = os.fstat(fd)
            data, trailer = read(fd, max(0, status.st_size - _TRAILER.size))
        except OSError:
            return None
        finally:
            os.close(fd)
        if not self._known.knows(digest, status):
            if not _is_whole(data, trailer):
                with suppress(OSError):  # a directory that is read-only now, a full disk: it stays unread
                    self._discard(path)
                return None
            self._known.add(digest, status)
        return data

    def put(self, name: str, data: bytes) -> bool:
        """Keep the bytes, unless there is no room for them or they are there already."""
        digest = digest_of(name)
        path = self._path_of(digest)
        if os.path.exists(path):
            return True
        if time.monotonic() < self._try_from:
            return False
        try:
            return self._keep(digest, path, data)
        except OSError as error:  # costs the entry only
            self._tell(error)
            return False

    def _keep(self, digest: bytes, path: str, data: bytes) -> bool:
        nbytes = len(data) + _TRAILER.size
        temporary = self._reserve(nbytes)
        if temporary is None:
            return False
        try:
            status = _write(temporary, data)
            new = _publish(temporary, path)
        except FileNotFoundError:  # taken for the remains of a dead writer, and accounted for
            return False
        except OSError:
            self._account(-nbytes, 0)
            raise
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
        if new:
            self._known.add_own(digest, status)
        self._account(0 if new else -nbytes, 1 if new else 0)
        return True

    def _tell(self, error: OSError) -> None:
        """A full disk is told once by a process, which then does not try for a while."""
        if error.errno in _FULL:
            if self._try_from == 0.0:
                text = f"nothing is added to the cache {self._root}: {error.strerror}"
                warnings.warn(text, RuntimeWarning, stacklevel=4)
            self._try_from = time.monotonic() + _FULL_S
        else:
            warnings.warn(f"an object could not be kept in the cache: {error}", RuntimeWarning, stacklevel=4)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_known", "_try_from")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._known = KnownFiles()  # what was not forked verifies for itself
        self._try_from = 0.0

    def stats(self) -> CacheStats:
        """How full it is, over all jobs."""
        used, entries = self._counts()
        is_full = time.monotonic() < self._try_from
        note = "the disk is full: nothing is added for now" if is_full else ""
        return CacheStats(entries, used, self.max_bytes, note)

    def _counts(self) -> tuple[int, int]:
        """Bytes and objects."""
        with self._ledger() as ledger:
            return _read_ledger(ledger)

    def _path_of(self, digest: bytes) -> str:
        text = digest.hex()
        return f"{self._root}/{text[:2]}/{text}"

    def _reserve(self, nbytes: int) -> str | None:
        """Count the bytes and make the file for them; None if they would be too many."""
        with self._ledger() as ledger:
            used, entries = _read_ledger(ledger)
            if used + nbytes > self.max_bytes:
                return None
            temporary = f"{self._root}/tmp/{socket.gethostname()}.{os.getpid()}.{nbytes}.{secrets.token_hex(6)}"
            os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
            try:
                os.pwrite(ledger, _LEDGER.pack(used + nbytes, entries), 0)
            except OSError:
                os.unlink(temporary)
                raise
        return temporary

    def _discard(self, path: str) -> None:
        """Remove a file that is not what it should be."""
        try:
            nbytes = os.stat(path).st_size
            os.unlink(path)
        except FileNotFoundError:
            return  # somebody else did
        self._account(-nbytes, -1)

    def _account(self, nbytes: int, entries: int) -> None:
        with self._ledger() as ledger:
            used, count = _read_ledger(ledger)
            os.pwrite(ledger, _LEDGER.pack(max(0, used + nbytes), max(0, count + entries)), 0)

    def _remove_remains(self) -> None:
        """Remove files of writers that died, and give back their bytes."""
        for entry in os.scandir(self.path / "tmp"):
            host, *numbers = entry.name.rsplit(".", 3)
            # Files of others (`.nfs000…` of network file systems) are none of our business.
            if host != socket.gethostname() or len(numbers) != 3 or not (numbers[0] + numbers[1]).isdecimal():
                continue
            pid, nbytes = numbers[:2]
            if os.path.exists(f"/proc/{pid}"):
                continue
            with suppress(FileNotFoundError):
                os.unlink(entry.path)
                self._account(-int(nbytes), 0)

    @contextmanager
    def _ledger(self) -> Iterator[int]:
        """The ledger, open and locked; made from the files that are there, if it is not."""
        with locked_file(f"{self._root}/ledger") as fd:
            if os.fstat(fd).st_size < _LEDGER.size:
                sizes = [file.stat().st_size for file in self.path.glob("[0-9a-f][0-9a-f]/*")]
                os.pwrite(fd, _LEDGER.pack(sum(sizes), len(sizes)), 0)
            yield fd


def _write(path: str, data: bytes) -> os.stat_result:
    """Write the file and give it a time of change as exact as clocks are: another write will not have the same."""
    with open(path, "r+b", buffering=0) as file:
        for part in (memoryview(data), memoryview(_TRAILER.pack(len(data), checksum(data), _MARK))):
            while part:
                part = part[file.write(part) or 0 :]
        now_ns = time.time_ns()
        os.utime(file.fileno(), ns=(now_ns, now_ns))
        return os.fstat(file.fileno())


def _publish(temporary: str, path: str) -> bool:
    """Give a whole file its name; False if there is one of that name already."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    try:
        # Not `rename`: of two writers of one object the second must know, or it is counted twice.
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        os.rename(temporary, path)
    return True


def _read_ledger(fd: int) -> tuple[int, int]:
    used, entries = _LEDGER.unpack(os.pread(fd, _LEDGER.size, 0))
    return used, entries


def _read_exactly(fd: int, length: int) -> tuple[bytes, bytes]:
    """`length` bytes, in one call where the system allows it, and a trailer. Raises if the file has become shorter."""
    data = os.read(fd, length)
    while len(data) < length:
        more = os.read(fd, length - len(data))  # one call gives two gigabytes at most
        if not more:
            raise OSError(errno.EIO, "the file has become shorter")
        data += more
    return data, os.read(fd, _TRAILER.size)


def _read_into_new(fd: int, length: int) -> tuple[Bytes, bytes]:
    """The same in memory that may be written to."""
    data, trailer = np.empty(length, np.uint8), bytearray(_TRAILER.size)
    if os.readv(fd, [data.data, trailer]) == length + _TRAILER.size:
        return data, bytes(trailer)
    os.lseek(fd, 0, os.SEEK_SET)
    whole, end = _read_exactly(fd, length)
    return np.frombuffer(whole, np.uint8).copy(), end


def _is_whole(data: bytes | Bytes, trailer: bytes) -> bool:
    found = checksum(data if isinstance(data, bytes) else data.data)
    return len(trailer) == _TRAILER.size and _TRAILER.unpack(trailer) == (len(data), found, _MARK)
