"""A real S3 server and a bad network in front of it, once for the whole run of these tests."""

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from minato.testing import Faults, FaultyProxy, S3Server

BUCKET = "photos"
COUNT = 120


@dataclass(frozen=True)
class Storage:
    """Objects in two folders, what they hold, and a proxy on the way to them."""

    server: S3Server
    proxy: FaultyProxy
    objects: dict[str, bytes]
    """By key, in the order of keys."""

    @property
    def bodies(self) -> list[bytes]:
        return list(self.objects.values())


@pytest.fixture(scope="session")
def shared_storage() -> Iterator[Storage]:
    random_bytes = random.Random(1)
    keys = sorted(f"set/{'cat' if number % 3 else 'dog'}/{number:03}.bin" for number in range(COUNT))
    objects = {key: random_bytes.randbytes(8_000 + 10 * number) for number, key in enumerate(keys)}
    with S3Server(dir_cache_s=0) as server:
        for key, data in objects.items():
            server.put(BUCKET, key, data)
        server.put(BUCKET, "set/notes.txt", b"not a picture")
        with FaultyProxy(server.port) as proxy:
            yield Storage(server, proxy, objects)


@pytest.fixture
def storage(shared_storage: Storage, monkeypatch: pytest.MonkeyPatch) -> Storage:
    """No faults yet, counts at 0, and credentials in the environment."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in shared_storage.server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    shared_storage.proxy.set(Faults())
    return shared_storage


@pytest.fixture(params=["direct", "obstore", "boto3", "aioboto3"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)
