"""Attempts on their way into shards: collected, written in the background while the run goes on, then entered.

At most one shard is being written; more attempts than BACKLOG_ROWS make the run wait for it, so that a slow disk slows
the run and does not fill the memory. What went wrong there comes out of the next call.
"""

from __future__ import annotations

import asyncio
import time

from corpus.ledger import ingest
from corpus.ledger.writer import LedgerWriter
from corpus.responses import Attempt, write_responses

FLUSH_EVERY_S = 5.0
FLUSH_ROWS = 5_000
FLUSH_BYTES = 64 << 20
BACKLOG = 4
"""Shards' worth of attempts that may wait."""


class AttemptLog:
    """The attempts of one run."""

    def __init__(self, ledger: LedgerWriter, run_id: str) -> None:
        self._ledger, self._run_id = ledger, run_id
        self._buffer: list[Attempt] = []
        self._bytes = 0
        self._shard = 0
        self._flushed_s = time.monotonic()
        self._writing: asyncio.Task[None] | None = None
        self._flushing = asyncio.Lock()

    def add(self, attempt: Attempt) -> None:
        """Keep an attempt."""
        self._buffer.append(attempt)
        self._bytes += len(attempt.prompt_token_ids) + len(attempt.token_ids) + len(attempt.text)

    async def keep_up(self) -> None:
        """Write what is due.

        Raises:
            UserError: the disk is full, or the ledger is damaged.
        """
        if self._writing is not None and (
            self._writing.done() or len(self._buffer) >= BACKLOG * FLUSH_ROWS or self._bytes >= BACKLOG * FLUSH_BYTES
        ):
            await self._settle()
        due = time.monotonic() - self._flushed_s > FLUSH_EVERY_S and bool(self._buffer)
        large = len(self._buffer) >= FLUSH_ROWS or self._bytes >= FLUSH_BYTES
        if (due or large) and self._writing is None:
            self._begin()

    async def flush(self) -> None:
        """Write everything, and wait until the ledger has it.

        Raises:
            UserError: as keep_up.
        """
        async with self._flushing:
            await self._settle()
            if self._buffer:
                self._begin()
                await self._settle()

    def _begin(self) -> None:
        attempts, self._buffer, self._bytes = self._buffer, [], 0
        self._flushed_s = time.monotonic()
        self._writing = asyncio.create_task(self._write(attempts, self._shard))
        self._writing.add_done_callback(_look_at_error)
        self._shard += 1

    async def _settle(self) -> None:
        """Wait until nothing is being written. Others may wait beside; one that is cancelled cancels no shard."""
        while (writing := self._writing) is not None:
            try:
                await asyncio.shield(writing)
            finally:
                if writing.done() and self._writing is writing:
                    self._writing = None

    async def _write(self, attempts: list[Attempt], number: int) -> None:
        path = self._ledger.workspace.responses / f"{self._run_id}-{number:05d}.parquet"
        await asyncio.to_thread(write_responses, path, attempts)
        await asyncio.wrap_future(self._ledger.submit(lambda c: ingest.ingest_response_shard(c, path)))


def _look_at_error(writing: asyncio.Task[None]) -> None:
    """A run that ends for another reason does not wait for it: what it raises is then nobody's, and no traceback."""
    if not writing.cancelled():
        writing.exception()
