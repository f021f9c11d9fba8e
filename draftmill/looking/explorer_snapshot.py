"""The published ledger, kept open between questions, and opened again when another has been published.

A snapshot is replaced by a rename, so the open one stays whole until the next question finds the new file. It is
attached read-only to a database in memory, which holds what is worth keeping between questions: the rows of a build
with the columns that filters ask of, so that a filter over a million rows takes some hundredths of a second.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corpus.errors import UserError
from corpus.ledger.query import LedgerReader, quoted
from corpus.ledger.spill import modest_limits
from corpus.ledger.writer import refuse_newer
from corpus.workspace import Workspace
from draftmill.looking.explorer_rows import LISTS

if TYPE_CHECKING:
    import duckdb
    import polars as pl

MOST_LISTS = 6
"""Lists kept at a time: some 60 MB each at a million rows."""


class Snapshot(LedgerReader):
    """One published snapshot, open; each question has a cursor of its own, so several threads may ask."""

    def __init__(self, workspace: Workspace, spill: Path) -> None:
        """
        Raises:
            UserError: it cannot be read.
        """
        import duckdb

        self.workspace = workspace
        path = workspace.snapshot.absolute()
        self._lock = threading.Lock()
        self._lists: dict[tuple[str, str], str] = {}
        self._tables_made = 0
        self._asking: set[duckdb.DuckDBPyConnection] = set()
        self._connection = duckdb.connect(":memory:")
        with self._explained():
            limits = modest_limits(spill)
            self._connection.execute(f"SET temp_directory = {quoted(str(limits.folder))}")
            self._connection.execute(f"SET memory_limit = '{limits.memory_bytes}B'")
            self._connection.execute(f"SET max_temp_directory_size = '{limits.spill_bytes}B'")
            self._connection.execute("SET TimeZone = 'UTC'")
            self._connection.execute("SET enable_progress_bar = false")  # it would draw on standard output
            self._connection.execute(f"ATTACH {quoted(str(path))} AS ledger (READ_ONLY)")
            self._connection.execute("USE ledger")
            refuse_newer(self._connection, str(path))

    @contextmanager
    def cursor(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection for one question."""
        cursor = self._connection.cursor()
        self._asking.add(cursor)
        try:
            cursor.execute("USE ledger")
            yield cursor
        finally:
            self._asking.discard(cursor)
            cursor.close()

    def interrupt(self) -> None:
        """End what is being asked now: it raises where it was asked."""
        for cursor in tuple(self._asking):
            cursor.interrupt()

    def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Rows of a SELECT."""
        with self._explained(), self.cursor() as cursor:
            return list(cursor.execute(sql, list(values)).fetchall())

    def frame(self, sql: str, *values: Any) -> pl.DataFrame:
        """The same as a frame."""
        import polars as pl

        with self._explained(), self.cursor() as cursor:
            return pl.DataFrame(cursor.execute(sql, list(values)).to_arrow_table())

    def records(self, sql: str, *values: Any) -> list[dict[str, Any]]:
        """The same, each row by its columns' names."""
        with self._explained(), self.cursor() as cursor:
            found = cursor.execute(sql, list(values))
            names = [column[0] for column in found.description]
            return [dict(zip(names, row, strict=True)) for row in found.fetchall()]

    def list_of(self, kind: str, build_id: str) -> str:
        """The name of the table that lists a build's rows (see explorer_rows); made at the first use."""
        with self._lock:
            name = self._lists.pop((kind, build_id), None)
            if name is None:
                name = f"memory.main.list_{self._tables_made}"
                self._tables_made += 1
                with self._explained(), self.cursor() as cursor:
                    cursor.execute(f"CREATE TABLE {name} AS {LISTS[kind]}", {"build": build_id})
            self._lists[kind, build_id] = name
            if len(self._lists) > MOST_LISTS:
                oldest = self._lists.pop(next(iter(self._lists)))
                with self.cursor() as cursor:
                    cursor.execute(f"DROP TABLE {oldest}")
            return name

    @contextmanager
    def _explained(self) -> Iterator[None]:
        import duckdb

        try:
            yield
        except (duckdb.CatalogException, duckdb.BinderException) as error:
            raise UserError(
                f"{self.workspace.snapshot}: was published by an older draftmill and lacks what this one asks of "
                f"({' '.join(str(error).split())[:120]}). The next command that writes here publishes it anew."
            ) from error
        except duckdb.Error as error:
            raise UserError(
                f"{self.workspace.snapshot}: cannot be read ({' '.join(str(error).split())[:200]}). Reload; if "
                "that does not help, `draftmill ledger rebuild` makes it again."
            ) from error


class Published:
    """Whatever snapshot a workspace has published last."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self._spill = (
            Path(tempfile.gettempdir()) / f"draftmill-explore-{secrets.token_hex(8)}"
        )  # DuckDB makes it if it must
        self._lock = threading.Lock()
        self._open: tuple[tuple[int, int, int], Snapshot] | None = None

    def now(self) -> Snapshot:
        """The newest snapshot.

        Raises:
            UserError: none is published, or it cannot be read.
        """
        with self._lock:
            about = self.workspace.published().stat()
            which = (about.st_ino, about.st_mtime_ns, about.st_size)
            if self._open is None or self._open[0] != which:
                self._open = (which, Snapshot(self.workspace, self._spill))
            return self._open[1]

    def interrupt(self) -> None:
        """End all questions; for a signal's handler, so it waits for no lock."""
        if self._open is not None:
            self._open[1].interrupt()

    def close(self) -> None:
        """Remove what DuckDB may have spilled."""
        shutil.rmtree(self._spill, ignore_errors=True)
