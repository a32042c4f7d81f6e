"""Is a body what the server announced? Length always; checksums where there is one."""

from __future__ import annotations

import hashlib
import re
from typing import Literal, get_args

from . import classify
from .backend import Fetched
from .clients import Client
from .errors import ChecksumMismatch
from .location import Location

Verify = Literal["length", "checksum"]
VERIFY: tuple[Verify, ...] = get_args(Verify)
_MD5 = re.compile(r"[0-9a-fA-F]{32}")


class EtagCheck:
    """Compares one object's bodies with its ETag.

    The ETag of an object that was put in one piece is its MD5, unless it is encrypted with a key of KMS: then it looks
    like one and is not. So a mismatch is held against the body only if ETags of this bucket have matched before;
    otherwise the object is read again, and two equal bodies speak against the ETag, which is not looked at any more.
    """

    def __init__(self, client: Client, location: Location, key: str) -> None:
        self._client = client
        self._location = location
        self._key = key
        self._last: bytes | None = None

    def check(self, fetched: Fetched) -> None:
        """Raises `ChecksumMismatch` if the body is not to be used."""
        if fetched.checksum_verified or not self._client.etag_trusted or not is_md5(fetched.etag):
            return
        digest = hashlib.md5(fetched.data, usedforsecurity=False).digest()
        if digest.hex() == fetched.etag.lower():
            self._client.etag_matched = True
            return
        if digest == self._last and not self._client.etag_matched:
            self._client.etag_trusted = False
            return
        self._last = digest
        self._raise(digest, fetched.etag)

    def _raise(self, digest: bytes, etag: str) -> None:
        error = classify.checksum(self._location, self._key, f"MD5 is {digest.hex()}, the ETag says {etag}")
        assert isinstance(error, ChecksumMismatch)
        raise error


def is_md5(etag: str) -> bool:
    """Whether an ETag can be the MD5 of its object; that of an object put in parts has a `-`."""
    return _MD5.fullmatch(etag) is not None
