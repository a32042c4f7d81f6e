"""What cannot work says so at once, in one error that names bucket, key and remedy."""

import importlib.util
import time
from functools import partial
from typing import Any

import pytest

import minato
from minato.storage import (
    AccessDenied,
    BucketMissing,
    CredentialsMissing,
    EndpointUnreachable,
    MissingExtra,
    ObjectMissing,
    StorageError,
    WrongRegion,
)
from minato.testing import Faults

from .conftest import BUCKET, Storage

pytestmark = pytest.mark.leaks_ok("clients stay open for as long as the process lives")
URL = f"s3://{BUCKET}/set/"
QUICKLY_S = 20.0  # "not after minutes of retries", on any machine


def error_of(action: Any) -> StorageError:
    began = time.monotonic()
    with pytest.raises(StorageError) as caught:
        action()
    assert time.monotonic() - began < QUICKLY_S
    assert caught.value.remedy in str(caught.value)
    return caught.value


def answer(status: str, code: str, message: str = "", headers: str = "") -> Faults:
    body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n{headers}"
    return Faults(answer=f"{head}Connection: close\r\n\r\n{body}")


def test_wrong_places(storage: Storage, backend: str) -> None:
    url = storage.server.url
    wrong = error_of(lambda: minato.S3Dataset("s3://no-such-bucket/set/", endpoint=url, backend=backend))
    assert isinstance(wrong, BucketMissing) and wrong.bucket == "no-such-bucket" and "no-such-bucket" in str(wrong)
    wrong = error_of(lambda: minato.S3File(f"{URL}nothing", endpoint=url, backend=backend))
    assert isinstance(wrong, ObjectMissing) and wrong.key == "set/nothing" and "set/nothing" in str(wrong)
    wrong = error_of(lambda: minato.S3Dataset(URL, endpoint="http://127.0.0.1:9", backend=backend))
    assert isinstance(wrong, EndpointUnreachable) and "http://127.0.0.1:9" in str(wrong)
    wrong = error_of(lambda: minato.S3Dataset(URL, endpoint=url.replace("http:", "https:"), backend=backend))
    assert isinstance(wrong, EndpointUnreachable) and "certificate" in wrong.remedy
    with pytest.raises(ValueError, match="no objects"):
        minato.S3Dataset(f"s3://{BUCKET}/empty/", endpoint=url, backend=backend)


def test_wrong_credentials(storage: Storage, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    url = storage.server.url
    storage.proxy.set(answer("403 Forbidden", "AccessDenied"))
    wrong = error_of(lambda: minato.S3Dataset(URL, endpoint=storage.proxy.url, backend=backend))
    assert type(wrong) is AccessDenied and isinstance(wrong, PermissionError)
    # The tests of this process share its clients: this location is nobody else's.
    dataset_of = partial(minato.S3Dataset, URL, endpoint=url, backend=backend, timeout_s=31)
    with monkeypatch.context() as environment:
        environment.setenv("AWS_SECRET_ACCESS_KEY", "not-the-right-one")
        assert isinstance(error_of(dataset_of), CredentialsMissing)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            environment.delenv(name)
        wrong = error_of(dataset_of)
        assert isinstance(wrong, CredentialsMissing) and "AWS_ACCESS_KEY_ID" in wrong.remedy
    assert len(dataset_of()) > 0, "credentials that were set since are not looked for"
    wrong = error_of(lambda: minato.S3Dataset(URL, endpoint=url, backend=backend, profile="nobody"))
    assert isinstance(wrong, CredentialsMissing) and "nobody" in str(wrong)


def test_wrong_region(storage: Storage, backend: str) -> None:
    storage.proxy.set(answer("400 Bad Request", "AuthorizationHeaderMalformed", "expecting 'eu-west-1'"))
    wrong = error_of(lambda: minato.S3Dataset(URL, endpoint=storage.proxy.url, backend=backend))
    assert isinstance(wrong, WrongRegion) and "region='eu-west-1'" in wrong.remedy
    region = "x-amz-bucket-region: eu-west-1\r\n"
    storage.proxy.set(answer("301 Moved Permanently", "PermanentRedirect", headers=region))
    wrong = error_of(lambda: minato.S3Dataset(URL, endpoint=storage.proxy.url, backend=backend))
    assert isinstance(wrong, WrongRegion)
    storage.proxy.set(answer("301 Moved Permanently", "PermanentRedirect"))  # which botocore asks about without end
    wrong = error_of(lambda: minato.S3Dataset(URL, endpoint=storage.proxy.url, backend=backend))
    assert isinstance(wrong, WrongRegion)


def test_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    there = importlib.util.find_spec
    gone = {"obstore"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name in gone else there(name, *rest))
    with pytest.raises(MissingExtra, match=r"pip install 'minato\[s3\]'"):
        minato.S3Dataset(URL, backend="obstore")
    gone |= {"boto3", "aioboto3"}
    with pytest.raises(ImportError, match=r"pip install 'minato\[s3\]'"):
        minato.S3Dataset(URL)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"source": "http://bucket/x"}, "s3://"),
        ({"source": "s3:///x"}, "s3://bucket/prefix"),
        ({"backend": "curl"}, "obstore, boto3, aioboto3"),
        ({"endpoint": "127.0.0.1:9"}, "endpoint"),
        ({"anonymous": True, "profile": "me"}, "anonymous"),
        ({"retries": -1}, "retries"),
        ({"budget_s": -1.0}, "budget_s"),
        ({"timeout_s": 0.0}, "timeout_s"),
        ({"verify": "never"}, "verify"),
        ({"hedge": "often"}, "hedge"),
        ({"hedge": "p100"}, "p100"),
        ({"decode": "video"}, "decode"),
        ({"cache": "lots"}, "2GB"),
        ({"cache": -5}, "max_bytes"),
        ({"batch_concurrency": -1}, "batch_concurrency"),
    ],
)
def test_wrong_arguments_are_told_before_any_request(options: dict[str, Any], word: str) -> None:
    """There is no server at all here."""
    with pytest.raises(ValueError, match=word):
        minato.S3Dataset(**{"source": URL, "endpoint": "http://127.0.0.1:9", **options})
