"""What native mapping raises on its own account."""

from __future__ import annotations

from ..._errors import MinatoError


class PerfMissing(MinatoError):
    """The program `perf` is not there."""


class PerfFailed(MinatoError):
    """`perf` is there and did not do what it was asked for; its own words are in the text."""


class ForeignMapping(MinatoError):
    """A mapping was made on another machine, or with other libraries, than those here."""
