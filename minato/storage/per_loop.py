"""Things that belong to an event loop and must end with it."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class PerLoop(Generic[T]):
    """One thing for each event loop, made when it is first asked for there.

    `make` is an asynchronous generator function that yields it once and ends it afterwards. Loops close their
    asynchronous generators when they end (`asyncio.run` and `asyncio.Runner` see to it), and so the thing ends.
    """

    def __init__(self, make: Callable[[], AsyncGenerator[T, None]]) -> None:
        self._make = make
        self._opening: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Future[T]] = (
            weakref.WeakKeyDictionary()
        )
        self._holders: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Any] = weakref.WeakKeyDictionary()

    async def get(self) -> T:
        """That of the running loop."""
        loop = asyncio.get_running_loop()
        opening = self._opening.get(loop)
        if opening is None:
            holder = self._holders[loop] = self._make()
            opening = self._opening[loop] = asyncio.ensure_future(_first(holder))
        # Shielded: whoever is cancelled while it opens must not take it from all others.
        return await asyncio.shield(opening)


async def _first(holder: AsyncGenerator[T, None]) -> T:
    return await anext(holder)
