"""The default backend on a server without TLS: whole objects without obstore, all else with it, the same errors."""

from collections.abc import Iterator

import pytest

from minato.storage import CredentialsMissing, EndpointUnreachable, ObjectMissing, Throttled
from minato.storage.backend import Backend
from minato.storage.clients import client_for
from minato.storage.direct_backend import DirectBackend
from minato.storage.location import make_location
from minato.testing import Faults, S3Server

from .conftest import BUCKET, Storage

pytestmark = pytest.mark.leaks_ok("obstore's threads stay for as long as the process lives")
OLD_FASHIONED = (
    'HTTP/1.0 200 OK\r\nETag: "abc"\r\nLast-Modified: Tue, 14 Nov 2023 22:13:20 GMT\r\nContent-Length: 7\r\n\r\nseven b'
)
ODD_KEYS = ["a folder/ä+b=c&d~e(f)!.jpg", "plus+and space.bin", "100%/%41.bin", "quote'd;@:,$.bin", "empty.bin"]


@pytest.fixture
def backend(storage: Storage) -> Iterator[DirectBackend]:
    made = DirectBackend(make_location(BUCKET, "direct", storage.proxy.url))
    yield made
    made.close()


def test_it_is_the_default_over_plain_http_and_obstore_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    assert make_location(BUCKET).backend == "obstore"
    assert make_location(BUCKET, endpoint="https://here:9000").backend == "obstore"
    assert make_location(BUCKET, endpoint="http://here:9000").backend == "direct"
    assert make_location(BUCKET, "obstore", "http://here:9000").backend == "obstore"
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://here:9000")
    assert make_location(BUCKET).backend == "direct"


def test_objects_come_without_obstore_and_listings_with_it(storage: Storage, backend: DirectBackend) -> None:
    for key, body in list(storage.objects.items())[:3]:
        found = backend.get(key)
        assert bytes(found.data) == body and found.announced == len(body)
        assert found.etag == backend_of_obstore(storage).get(key).etag
    assert storage.proxy.counts()["connections"] <= 2, "one of ours, one of obstore's"
    assert not backend.has_other
    assert backend.head(key).size == len(body)
    assert backend.has_other


def backend_of_obstore(storage: Storage) -> Backend:
    return client_for(make_location(BUCKET, "obstore", storage.proxy.url)).backend


def test_keys_with_any_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    with S3Server() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        for key in ODD_KEYS:
            server.put(BUCKET, key, b"" if key == "empty.bin" else key.encode())
        made = DirectBackend(make_location(BUCKET, "direct", server.url))
        for key in ODD_KEYS:
            assert bytes(made.get(key).data) == (b"" if key == "empty.bin" else key.encode())
        assert not made.has_other
        made.close()


def test_a_server_whose_objects_only_obstore_understands_is_left_to_it(
    storage: Storage, backend: DirectBackend
) -> None:
    key, *others = storage.objects
    backend.get(key)
    with pytest.raises(ObjectMissing):
        backend.get("set/nothing.bin")
    before = storage.proxy.counts()["get"]
    backend.get(key)
    assert storage.proxy.counts()["get"] == before + 1, "an object that is not there says nothing about others"
    storage.proxy.set(Faults(answer=OLD_FASHIONED))
    assert bytes(backend.get(key).data) == b"seven b"
    assert storage.proxy.counts()["get"] == 2
    for other in others[:3]:
        assert bytes(backend.get(other).data) == b"seven b"
    assert storage.proxy.counts()["get"] == 5, "asked twice"


def test_what_is_not_an_object_is_told_as_by_obstore(
    storage: Storage, backend: DirectBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = next(iter(storage.objects))
    with pytest.raises(ObjectMissing):
        backend.get("set/nothing.bin")
    storage.proxy.set(Faults(busy_share=1.0))
    with pytest.raises(Throttled, match="SlowDown"):
        backend.get(key)
    assert storage.proxy.counts()["get"] == 1, "a busy server is not asked twice"
    storage.proxy.set(Faults())
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another-secret")
    stranger = DirectBackend(make_location(BUCKET, "direct", storage.proxy.url))
    with pytest.raises(CredentialsMissing):
        stranger.get(key)
    stranger.close()
    nowhere = DirectBackend(make_location(BUCKET, "direct", "http://127.0.0.1:9"))
    with pytest.raises(EndpointUnreachable, match="refused"):
        nowhere.get(key)
