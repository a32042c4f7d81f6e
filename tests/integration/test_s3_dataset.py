"""S3Dataset and S3File on a real server, by every backend, in both loaders, with all start methods."""

import asyncio
import base64
import hashlib
import io
import os
import pickle
import random
import signal
import threading
import time
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest
import torch.utils.data

import minato
from minato.storage import ChecksumMismatch, ObjectMissing, RefusalCut, Throttled, Truncated
from minato.storage.reading import hedge_counts
from minato.testing import Faults

from .conftest import BUCKET, Storage

URL = f"s3://{BUCKET}/set/"
# Clients keep connections open for the next read, and obstore its threads.
pytestmark = pytest.mark.leaks_ok("clients stay open for as long as the process lives")


def dataset_of(storage: Storage, **options: Any) -> Any:
    return minato.S3Dataset(URL, endpoint=storage.proxy.url, suffix=".bin", backoff_s=0.005, **options)


def test_samples_are_the_objects(storage: Storage, backend: str) -> None:
    """One by one, awaited all at once, and a batch at once; folders are classes."""
    dataset = dataset_of(storage, backend=backend, target="folder", batch_concurrency=8)
    wanted = [(body, int("dog" in key)) for key, body in storage.objects.items()]
    assert len(dataset) == len(wanted)
    assert dataset.classes == ["cat", "dog"]
    assert [dataset.key(number) for number in range(len(dataset))] == list(storage.objects)
    assert [dataset[number] for number in range(5)] == wanted[:5]
    assert dataset[-1] == wanted[-1]
    assert dataset.__getitems__([7, 3, 3]) == [wanted[7], wanted[3], wanted[3]]

    async def all_at_once() -> list[Any]:
        return await asyncio.gather(*(dataset.__getitem_async__(number) for number in range(len(dataset))))

    assert asyncio.run(all_at_once()) == wanted
    with pytest.raises(IndexError):
        dataset[len(dataset)]


@pytest.mark.parametrize("loader", [minato.DataLoader, torch.utils.data.DataLoader], ids=["minato", "torch"])
def test_forked_workers_read_after_their_parent_did(storage: Storage, backend: str, loader: Any) -> None:
    """A client that has been used before the fork is not used after it: obstore's would wait for ever."""
    dataset = dataset_of(storage, backend=backend)
    assert dataset[0] == storage.bodies[0]
    batches = list(loader(dataset, batch_size=10, num_workers=2, multiprocessing_context="fork"))
    assert [body for batch in batches for body in batch] == storage.bodies
    assert dataset[1] == storage.bodies[1]


def test_forks_of_forks_read(storage: Storage) -> None:
    """Each with a library of its own, although all of their parents have used theirs."""
    dataset = dataset_of(storage, backend="obstore")

    def read_and_fork(depth: int) -> bool:
        pid = os.fork()
        if pid:
            return os.waitpid(pid, 0)[1] == 0
        signal.alarm(20)
        right = dataset[depth] == storage.bodies[depth] and (depth == 3 or read_and_fork(depth + 1))
        os._exit(0 if right else 1)

    assert read_and_fork(0)


def test_tensors_are_of_the_samples_own_memory(storage: Storage, backend: str) -> None:
    """From the server and from a cache; an empty object is an empty tensor."""
    storage.server.put(BUCKET, "few/a.bin", b"abc")
    storage.server.put(BUCKET, "few/b.bin", b"")
    storage.server.put(BUCKET, "few/c.bin", bytes([3]) * 200_000)
    dataset = minato.S3Dataset(
        f"s3://{BUCKET}/few/", decode="tensor", endpoint=storage.proxy.url, cache="1MB", backend=backend
    )
    for _ in range(3):
        for number, values in enumerate([[97, 98, 99], [], [3] * 200_000]):
            for sample in (dataset[number], asyncio.run(dataset.__getitem_async__(number))):
                assert sample.dtype == torch.uint8
                assert sample.tolist() == values
                sample += 1


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_other_start_methods_take_the_dataset(storage: Storage, start_method: str) -> None:
    forkserver._forkserver._stop()  # one that runs has the credentials of its own start
    dataset = dataset_of(storage, cache="4MB")
    loader = minato.DataLoader(
        dataset, batch_size=10, num_workers=2, multiprocessing_context=start_method, persistent_workers=True
    )
    with loader:
        for _ in range(2):
            assert [body for batch in loader for body in batch] == storage.bodies
    assert storage.proxy.counts()["get"] == len(dataset), "the second epoch made requests"


@pytest.mark.parametrize("fetcher", ["threaded", "asyncio"])
def test_workers_killed_in_the_middle_of_reads_lose_no_object(storage: Storage, backend: str, fetcher: str) -> None:
    storage.proxy.set(Faults(latency_s=0.01, bytes_per_s=200_000))  # a body takes 40 ms and more
    loader = minato.DataLoader(
        dataset_of(storage, backend=backend), batch_size=10, num_workers=2, fetcher=fetcher, num_fetch_workers=4
    )
    found: list[bytes] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # that workers died
        for number, batch in enumerate(iterator := iter(loader)):
            found += batch
            if number % 5 == 0:
                os.kill(next(iter(iterator.worker_pids.values())), signal.SIGKILL)
    assert found == storage.bodies
    assert loader.stats().worker_restarts >= 1


def test_every_byte_is_right_although_requests_fail(storage: Storage, backend: str) -> None:
    """Busy servers, resets, cut and changed bodies: each is noticed, and read again."""
    dataset = dataset_of(storage, backend=backend)
    faults = Faults(busy_share=0.05, reset_share=0.05, truncate_share=0.05, corrupt_share=0.05)
    storage.proxy.set(faults)
    assert [dataset[number] for number in range(len(dataset))] == storage.bodies

    async def all_at_once() -> list[Any]:
        return await asyncio.gather(*(dataset.__getitem_async__(number) for number in range(len(dataset))))

    assert asyncio.run(all_at_once()) == storage.bodies
    counts = storage.proxy.counts()
    assert min(counts[fault] for fault in ("busy", "reset", "truncate", "corrupt")) > 0


@pytest.mark.parametrize("backend", ["boto3", "aioboto3"])
def test_checksum_headers_are_compared(storage: Storage, backend: str) -> None:
    """Of an object whose ETag is no MD5, as those of objects put in parts."""
    right = base64.b64encode(zlib.crc32(b"data").to_bytes(4, "big")).decode()
    reader = dataset_of(storage, backend=backend, retries=0).reader
    head = 'HTTP/1.1 200 OK\r\nContent-Length: 4\r\nETag: "00112233445566778899aabbccddeeff-2"\r\nConnection: close'
    storage.proxy.set(Faults(answer=f"{head}\r\nx-amz-checksum-crc32: {right}\r\n\r\ndata"))
    assert reader.read("any") == asyncio.run(reader.read_async("any")) == b"data"
    storage.proxy.set(Faults(answer=f"{head}\r\nx-amz-checksum-crc32: {right}\r\n\r\ndate"))
    with pytest.raises(ChecksumMismatch):
        reader.read("any")
    with pytest.raises(ChecksumMismatch):
        asyncio.run(reader.read_async("any"))


@pytest.mark.parametrize("backend", ["boto3", "aioboto3"])
def test_a_checksum_that_the_library_cannot_compute_does_not_stand_for_the_md5(storage: Storage, backend: str) -> None:
    reader = dataset_of(storage, backend=backend, retries=0).reader
    head = f'HTTP/1.1 200 OK\r\nContent-Length: 4\r\nETag: "{hashlib.md5(b"data").hexdigest()}"\r\nConnection: close'
    storage.proxy.set(Faults(answer=f"{head}\r\nx-amz-checksum-other: AAAAAA==\r\n\r\ndata"))
    assert reader.read("any") == b"data"
    storage.proxy.set(Faults(answer=f"{head}\r\nx-amz-checksum-other: AAAAAA==\r\n\r\ndate"))
    with pytest.raises(ChecksumMismatch):
        reader.read("any")
    with pytest.raises(ChecksumMismatch):
        asyncio.run(reader.read_async("any"))


def test_error_of_a_read_names_its_class(storage: Storage, backend: str) -> None:
    """When tries are used up, the last failure is told as what it was."""
    dataset = dataset_of(storage, backend=backend, retries=1)
    assert dataset[0] == storage.bodies[0]
    for faults, kind in [
        (Faults(busy_share=1), Throttled),
        (Faults(truncate_share=1), Truncated),
        (Faults(reset_share=1), ConnectionError),
        (Faults(corrupt_share=1), ChecksumMismatch),
    ]:
        storage.proxy.set(faults)
        with pytest.raises(kind, match=dataset.key(3)) as caught:
            dataset[3]
        assert caught.value.bucket == BUCKET and caught.value.key == dataset.key(3) and caught.value.remedy
        assert storage.proxy.counts()["get"] >= 2
        with pytest.raises(kind):
            asyncio.run(dataset.__getitem_async__(3))


def test_refusal_that_is_cut_short_is_not_taken_for_a_body_that_is(storage: Storage, backend: str) -> None:
    """Servers answer so where an object that they remember is gone when they come to read it."""
    dataset = dataset_of(storage, backend=backend)
    assert dataset[0] == storage.bodies[0]
    head = "HTTP/1.1 500 Internal Server Error\r\nContent-Type: application/xml\r\nContent-Length: 5000"
    storage.proxy.set(Faults(answer=f"{head}\r\nConnection: close\r\n\r\n<Error><Code>Inter"))
    for read in (lambda: dataset[3], lambda: asyncio.run(dataset.__getitem_async__(3))):
        before = storage.proxy.counts()["get"]
        with pytest.raises(RefusalCut, match="likely gone") as caught:
            read()
        assert caught.value.bucket == BUCKET and caught.value.key == dataset.key(3)
        assert storage.proxy.counts()["get"] - before <= 4, "it was asked for again and again"


@pytest.fixture
def two_cores() -> Iterator[None]:
    """This process and those it starts have two cores."""
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        pytest.skip("needs two cores")
    os.sched_setaffinity(0, sorted(before)[:2])
    yield
    os.sched_setaffinity(0, before)


@pytest.mark.parametrize(("wanted", "expected"), [(None, 1), ("3", 3)])
def test_workers_have_their_share_of_the_cores_for_requests(
    storage: Storage, two_cores: None, monkeypatch: pytest.MonkeyPatch, wanted: str | None, expected: int
) -> None:
    """obstore has threads of its own, one for each core in every process; as many as set, if somebody set it."""
    dataset = dataset_of(storage, backend="obstore", transform=RuntimeThreads())
    if wanted is not None:
        monkeypatch.setenv("TOKIO_WORKER_THREADS", wanted)
    loader = minato.DataLoader(dataset, batch_size=None, num_workers=2, sampler=range(8))
    assert {int(threads) for threads in loader} == {expected}
    assert os.environ.get("TOKIO_WORKER_THREADS") == wanted


class RuntimeThreads:
    """Of a sample: how many threads of this process are obstore's."""

    def __call__(self, _: bytes) -> int:
        own, names = Path("/proc/self/comm").read_text(), thread_names()
        while names.count(own) > threading.active_count():  # a thread that has not got to naming itself yet
            time.sleep(0.01)
            names = thread_names()
        return sum("tokio" in name for name in names)


def thread_names() -> list[str]:
    return [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]


@pytest.mark.parametrize("loader", [minato.DataLoader, torch.utils.data.DataLoader], ids=["minato", "torch"])
def test_missing_object_is_told_by_the_loader(storage: Storage, loader: Any) -> None:
    """Its type survives the way out of a worker, torch's included."""
    storage.server.put(BUCKET, "gone/1.bin", b"here")
    dataset = minato.S3Dataset(f"s3://{BUCKET}/gone/", endpoint=storage.proxy.url)
    (storage.server.root / BUCKET / "gone" / "1.bin").unlink()
    with pytest.raises(ObjectMissing, match=r"gone/1\.bin"):
        list(loader(dataset, batch_size=None, num_workers=1))
    assert storage.proxy.counts()["get"] <= 2, "an object that is not there was asked for again and again"


def test_slow_reads_get_a_second_request_within_the_cap(storage: Storage) -> None:
    """Awaited and blocking; what it gains is measured in benchmarks/storage.py."""
    dataset = dataset_of(storage, hedge=minato.storage.HedgePolicy(cap=0.05))
    storage.proxy.set(Faults(latency_s=0.005, slow_share=0.03, slow_s=1.0, seed=4))

    async def read(count: int) -> list[bytes]:
        free = asyncio.Semaphore(8)

        async def one(number: int) -> bytes:
            async with free:
                return await dataset.__getitem_async__(number % len(dataset))

        return await asyncio.gather(*map(one, range(count)))

    assert asyncio.run(read(2 * len(dataset))) == storage.bodies * 2
    requests, hedges = hedge_counts(dataset.reader)
    assert storage.proxy.counts()["slow"] > 0
    assert 0 < hedges <= 0.05 * requests + 1
    storage.proxy.set(Faults())
    assert dataset[5] == storage.bodies[5], "blocking reads are hedged by threads"


def test_file_reads_parts(storage: Storage, backend: str) -> None:
    """Any mix of seeks and reads gives what a file in memory gives, with a small buffer and without."""
    storage.proxy.set(Faults(partial_status=backend == "obstore", busy_share=0.05, truncate_share=0.05))
    dataset = dataset_of(storage, backend=backend)
    steps = random.Random(3)
    for buffer_bytes in (0, 700):
        remote, local = dataset.open(9, buffer_bytes=buffer_bytes), io.BytesIO(storage.bodies[9])
        for _ in range(20):
            whence = steps.choice([io.SEEK_SET, io.SEEK_CUR, io.SEEK_END])
            offset = -steps.randrange(4_000) if whence == io.SEEK_END else steps.randrange(3_000)
            assert remote.seek(offset, whence) == local.seek(offset, whence)
            length = steps.choice([0, 1, 50, 900, 3_000])
            assert remote.read(length) == local.read(length)
        remote.seek(0)
        assert io.BufferedReader(remote, 512).read() == storage.bodies[9]


def test_file_serves_other_libraries_and_notices_a_new_version(storage: Storage) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("inside.txt", "hello")
    storage.server.put(BUCKET, "archives/a.zip", packed.getvalue())
    with minato.S3File(f"s3://{BUCKET}/archives/a.zip", endpoint=storage.proxy.url, buffer_bytes=0) as file:
        assert zipfile.ZipFile(file).read("inside.txt") == b"hello"
        storage.server.put(BUCKET, "archives/a.zip", packed.getvalue().replace(b"hello", b"other"))
        file.seek(0)
        with pytest.raises(OSError, match="was replaced"):
            file.read(10)


def test_server_that_answers_ranges_with_200_is_read_all_the_same(storage: Storage) -> None:
    """rclone does; obstore refuses such answers."""
    file = dataset_of(storage, backend="obstore").open(2, buffer_bytes=0)
    file.seek(100)
    assert file.read(20) == storage.bodies[2][100:120]


def test_no_request_for_what_is_cached(storage: Storage, tmp_path: Any) -> None:
    """Memory or directory; what does not fit is asked for again, and only that."""
    every = len(storage.objects)
    for cache, fits in [("4MB", every), (tmp_path / "cache", every), (str(8_000 * 40), range(30, 41))]:
        dataset = dataset_of(storage, cache=cache)
        storage.proxy.set(Faults())
        loader = minato.DataLoader(dataset, batch_size=10, num_workers=2, shuffle=True)
        for epoch in range(2):
            got = [body for batch in loader for body in batch]
            assert sorted(got) == sorted(storage.bodies)
            if epoch == 0:
                assert storage.proxy.counts()["get"] == every
        again = storage.proxy.counts()["get"] - every
        assert every - again in (fits if isinstance(fits, range) else (fits,))
    assert dataset_of(storage, cache=tmp_path / "cache")[0] == storage.bodies[0]


def test_dataset_is_plain_data(storage: Storage) -> None:
    """No client, no lock, no connection in it, also after it has been used; so it can be pickled."""
    dataset = dataset_of(storage)
    assert dataset[0] == storage.bodies[0]
    assert len(pickle.dumps(dataset)) < 20_000
    assert pickle.loads(pickle.dumps(dataset))[1] == storage.bodies[1]


def test_index_file_round_trip(storage: Storage, tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """`minato index` writes what S3Dataset lists by itself."""
    from minato.cli import main

    path = os.fspath(tmp_path / "index.json")
    options = ["--suffix", ".bin", "--classes", "--endpoint", storage.proxy.url, "--json"]
    assert main(["index", URL, path, *options]) == 0
    assert f'"objects": {len(storage.objects)}' in capsys.readouterr().out
    storage.proxy.set(Faults())
    dataset = minato.S3Dataset(path, target="folder", endpoint=storage.proxy.url)
    assert storage.proxy.counts()["requests"] == 0, "the index was there to spare listing"
    assert [dataset.key(number) for number in range(len(dataset))] == list(storage.objects)
    assert dataset[4] == dataset_of(storage, target="folder")[4]
    assert main(["index", f"s3://{BUCKET}/nothing/", path, "--endpoint", storage.proxy.url]) == 2
    assert main(["index", "s3://no-such-bucket/", path, "--endpoint", storage.proxy.url]) == 2
    assert "no such bucket" in capsys.readouterr().err
