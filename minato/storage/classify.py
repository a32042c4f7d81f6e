"""Tells failures apart: what a server or a client library said becomes one of the errors of `errors.py`, with a remedy.

Pure: statuses, codes and texts in, exceptions out. The three backends differ in what they hand in, not in what comes
out.
"""

from __future__ import annotations

import re

from . import errors
from .location import Location

_BAD_CREDENTIALS = {
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "InvalidToken",
    "ExpiredToken",
    "ExpiredTokenException",
}
_THROTTLED = {
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "TooManyRequests",
    "RequestLimitExceeded",
    "ServiceUnavailable",
}
_OTHER_REGION = {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
_MOST_TEXT = 300  # characters of a library's own words

_CREDENTIALS_REMEDY = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a profile= of ~/.aws/credentials, or say anonymous=True "
    "if the bucket is public"
)


def by_status(location: Location, key: str | None, status: int, code: str, text: str = "") -> errors.StorageError:
    """The error for an answer of the server that is not a success; `code` is S3's own word for it, if it gave one."""
    said = f"{status} {code}".strip() + (f": {_short(text)}" if text else "")
    kind, remedy = _judge_status(location, status, code, text)
    return make(kind, location, key, said, remedy)


def _judge_status(location: Location, status: int, code: str, text: str) -> tuple[type[errors.StorageError], str]:
    if code == "NoSuchBucket":
        return errors.BucketMissing, "check the bucket's name, and endpoint= if it is not Amazon's"
    if code in _OTHER_REGION or status in (301, 307):
        named = [name for name in re.findall(r"[a-z]{2}(?:-[a-z]+)+-\d", text) if name != location.signing_region]
        other = f"region={named[-1]!r}" if named else "region= (the bucket's own)"
        return errors.WrongRegion, f"requests were signed for {location.signing_region}: set {other}, or endpoint="
    if status == 404 or code == "NoSuchKey":
        return errors.ObjectMissing, "check the key; if it was listed, the object is gone since: make the index anew"
    if code in _BAD_CREDENTIALS or status == 401:
        return errors.CredentialsMissing, _CREDENTIALS_REMEDY
    if code in _THROTTLED or status in (408, 429) or status >= 500:
        return errors.Throttled, "lower num_workers or num_fetch_workers, or raise retries= and budget_s="
    if status == 403:
        who = "anonymous requests" if location.anonymous else "these credentials"
        return errors.AccessDenied, f"allow {who} to s3:GetObject (and s3:ListBucket to list), or use others"
    return errors.StorageError, "check endpoint=, region= and the key"


def credentials_missing(location: Location, key: str | None, text: str) -> errors.StorageError:
    """No credentials were found before any request was made."""
    return make(errors.CredentialsMissing, location, key, _short(text), _CREDENTIALS_REMEDY)


def unreachable(location: Location, key: str | None, text: str) -> errors.StorageError:
    """No connection was made."""
    if re.search(r"certificate|\bSSL|\bTLS|handshake", text, re.IGNORECASE):
        return make(
            errors.EndpointUnreachable, location, key, _short(text),
            "check that endpoint= has the right scheme (http or https) and that its certificate is one this machine "
            "trusts",
        )  # fmt: skip
    return make(
        errors.EndpointUnreachable, location, key, _short(text),
        "check that the server runs and that endpoint= has its address",
    )  # fmt: skip


def lost(location: Location, key: str | None, text: str) -> errors.StorageError:
    """The connection broke, or took too long, while the request was under way."""
    remedy = "the network or the server is unsteady: raise retries=, budget_s= or timeout_s="
    return make(errors.ConnectionLost, location, key, _short(text), remedy)


def truncated(
    location: Location, key: str | None, found: int | None, wanted: int | None, text: str = ""
) -> errors.StorageError:
    """A body shorter than announced."""
    said = f"{found} of {wanted} bytes came" if wanted is not None and found is not None else _short(text)
    remedy = "a proxy or the server cuts answers short: raise retries=, or look into it"
    return make(errors.Truncated, location, key, said, remedy)


def refusal_cut(location: Location, key: str | None, text: str) -> errors.StorageError:
    """An answer that is an error, and broke off before it had said which. Servers do so where an object that they have
    listed, or remember, is not there when they come to read it."""
    remedy = "the object is likely gone or changed behind the server: list anew; else look into the server's log"
    return make(errors.RefusalCut, location, key, _short(text), remedy)


def checksum(location: Location, key: str | None, text: str) -> errors.StorageError:
    """A body that is not what its checksum says."""
    remedy = "bytes were changed on the way or in storage: raise retries=, or look at the object"
    return make(errors.ChecksumMismatch, location, key, _short(text), remedy)


def make(
    kind: type[errors.StorageError], location: Location, key: str | None, said: str, remedy: str
) -> errors.StorageError:
    """The error, its text put together: what failed, where, what was said, what to do."""
    what = {
        errors.ObjectMissing: "no such object",
        errors.BucketMissing: "no such bucket",
        errors.AccessDenied: "access denied",
        errors.CredentialsMissing: "no valid credentials",
        errors.WrongRegion: "wrong region",
        errors.EndpointUnreachable: "no connection",
        errors.Throttled: "server busy",
        errors.ConnectionLost: "connection lost",
        errors.Truncated: "answer cut short",
        errors.RefusalCut: "refused, and the reason cut short",
        errors.ChecksumMismatch: "checksum does not match",
    }.get(kind, "request failed")
    return kind(f"{what}: {location.describe(key)} ({said}). To mend: {remedy}.", location.bucket, key, remedy)


def _short(text: str) -> str:
    """The library's own words, in one line that is not too long."""
    words = " ".join(re.sub(r"<[^>]*>", " ", text.partition("Debug source")[0]).split())
    return words if len(words) <= _MOST_TEXT else words[: _MOST_TEXT - 1] + "…"
