"""How every stage runs: what it reads where nothing is written, and how its end is noted whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from corpus.ledger.query import LedgerReader
from corpus.runlog import RunLog
from draftmill.interrupted import NotAgreed, StoppedEarly
from draftmill.session import Session
from fleet.interrupt import Interrupted

T = TypeVar("T")
STOPPED = (StoppedEarly, NotAgreed, Interrupted, KeyboardInterrupt, asyncio.CancelledError)


def reader(session: Session) -> LedgerReader:
    """What is published, for dry runs."""
    return LedgerReader(session.workspace)


def logged(log: RunLog, work: Callable[[], T]) -> T:
    """Run a stage, and note how it ended whatever happens."""
    try:
        result = work()
    except BaseException as error:
        with suppress(Exception):
            log.event("ended", f"{type(error).__name__}: {error}".removesuffix(": "))
            log.finish("stopped" if isinstance(error, STOPPED) else "failed")
        raise
    log.finish("done")
    return result
