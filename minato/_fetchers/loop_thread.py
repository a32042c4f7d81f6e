"""An event loop in a thread of this process: where there are no worker processes.

In a thread of its own, since the caller may have a loop running already, as a notebook has.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Awaitable, Callable
from concurrent.futures import Future

from .threaded import Outcome

_CLOSING_S = 0.5  # seconds for coroutines to end once they are cancelled


class FetchLoop:
    """Awaits samples. It ends when this object is closed or garbage; coroutines under way are cancelled."""

    def __init__(self, most: int) -> None:
        """`most`: coroutines under way at once."""
        self._loop = asyncio.new_event_loop()
        self._room = asyncio.Semaphore(most)
        thread = threading.Thread(target=_run, args=(self._loop,), name="minato-fetch-loop", daemon=True)
        thread.start()
        self.close = weakref.finalize(self, _end, self._loop, thread)
        self.close.atexit = False

    def submit(self, begin: Callable[[], Awaitable[object]]) -> Future[Outcome]:
        """Have what `begin` returns awaited, once there is room."""
        return asyncio.run_coroutine_threadsafe(_await(begin, self._room), self._loop)


async def _await(begin: Callable[[], Awaitable[object]], room: asyncio.Semaphore) -> Outcome:
    async with room:
        try:
            return Outcome(await begin())
        except BaseException as error:
            return Outcome(error=error)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    loop.run_until_complete(asyncio.wait(tasks, timeout=_CLOSING_S) if tasks else asyncio.sleep(0))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def _end(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    loop.call_soon_threadsafe(loop.stop)
    if threading.current_thread() is not thread:
        thread.join(2 * _CLOSING_S)
