"""What the default backend does by itself: signatures, and when it leaves all to obstore."""

import datetime
from typing import Any

import pytest

from minato.storage.direct_backend import is_plain
from minato.storage.location import BackendName, Location
from minato.storage.signing import Credentials, Signer

SECOND = 1_700_000_000
KEYS = {"AWS_ACCESS_KEY_ID": "access-key", "AWS_SECRET_ACCESS_KEY": "secret-key"}


@pytest.mark.parametrize("token", [None, "a/token+with=signs"])
@pytest.mark.parametrize("key", ["000001.bin", "a folder/ä+b=c&d~e(f)!*'.jpg", "%41/./..//x", "?a=b#c"])
def test_signatures_are_those_of_botocore(key: str, token: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    auth = pytest.importorskip("botocore.auth")
    awsrequest = pytest.importorskip("botocore.awsrequest")
    credentials = pytest.importorskip("botocore.credentials")
    signer = Signer(
        "here:9000", "/bucket/", "eu-west-1", lambda: Credentials("access", "secret", token), lambda: SECOND + 0.5
    )
    head, *lines = signer.get(key).decode().removesuffix("\r\n\r\n").split("\r\n")
    sent = dict(line.split(": ", 1) for line in lines)
    method, path, version = head.split(" ")
    assert (method, version) == ("GET", "HTTP/1.1")
    moment = datetime.datetime.fromtimestamp(SECOND, datetime.timezone.utc)
    for name in ("get_current_datetime", "get_datetime"):
        if hasattr(auth, name):
            monkeypatch.setattr(auth, name, lambda *_, **__: moment.replace(tzinfo=None))
    request = awsrequest.AWSRequest("GET", f"http://here:9000{path}", headers={"host": "here:9000"})
    request.context["timestamp"] = sent["x-amz-date"]
    request.headers["X-Amz-Content-SHA256"] = sent["x-amz-content-sha256"]
    auth.S3SigV4Auth(credentials.Credentials("access", "secret", token), "s3", "eu-west-1").add_auth(request)
    assert sent["authorization"] == request.headers["Authorization"]
    assert sent.get("x-amz-security-token") == token


def test_credentials_are_asked_for_again_every_second_at_most() -> None:
    asked, now = [], [float(SECOND)]

    def credentials() -> Credentials:
        asked.append(now[0])
        return Credentials("access", str(len(asked)))

    signer = Signer("here", "/bucket/", "us-east-1", credentials, lambda: now[0])
    first = signer.get("a")
    now[0] += 0.9
    assert signer.get("a") == first and len(asked) == 1
    now[0] += 0.2
    assert signer.get("a") != first and len(asked) == 2


def test_without_credentials_nothing_is_signed() -> None:
    assert b"authorization" not in Signer("here", "/bucket/", "us-east-1", None).get("a")


def located(endpoint: str | None = "http://here:9000", backend: BackendName = "direct", **options: Any) -> Location:
    return Location("bucket", backend, endpoint, **options)


@pytest.mark.parametrize(
    ("location", "environment", "expected"),
    [
        (located(), KEYS, True),
        (located(), KEYS | {"AWS_SESSION_TOKEN": "token", "AWS_REGION": "eu-west-1", "HOME": "/"}, True),
        (located(anonymous=True), {}, True),
        (located("http://here/prefix"), KEYS, True),
        (located("https://here"), KEYS, False),
        (located(None), KEYS, False),
        (located("http://user:word@here"), KEYS, False),
        (located("http://here?x=1"), KEYS, False),
        (located("http://[::1]:9000"), KEYS, True),
        (located("http://here:port"), KEYS, False),
        (Location("arn:aws:s3:eu-west-1:1:accesspoint/x", "direct", "http://here"), KEYS, False),
        (located(), KEYS | {"HTTP_PROXY": "http://other:8080"}, False),
        (located(), KEYS | {"all_proxy": "socks5://other"}, False),
        (located(), KEYS | {"AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true"}, False),
        (located(), KEYS | {"AWS_WEB_IDENTITY_TOKEN_FILE": "/token"}, False),
    ],
)
def test_obstore_reads_what_is_not_plain(location: Location, environment: dict[str, str], expected: bool) -> None:
    assert is_plain(location, environment) is expected
