"""Where objects are and how they are reached: plain data that goes to every worker."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass, replace
from typing import Literal, get_args
from urllib.parse import urlsplit

from .errors import MissingExtra

BackendName = Literal["obstore", "boto3", "aioboto3", "direct"]
BACKENDS: tuple[BackendName, ...] = get_args(BackendName)
_PACKAGES: dict[BackendName, str] = {"direct": "obstore"}  # of those that are not named after theirs
_FALLBACK_REGION = "us-east-1"  # what servers that know no regions expect in signatures


@dataclass(frozen=True, slots=True)
class Location:
    """A bucket and the way to it. Holds no secrets: every process finds credentials by itself, where boto3 does."""

    bucket: str
    backend: BackendName
    endpoint: str | None = None
    """URL of a server that is not Amazon's."""
    region: str | None = None
    profile: str | None = None
    """Section of `~/.aws/config` and `~/.aws/credentials`."""
    anonymous: bool = False
    connect_timeout_s: float = 5.0
    request_timeout_s: float = 60.0
    """For one try of one request, body included."""
    connections: int = 128
    """Kept open per process, at most."""

    @property
    def signing_region(self) -> str | None:
        """The region to sign for, as far as it can be told without asking boto3."""
        found = self.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        return found or (_FALLBACK_REGION if self.endpoint else None)

    def describe(self, key: str | None = None) -> str:
        """For error messages."""
        at = f" at {self.endpoint}" if self.endpoint else ""
        return f"s3://{self.bucket}/{key or ''}{at}"


def split_url(url: str) -> tuple[str, str]:
    """Bucket and key (or prefix) of an `s3://` URL."""
    parts = urlsplit(url, allow_fragments=False)
    if parts.scheme != "s3" or not parts.netloc:
        raise ValueError(f"an address like s3://bucket/prefix was needed, found {url!r}")
    key = parts.path.removeprefix("/") + (f"?{parts.query}" if parts.query else "")
    return parts.netloc, key


def make_location(
    bucket: str,
    backend: str | None = None,
    endpoint: str | None = None,
    region: str | None = None,
    profile: str | None = None,
    anonymous: bool = False,
    timeout_s: float | None = None,
) -> Location:
    """Check the options that say how a bucket is reached, and choose the backend."""
    if endpoint is None:
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint is not None and urlsplit(endpoint).scheme not in ("http", "https"):
        raise ValueError(f"endpoint must be a URL like https://host:port, found {endpoint!r}")
    if anonymous and profile is not None:
        raise ValueError(f"anonymous=True sends no credentials, so profile={profile!r} has no use: drop one of them")
    if timeout_s is not None and timeout_s <= 0:
        raise ValueError(f"timeout_s must be positive, found {timeout_s}")
    location = Location(bucket, choose_backend(backend, endpoint), endpoint, region, profile, anonymous)
    return location if timeout_s is None else replace(location, request_timeout_s=timeout_s)


def choose_backend(name: str | None, endpoint: str | None = None) -> BackendName:
    """The named backend, or the first that is installed; in place of obstore "direct", where it has something to do."""
    for candidate in BACKENDS:
        package = _PACKAGES.get(candidate, candidate)
        if name in (candidate, None) and importlib.util.find_spec(package) is not None:
            is_plain = endpoint is not None and urlsplit(endpoint).scheme == "http"
            return "direct" if name is None and candidate == "obstore" and is_plain else candidate
        if name == candidate:
            text = f"backend={name!r} needs the package {package}: pip install 'minato[s3]'"
            raise MissingExtra(text, remedy="install")
    if name is None:
        raise MissingExtra(
            "reading from S3 needs one of obstore, boto3, aioboto3, none is installed: pip install 'minato[s3]'",
            remedy="install",
        )
    raise ValueError(f"backend must be one of {', '.join(BACKENDS)} or None, found {name!r}")
