"""SQL that a person typed into the page, run in a process of its own: it can be ended, and takes no memory along.

The same refusals as `draftmill sql`: the statement goes through corpus.ledger.query. Only the first rows come back, as
text for a page.
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast

from corpus.errors import UserError
from corpus.workspace import Workspace

MOST_ROWS = 500
TIME_LIMIT_S = 60.0
POLL_S = 0.1


@dataclass(frozen=True)
class Answer:
    """The first rows of a result; `error` says why there are none."""

    columns: list[str] = field(default_factory=list)
    numeric: list[bool] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    is_cut: bool = False
    error: str | None = None


def answer(
    workspace: Workspace, sql: str, limit_s: float = TIME_LIMIT_S, stop: threading.Event | None = None
) -> Answer:
    """Run one statement, for at most limit_s seconds, or until `stop` is set."""
    context = multiprocessing.get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(str(workspace.root), sql, sending), daemon=True)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited: Ctrl-C is the server's to hear
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    sending.close()
    try:
        until = time.monotonic() + limit_s
        while not receiving.poll(min(POLL_S, max(until - time.monotonic(), 0))):
            if stop is not None and stop.is_set():
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
    from corpus.ledger.query import readable_statement

    statement = readable_statement(sql).strip().rstrip(";")
    if statement.upper().startswith("EXPLAIN"):
        return statement
    return f"SELECT * FROM (\n{statement}\n) LIMIT {MOST_ROWS + 1}"


def _run(root: str, sql: str, sending: Connection) -> None:
    from corpus.ledger.query import query
    from draftmill.looking.explorer_text import cell

    try:
        frame = query(Workspace(Path(root)), limited(sql))
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
