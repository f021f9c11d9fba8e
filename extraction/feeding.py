"""The factory of target workers that feed drafters, "extraction.feeding:create", and what they need of their port.

As in `extraction.start`, the environment is set before torch is imported, then the worker is made
(`extraction.feed_worker`). Knows no fleet: whatever has these four members is a port.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

import msgspec

from extraction.feed_messages import FeedConfig
from extraction.start import allocator_settings


class Port(Protocol):
    """The worker's side of the bounded queue. Calls block; where the run is over they raise, which is let through."""

    @property
    def stopping(self) -> bool:
        """Nothing that is put is taken any more."""

    def next_work(self) -> bytes | None:
        """The next FeedJob; None: there is no more."""

    def put(self, meta: bytes, size_bytes: int) -> AbstractContextManager[memoryview]:
        """Room for a batch, as soon as there is; published at the exit, and not if that is an error."""

    def emit(self, event: bytes) -> None:
        """Tell the coordinator."""


def create(config: bytes, port: Port) -> Callable[[], bytes]:
    """Load the target, check and measure it; the function that comes back feeds until there is no more work.

    Raises:
        UserError: the target cannot be loaded, or its states cannot be trusted.
    """
    os.environ.update(allocator_settings(os.environ))
    from extraction.feed_worker import Feeder

    return Feeder(msgspec.msgpack.decode(config, type=FeedConfig), port).run
