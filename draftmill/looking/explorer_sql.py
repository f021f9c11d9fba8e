"""SQL that a person typed into the page, run in a process of its own: it can be ended, and takes no memory along.

The same refusals as `draftmill sql`: the statement goes through corpus.ledger.query. Only the first rows come back, as
text for a page. What the process spills lies in a folder of its own, which goes with it; it ends when whoever asked
does, and at its own time limit. Few run at once: each may take a quarter of the memory.
"""

from __future__ import annotations

import multiprocessing
import os
import select
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast

from corpus.errors import UserError
from corpus.workspace import Workspace

MOST_ROWS = 500
MOST_PLAN_CHARS = 200_000
TIME_LIMIT_S = 60.0
POLL_S = 0.1
MOST_AT_ONCE = 2
WAIT_S = 20.0
"""For another question to end."""
GRACE_S = 5
"""How much longer a process stays by itself, whose server should have ended it."""
_places = threading.BoundedSemaphore(MOST_AT_ONCE)


@dataclass(frozen=True)
class Answer:
    """The first rows of a result; `error` says why there are none."""

    columns: list[str] = field(default_factory=list)
    numeric: list[bool] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    is_cut: bool = False
    error: str | None = None
    plan: str | None = None
    """What EXPLAIN drew, line by line."""


def answer(
    workspace: Workspace,
    sql: str,
    limit_s: float = TIME_LIMIT_S,
    is_over: Callable[[], bool] = lambda: False,
    wait_s: float = WAIT_S,
) -> Answer:
    """Run one statement, for at most limit_s seconds.

    Args:
        is_over: asked again and again whether nobody waits for the answer any more.
        wait_s: how long to wait for other questions to end.
    """
    with _place(wait_s, is_over) as is_free, _spill() as spill:
        if is_over():
            return Answer(error="stopped.")
        if not is_free:
            return Answer(error=f"{MOST_AT_ONCE} questions are being answered already; ask again when one is.")
        return _asked(workspace, sql, limit_s, is_over, spill)


@contextmanager
def _place(wait_s: float, is_over: Callable[[], bool]) -> Iterator[bool]:
    """One of the few; False where none came free."""
    until = time.monotonic() + wait_s
    is_free = False
    while not is_free and time.monotonic() < until and not is_over():
        is_free = _places.acquire(timeout=POLL_S)
    try:
        yield is_free
    finally:
        if is_free:
            _places.release()


@contextmanager
def _spill() -> Iterator[Path]:
    """A folder that DuckDB may fill, gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="draftmill-sql-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _asked(workspace: Workspace, sql: str, limit_s: float, is_over: Callable[[], bool], spill: Path) -> Answer:
    context = multiprocessing.get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(str(workspace.root), sql, sending, str(spill), limit_s), daemon=True)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited: Ctrl-C is the server's to hear
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    sending.close()
    try:
        until = time.monotonic() + limit_s
        while not receiving.poll(min(POLL_S, max(until - time.monotonic(), 0))):
            if is_over():
                return Answer(error="stopped.")
            if time.monotonic() >= until:
                return Answer(error=f"took longer than {limit_s:g} s. `draftmill sql` has no limit.")
        return cast(Answer, receiving.recv())
    except EOFError:
        process.join(5)
        return Answer(error=f"ended without an answer (exit {process.exitcode}); out of memory? Ask for less.")
    finally:
        receiving.close()
        if process.is_alive():
            process.kill()
        process.join()


def limited(sql: str) -> str:
    """The statement with no more rows than a page shows, and one that tells whether there are more.

    Raises:
        UserError: not one statement that only reads.
    """
    from corpus.ledger.query import is_explain, readable_statement

    statement = readable_statement(sql).strip().rstrip(";")
    if is_explain(statement):
        return statement
    return f"SELECT * FROM (\n{statement}\n) LIMIT {MOST_ROWS + 1}"


def _run(root: str, sql: str, sending: Connection, spill: str, limit_s: float) -> None:
    _end_with_the_server(sending.fileno(), spill, limit_s)
    from corpus.ledger.query import is_explain, query
    from corpus.ledger.spill import modest_limits
    from draftmill.looking.explorer_text import cell, visible

    try:
        frame = query(Workspace(Path(root)), limited(sql), modest_limits(Path(spill)))
        if is_explain(sql):
            plans = [visible(str(plan)[:MOST_PLAN_CHARS]) for plan in frame["explain_value"]]
            sending.send(Answer(plan="\n".join(plans)))
            return
        sending.send(
            Answer(
                [cell(name) for name in frame.columns],
                [kind.is_numeric() for kind in frame.dtypes],
                [[cell(value, 2_000) for value in row] for row in frame.head(MOST_ROWS).iter_rows()],
                frame.height > MOST_ROWS,
            )
        )
    except UserError as error:
        sending.send(Answer(error=cell(str(error), 1_000)))


def _end_with_the_server(line: int, spill: str, limit_s: float) -> None:
    """End this process when nobody holds the other end of the pipe `line`, or at its limit.

    The alarm is the system's: it also ends a native call that keeps the interpreter from running the thread.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    signal.setitimer(signal.ITIMER_REAL, limit_s + GRACE_S)

    def watch() -> None:
        watched = select.poll()
        watched.register(line, 0)  # of a pipe without a reader, POLLERR comes unasked
        watched.poll()
        shutil.rmtree(spill, ignore_errors=True)
        os._exit(1)

    threading.Thread(target=watch, name="explore-sql-watch", daemon=True).start()
