"""A reader's tries, and the clients it has, with a backend that does as it is told."""

from __future__ import annotations

import pytest

from minato.storage import CredentialsMissing, RetryPolicy, StorageError, Throttled, Truncated
from minato.storage import clients as clients_module
from minato.storage.backend import Fetched, Span
from minato.storage.clients import client_for
from minato.storage.location import Location
from minato.storage.reading import Reader

BODY = b"the body"


class Told:
    """A backend whose first requests fail, or are cut short."""

    def __init__(self, answers: list[StorageError | int]) -> None:
        self.answers = answers
        self.requests = 0

    def get(self, key: str, span: Span | None = None) -> Fetched:
        del key, span
        self.requests += 1
        answer = self.answers.pop(0) if self.answers else len(BODY)
        if isinstance(answer, StorageError):
            raise answer
        return Fetched(BODY[:answer], len(BODY), len(BODY), "")


@pytest.fixture
def location(monkeypatch: pytest.MonkeyPatch) -> Location:
    monkeypatch.setattr(clients_module, "_clients", clients_module._Clients())
    return Location("bucket", "obstore")


def reader_of(location: Location, backend: Told, monkeypatch: pytest.MonkeyPatch, retries: int = 3) -> Reader:
    monkeypatch.setattr(clients_module, "_make", lambda _: backend)
    return Reader(location, RetryPolicy(retries, backoff_s=0.0))


def test_a_read_goes_on_after_failures_of_the_first_and_of_later_tries(
    location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = Told([Throttled("busy"), 3, Throttled("busy")])
    assert reader_of(location, backend, monkeypatch).read("key") == BODY
    assert backend.requests == 4


def test_the_first_try_counts(location: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Told([2] * 10)
    with pytest.raises(Truncated) as raised:
        reader_of(location, backend, monkeypatch).read("key")
    assert backend.requests == 4
    assert "4 tries" in str(raised.value.__notes__)
    assert raised.value.__context__ is None, "tries before are not told as causes"


def test_what_may_not_pass_is_tried_once(location: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Told([StorageError("odd")])
    with pytest.raises(StorageError, match="odd"):
        reader_of(location, backend, monkeypatch).read("key")
    assert backend.requests == 1


def test_a_client_without_use_is_made_anew_and_others_are_kept(
    location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Location("other", "obstore")
    reader = reader_of(location, Told([CredentialsMissing("none")]), monkeypatch)
    kept = client_for(other)
    first = client_for(location)
    assert client_for(Location("bucket", "obstore")) is first, "the same place by another name"
    with pytest.raises(CredentialsMissing):
        reader.read("key")
    assert client_for(location) is not first
    assert client_for(other) is kept
    assert reader.read("key") == BODY
