"""Attempts on their way into shards: all of them, once, in their order; a slow disk slows, a full one stops."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from corpus.errors import UserError
from corpus.ledger.writer import LedgerWriter, open_ledger
from corpus.responses import Attempt, write_responses
from corpus.token_ids import pack_ids
from generation import attempts as writing
from generation.attempts import AttemptLog

World = Any


def attempt(number: int, text: str = "x") -> Attempt:
    return Attempt(
        response_id=f"r{number:03}", prompt_id="p", recipe_id="r", replica=0, turn=0, attempt=0, state="accepted",
        reason=None, prompt_token_ids=pack_ids([1]), token_ids=pack_ids([number]), text=text, finish_reason="stop",
        stop_reason=None, seed=1, engine="e", device="cpu:0", queued_at=1.0, started_at=2.0, first_token_at=3.0,
        ended_at=4.0, run_id="run",
    )  # fmt: skip


@pytest.fixture
def ledger(world: World) -> Iterator[LedgerWriter]:
    with open_ledger(world.workspace, "test") as opened:
        yield opened


class Disk:
    """Writes when it is let."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free, self.asked = threading.Event(), threading.Event()
        self.error: Exception | None = None
        self.writes = 0
        monkeypatch.setattr(writing, "write_responses", self.write)

    async def reached(self) -> None:
        """A write has begun."""
        assert await asyncio.to_thread(self.asked.wait, 60)

    def write(self, path: Path, attempts: list[Attempt]) -> None:
        self.writes += 1
        self.asked.set()
        assert self.free.wait(60)
        if self.error is not None:
            raise self.error
        write_responses(path, attempts)


def stored(ledger: LedgerWriter) -> list[str]:
    return [row[0] for row in ledger.rows("SELECT response_id FROM responses ORDER BY shard, shard_row")]


async def turn_over() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize("due", ["rows", "bytes", "time"])
def test_a_shard_is_written_when_one_is_due_and_flush_writes_the_rest(
    ledger: LedgerWriter, due: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "FLUSH_ROWS", 3 if due == "rows" else 10**9)
    monkeypatch.setattr(writing, "FLUSH_BYTES", 300 if due == "bytes" else 10**9)
    monkeypatch.setattr(writing, "FLUSH_EVERY_S", -1.0 if due == "time" else 10**9)

    async def work() -> None:
        log = AttemptLog(ledger, "run")
        for number in range(10):
            log.add(attempt(number, "x" * 100))
            await log.keep_up()
        await log.flush()
        await log.flush()

    asyncio.run(work())
    assert stored(ledger) == [f"r{number:03}" for number in range(10)]
    shards = [row[0] for row in ledger.rows("SELECT shard FROM response_shards ORDER BY 1")]
    assert len(shards) > 1
    assert shards == [f"run-{number:05d}.parquet" for number in range(len(shards))]


def test_a_slow_disk_makes_the_run_wait_once_the_backlog_is_full(
    ledger: LedgerWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "FLUSH_ROWS", 2)
    disk = Disk(monkeypatch)

    async def work() -> None:
        log = AttemptLog(ledger, "run")
        for number in range(2 + writing.BACKLOG * 2 - 1):  # one shard on its way, and just less than the backlog
            log.add(attempt(number))
            await log.keep_up()
        await disk.reached()
        assert disk.writes == 1
        log.add(attempt(99))
        waiting = asyncio.create_task(log.keep_up())
        await turn_over()
        assert not waiting.done()
        disk.free.set()
        await waiting
        await log.flush()

    asyncio.run(work())
    assert len(stored(ledger)) == 2 + writing.BACKLOG * 2


def test_what_went_wrong_comes_out_of_the_next_call(ledger: LedgerWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "FLUSH_ROWS", 1)
    disk = Disk(monkeypatch)
    disk.error = UserError("the disk is full")

    async def work() -> None:
        log = AttemptLog(ledger, "run")
        log.add(attempt(1))
        await log.keep_up()
        disk.free.set()
        with pytest.raises(UserError, match="the disk is full"):
            await log.flush()
        disk.error = None
        log.add(attempt(2))
        await log.flush()

    asyncio.run(work())
    assert stored(ledger) == ["r002"]


def test_a_flush_that_is_cancelled_leaves_the_shard_to_be_finished(
    ledger: LedgerWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt cancels the coroutine that hands out, which may be flushing for a top-up."""
    disk = Disk(monkeypatch)

    async def work() -> None:
        log = AttemptLog(ledger, "run")
        log.add(attempt(1))
        flushing = asyncio.create_task(log.flush())
        await disk.reached()
        flushing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await flushing
        log.add(attempt(2))
        disk.free.set()
        await log.flush()

    asyncio.run(work())
    assert stored(ledger) == ["r001", "r002"]


def test_after_a_flush_the_ledger_has_all_that_was_added_before_it_whoever_writes_beside(
    ledger: LedgerWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coroutine that takes in keeps up while the one that hands out flushes."""
    monkeypatch.setattr(writing, "FLUSH_ROWS", 1)
    disk = Disk(monkeypatch)

    async def work() -> None:
        log = AttemptLog(ledger, "run")
        log.add(attempt(1))
        await log.keep_up()
        flushing = asyncio.create_task(log.flush())
        await turn_over()
        for number in (2, 3):
            log.add(attempt(number))
            await log.keep_up()
            await turn_over()
        await disk.reached()
        assert disk.writes == 1  # one shard at a time
        disk.free.set()
        await flushing
        assert stored(ledger) == ["r001", "r002", "r003"]
        log.add(attempt(4))
        await log.keep_up()
        await log.flush()

    asyncio.run(work())
    assert stored(ledger) == ["r001", "r002", "r003", "r004"]
    frames = [pl.read_parquet(path) for path in sorted(ledger.workspace.responses.glob("*.parquet"))]
    assert sum(frame.height for frame in frames) == 4
