"""How every stage runs: what it reads where nothing is written, and how its end is noted whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from corpus.ledger.query import LedgerReader
from corpus.runlog import RunLog
from draftmill.interrupted import NotAgreed, StoppedEarly
from draftmill.looking.report import write_data
from draftmill.session import Session
from fleet.interrupt import Interrupted

T = TypeVar("T")
STOPPED = (StoppedEarly, NotAgreed, Interrupted, KeyboardInterrupt, asyncio.CancelledError)


def reader(session: Session) -> LedgerReader:
    """What is published, for dry runs."""
    return LedgerReader(session.workspace)


def logged(log: RunLog, work: Callable[[], T]) -> T:
    """Run a stage, and note how it ended whatever happens; where it is done, its build's DATA.md is made again."""
    try:
        result = work()
    except BaseException as error:
        with suppress(Exception):
            log.event("ended", f"{type(error).__name__}: {error}".removesuffix(": "))
            log.finish("stopped" if isinstance(error, STOPPED) else "failed")
        raise
    log.finish("done")
    if log.build_id is not None:
        write_data(log.ledger, log.build_id)
    return result
