"""What reading from object storage can raise.

MinatoError
 └── StorageError                what, where (`bucket`, `key`) and what to do (`remedy`)
      ├── ObjectMissing          no such key; a FileNotFoundError too
      ├── BucketMissing          no such bucket; a FileNotFoundError too
      ├── AccessDenied           credentials are known and do not suffice; a PermissionError too
      │    └── CredentialsMissing    none were found, or the server does not know them
      ├── WrongRegion            the bucket is in another region
      ├── MissingExtra           the package of the backend is not installed; an ImportError too
      └── TransientStorageError  tried again, within the limits of the `RetryPolicy`
           ├── EndpointUnreachable   refused, no such host, TLS; a ConnectionError too. Tried again only shortly
           ├── Throttled         the server asks for fewer requests, or fails (429, 5xx)
           ├── ConnectionLost    reset or timed out on the way; a ConnectionError too
           ├── Truncated         fewer bytes than announced
           │    └── RefusalCut   of an answer that was an error: what it says did not come. Tried again only shortly
           └── ChecksumMismatch  other bytes than announced
"""

from __future__ import annotations

from .._errors import MinatoError


class StorageError(MinatoError):
    """Base of all errors of `minato.storage`. May be made from a text alone, as loaders do that rebuild exceptions."""

    def __init__(self, message: str, bucket: str | None = None, key: str | None = None, remedy: str = "") -> None:
        super().__init__(message)
        self.bucket = bucket
        self.key = key
        self.remedy = remedy


class ObjectMissing(StorageError, FileNotFoundError):
    """There is no object of that key."""


class BucketMissing(StorageError, FileNotFoundError):
    """There is no bucket of that name."""


class AccessDenied(StorageError, PermissionError):
    """The credentials in use do not allow this."""


class CredentialsMissing(AccessDenied):
    """No credentials were found, or the server does not know them."""


class WrongRegion(StorageError):
    """The bucket is in another region than requests were signed for."""


class MissingExtra(StorageError, ImportError):
    """The package that a backend needs is not installed."""


class TransientStorageError(StorageError):
    """May be gone at the next try."""


class EndpointUnreachable(TransientStorageError, ConnectionError):
    """No connection could be made."""


class Throttled(TransientStorageError):
    """The server was too busy, or failed by itself."""


class ConnectionLost(TransientStorageError, ConnectionError):
    """A connection broke or took too long while a request was under way."""


class Truncated(TransientStorageError):
    """A body was shorter than its announced length."""


class RefusalCut(Truncated):
    """The server refused, and its answer broke off before it had said why."""


class ChecksumMismatch(TransientStorageError):
    """A body is not what its checksum says."""
