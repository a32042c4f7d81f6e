"""Signs requests for whole objects as S3 wants it: AWS Signature Version 4, the header form, no body."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import quote

_NO_BODY = hashlib.sha256(b"").hexdigest()
_BLOCK = 64  # bytes, of SHA-256
_INNER = bytes(byte ^ 0x36 for byte in range(256))
_OUTER = bytes(byte ^ 0x5C for byte in range(256))
_UNRESERVED = "/~"  # of a path, besides letters, digits and `_.-`


class Credentials(NamedTuple):
    """What a request is signed with."""

    access_key: str
    secret_key: str
    token: str | None = None


class _Moment(NamedTuple):
    """What all requests of the same second have in common."""

    second: int
    asked: str
    """What is signed of a request, behind its path."""
    text: str
    """What is signed, before the sum of the above."""
    inner: Any
    outer: Any
    """The two sums of an HMAC, as far as they depend on its key: a third of the time of a whole one."""
    headers: str
    """All but the signature itself."""


class Signer:
    """Makes the heads of GET requests for objects of one bucket."""

    def __init__(
        self,
        host: str,
        base: str,
        region: str,
        credentials: Callable[[], Credentials] | None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`base`: the path in front of keys. `credentials`: asked once a second at most; None: nothing is signed."""
        self._host = host
        self._base = base
        self._region = region
        self._credentials = credentials
        self._clock = clock
        self._headers = f" HTTP/1.1\r\nhost: {host}\r\nuser-agent: minato\r\naccept: */*\r\n"
        self._now: _Moment | None = None

    def get(self, key: str) -> bytes:
        """The request for an object."""
        path = self._base + quote(key, safe=_UNRESERVED)
        if self._credentials is None:
            return f"GET {path}{self._headers}\r\n".encode("ascii")
        now, second = self._now, int(self._clock())
        if now is None or now.second != second:  # several threads may do so at once, and find the same
            now = self._now = _make_moment(second, self._host, self._region, self._credentials())
        asked = hashlib.sha256(f"GET\n{path}{now.asked}".encode("ascii")).hexdigest()
        inner, outer = now.inner.copy(), now.outer.copy()
        inner.update(f"{now.text}{asked}".encode("ascii"))
        outer.update(inner.digest())
        return f"GET {path}{self._headers}{now.headers}{outer.hexdigest()}\r\n\r\n".encode("ascii")


def _make_moment(second: int, host: str, region: str, credentials: Credentials) -> _Moment:
    date = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(second))
    key = f"AWS4{credentials.secret_key}".encode()
    for word in (date[:8], region, "s3", "aws4_request"):
        key = hmac.digest(key, word.encode(), "sha256")
    scope = f"{date[:8]}/{region}/s3/aws4_request"
    signed = {"host": host, "x-amz-content-sha256": _NO_BODY, "x-amz-date": date}
    if credentials.token is not None:
        signed["x-amz-security-token"] = credentials.token
    names = ";".join(signed)
    lines = "".join(f"{name}:{value}\n" for name, value in signed.items())
    sent = "".join(f"{name}: {value}\r\n" for name, value in signed.items() if name != "host")
    credential = f"AWS4-HMAC-SHA256 Credential={credentials.access_key}/{scope}, SignedHeaders={names}, Signature="
    return _Moment(
        second,
        f"\n\n{lines}\n{names}\n{_NO_BODY}",
        f"AWS4-HMAC-SHA256\n{date}\n{scope}\n",
        hashlib.sha256(key.ljust(_BLOCK, b"\0").translate(_INNER)),
        hashlib.sha256(key.ljust(_BLOCK, b"\0").translate(_OUTER)),
        f"{sent}authorization: {credential}",
    )
