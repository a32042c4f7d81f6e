"""`minato.S3Dataset`: the objects under a prefix as a map-style dataset."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import torch
from torch.utils.data import Dataset

from .cache import ByteCache, Bytes
from .choosing import parse_cache
from .file import S3File
from .hedging import HedgePolicy, parse_hedge
from .index import class_names, class_of, list_objects, load_index
from .location import make_location, split_url
from .reading import Reader
from .retrying import RetryPolicy
from .verify import VERIFY, Verify

Decode = Callable[[Any], Any]
"""Of bytes; that for tensors is given an array of its own, where that spares a copy."""
Target = Callable[[str], Any]


class S3Dataset(Dataset[Any]):
    """The objects under `s3://bucket/prefix`, or those of an index file made by `minato index`; sample k is the k-th
    key in the order of keys.

    A sample is the object's bytes; `decode` (a function of the bytes, or "bytes", "tensor", "image") and then
    `transform` make of them what is wanted. With `target`, a sample is a pair: `target="folder"` gives the number of
    the folder right below the prefix, as in `classes`; a function is called with the key.

    Args:
        source: address, or path of an index file.
        suffix: keep only keys that end so; a text or several.
        backend: "obstore", "boto3", "aioboto3" or "direct"; None: the first of these whose package is installed, and
            "direct" in place of obstore if the endpoint's URL begins with http: it is obstore but for whole objects
            over plain HTTP, which it reads in less CPU time.
        endpoint: URL of a server that is not Amazon's.
        region: of the bucket; None: where boto3 looks for it.
        profile: of ~/.aws/config; credentials are looked for where boto3 does.
        anonymous: send no credentials.
        retries: further tries of a request, see `RetryPolicy`.
        backoff_s: first pause between two tries.
        budget_s: time after which no try begins.
        timeout_s: for one try of one request.
        verify: "checksum" compares each body with the object's checksum (0.2 ms per 100 kB), "length" its length only.
        hedge: a second request for slow reads: True, "p95" or a `HedgePolicy`; None: never.
        cache: bytes kept after the first read: "2GB" (memory), a path, or a cache object; None: none.
        batch_concurrency: for loaders that fetch one batch at a time, such as torch's: how many objects
            `__getitems__` reads at once. 0: there is no `__getitems__`. minato's loader does better by its own
            `fetcher="asyncio"`.

    Works in any loader, started by fork, forkserver or spawn. Clients are made on first use in each process.
    """

    def __init__(
        self,
        source: str | os.PathLike[str],
        transform: Callable[[Any], Any] | None = None,
        target: Target | Literal["folder"] | None = None,
        decode: Decode | Literal["bytes", "tensor", "image"] = "bytes",
        *,
        suffix: str | Sequence[str] = (),
        backend: str | None = None,
        endpoint: str | None = None,
        region: str | None = None,
        profile: str | None = None,
        anonymous: bool = False,
        retries: int = 8,
        backoff_s: float = 0.1,
        budget_s: float = 60.0,
        timeout_s: float | None = None,
        verify: Verify = "checksum",
        hedge: str | bool | HedgePolicy | None = None,
        cache: str | int | os.PathLike[str] | ByteCache | None = None,
        batch_concurrency: int = 0,
    ) -> None:
        if verify not in VERIFY:
            raise ValueError(f"verify must be one of {', '.join(VERIFY)}, found {verify!r}")
        if batch_concurrency < 0:
            raise ValueError(f"batch_concurrency must be 0 or more, found {batch_concurrency}")
        self.decode = _decoder(decode)
        self.transform = transform
        self.batch_concurrency = batch_concurrency
        policy = RetryPolicy(retries, backoff_s, budget_s=budget_s)
        suffixes = (suffix,) if isinstance(suffix, str) else tuple(suffix)
        is_address = isinstance(source, str) and source.startswith("s3://")
        loaded, classes = (None, None) if is_address else load_index(source)
        bucket, prefix = split_url(str(source)) if loaded is None else (loaded.bucket, loaded.prefix)
        location = make_location(bucket, backend, endpoint, region, profile, anonymous, timeout_s)
        self.reader = Reader(location, policy, verify, parse_hedge(hedge), parse_cache(cache))
        self.index = list_objects(location, prefix, suffixes, retry_policy=policy) if loaded is None else loaded
        if not len(self.index):
            raise ValueError(f"{location.describe(prefix)} has no objects{f' ending in {suffix}' if suffix else ''}")
        self.classes: list[str] | None = None
        self.target = self._targets(target, classes)

    def _targets(self, target: Target | str | None, classes: list[str] | None) -> Target | None:
        if target is None or callable(target):
            return target
        if target != "folder":
            raise ValueError(f'target must be "folder", a function of the key or None, found {target!r}')
        self.classes = classes or class_names(self.index)
        return FolderTarget(self.index.prefix, self.classes)

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, index: int) -> Any:
        number = self._number(index)
        key, reader = self.index.key(number), self.reader
        etag = "" if reader.cache is None else self._etag(number)
        data = reader.read_writable(key, etag) if self.decode is _as_tensor else reader.read(key, etag)
        return self._sample(key, data)

    async def __getitem_async__(self, index: int) -> Any:
        """As `dataset[index]`; the bytes are awaited. `decode` and `transform` run in the event loop's thread."""
        number = self._number(index)
        key = self.index.key(number)
        read = self.reader.read_writable_async if self.decode is _as_tensor else self.reader.read_async
        return self._sample(key, await read(key, self._etag(number)))

    @property
    def __getitems__(self) -> Callable[[list[int]], list[Any]] | None:
        """Several samples, `batch_concurrency` reads at once; None where that is 0: loaders then ask one by one."""
        return self._read_together if self.batch_concurrency else None

    def _read_together(self, indices: list[int]) -> list[Any]:
        with ThreadPoolExecutor(self.batch_concurrency, thread_name_prefix="minato-batch") as threads:
            return list(threads.map(self.__getitem__, indices))

    def key(self, index: int) -> str:
        """The key of a sample."""
        return self.index.key(self._number(index))

    def open(self, index: int, **options: Any) -> S3File:
        """The object as a file that reads only the parts asked for; options as for `S3File`."""
        return S3File(self.key(index), reader=self.reader, **options)

    def _number(self, index: int) -> int:
        count = len(self.index.sizes)
        if not -count <= index < count:
            raise IndexError(f"index {index} is out of range: the dataset has {count} samples")
        return index + count if index < 0 else int(index)

    def _etag(self, number: int) -> str:
        """What tells versions of an object apart in the cache."""
        return "" if self.reader.cache is None else self.index.etag(number)

    def _sample(self, key: str, data: bytes | Bytes) -> Any:
        sample = data if self.decode is None else self.decode(data)
        if self.transform is not None:
            sample = self.transform(sample)
        return sample if self.target is None else (sample, self.target(key))

    def __repr__(self) -> str:
        location = self.reader.location
        return f"S3Dataset({location.describe(self.index.prefix)}, {len(self)} objects, {location.backend})"


class FolderTarget:
    """From a key to the number of its class."""

    def __init__(self, prefix: str, classes: list[str]) -> None:
        self.prefix = prefix
        self.numbers = {name: number for number, name in enumerate(classes)}

    def __call__(self, key: str) -> int:
        name = class_of(key, self.prefix)
        if name not in self.numbers:
            raise ValueError(f"{key} is in folder {name!r}, which is not among the classes of the index")
        return self.numbers[name]


def _decoder(decode: Decode | str) -> Decode | None:
    if callable(decode):
        return decode
    if decode not in _DECODERS:
        raise ValueError(f"decode must be a function of bytes or one of {', '.join(_DECODERS)}, found {decode!r}")
    return _DECODERS[decode]


def _as_tensor(data: Bytes) -> torch.Tensor:
    """The bytes as uint8, over the same memory, which is this sample's own."""
    return torch.from_numpy(data)


def _as_image(data: bytes) -> Any:
    """An RGB image of Pillow."""
    import io

    try:
        from PIL import Image
    except ImportError:
        raise ImportError('decode="image" needs Pillow: pip install pillow') from None

    return Image.open(io.BytesIO(data)).convert("RGB")


_DECODERS: dict[str, Decode | None] = {"bytes": None, "tensor": _as_tensor, "image": _as_image}
