"""Reading from object storage: a dataset, a file, byte caches.

dataset.py            S3Dataset                       file.py     S3File, ranged reads
index.py              listing, index files            cached.py   cached_bytes, for any dataset
reading.py            Reader: cache, tries, second requests, verification, in this order
retrying.py, hedging.py, verify.py, classify.py       decisions, without any request
backend.py            the seam to the client libraries, clients per process
direct_backend.py (connections.py, signing.py), obstore_backend.py, boto3_backend.py, aioboto3_backend.py
memory_cache.py, directory_cache.py, locks.py         shared by all workers
known_files.py        files of a directory that need not be verified again
errors.py             the exception tree
"""

from .cache import ByteCache as ByteCache
from .cache import CacheStats as CacheStats
from .cached import CachedBytes as CachedBytes
from .cached import cached_bytes as cached_bytes
from .dataset import S3Dataset as S3Dataset
from .directory_cache import DirectoryCache as DirectoryCache
from .errors import AccessDenied as AccessDenied
from .errors import BucketMissing as BucketMissing
from .errors import ChecksumMismatch as ChecksumMismatch
from .errors import ConnectionLost as ConnectionLost
from .errors import CredentialsMissing as CredentialsMissing
from .errors import EndpointUnreachable as EndpointUnreachable
from .errors import MissingExtra as MissingExtra
from .errors import ObjectMissing as ObjectMissing
from .errors import RefusalCut as RefusalCut
from .errors import StorageError as StorageError
from .errors import Throttled as Throttled
from .errors import TransientStorageError as TransientStorageError
from .errors import Truncated as Truncated
from .errors import WrongRegion as WrongRegion
from .file import S3File as S3File
from .hedging import HedgePolicy as HedgePolicy
from .index import Index as Index
from .index import list_objects as list_objects
from .index import load_index as load_index
from .index import save_index as save_index
from .memory_cache import MemoryCache as MemoryCache
from .retrying import RetryPolicy as RetryPolicy

__all__ = [
    "AccessDenied", "BucketMissing", "ByteCache", "CacheStats", "CachedBytes", "ChecksumMismatch", "ConnectionLost",
    "CredentialsMissing", "DirectoryCache", "EndpointUnreachable", "HedgePolicy", "Index", "MemoryCache",
    "MissingExtra", "ObjectMissing", "RefusalCut", "RetryPolicy", "S3Dataset", "S3File", "StorageError", "Throttled",
    "TransientStorageError", "Truncated", "WrongRegion", "cached_bytes", "list_objects", "load_index", "save_index",
]  # fmt: skip

# Tracebacks and pickles name the place where users find these.
for _public in (S3Dataset, S3File, cached_bytes):
    _public.__module__ = "minato"
for _name in __all__:
    if globals()[_name].__module__.startswith(f"{__name__}."):
        globals()[_name].__module__ = __name__
del _public, _name
