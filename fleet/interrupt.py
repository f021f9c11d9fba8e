"""Ctrl-C that drains: the first signal asks a running coroutine to come to an end, the second ends it at once.

While nothing is worth draining (workers still start), the first one ends it too. SIGTERM counts as SIGINT.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import TypeVar

T = TypeVar("T")


class Interrupt:
    """Handed to the coroutine: `asked` is set by the first signal; set `can_drain` when work is in flight."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.can_drain = False


class Interrupted(Exception):
    """Ended by a signal before it could drain."""


def run_interruptible(make: Callable[[Interrupt], Coroutine[None, None, T]]) -> T:
    """Run a coroutine under these rules.

    Raises:
        Interrupted: a signal ended it at once.
    """

    async def main() -> T:
        interrupt = Interrupt()
        task = asyncio.ensure_future(make(interrupt))
        loop = asyncio.get_running_loop()

        def on_signal() -> None:
            if interrupt.can_drain and not interrupt.asked.is_set():
                interrupt.asked.set()
            else:
                task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, on_signal)
        try:
            return await task
        except asyncio.CancelledError as error:
            raise Interrupted from error
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    return asyncio.run(main())
