"""For tests of code that loads data: a real S3 server on this machine, and a bad network in front of it."""

from .proxy import Faults as Faults
from .proxy import FaultyProxy as FaultyProxy
from .s3_server import S3Server as S3Server

__all__ = ["Faults", "FaultyProxy", "S3Server"]

for _name in __all__:
    globals()[_name].__module__ = __name__
del _name
