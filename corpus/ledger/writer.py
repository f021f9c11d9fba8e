"""The one process that writes the ledger, through one thread.

Every job is one transaction on one connection. After a job the writer publishes a snapshot if the last one is
old enough: CHECKPOINT, then a child process copies the file (a copy inside this process would drop DuckDB's
lock on it) and the copy is renamed into place. Publishing takes at most PUBLISH_SHARE of the time and
happens at most every PUBLISH_EVERY_S, so queries never delay a run.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib import resources
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from corpus.artefacts import full_disk, remove_temporaries, temporary_path
from corpus.errors import UserError
from corpus.workspace import Workspace

if TYPE_CHECKING:
    import duckdb

T = TypeVar("T")

PUBLISH_EVERY_S = 10.0
PUBLISH_SHARE = 0.05


class Readable(Protocol):
    """What plans need of a ledger: the writer's, or the published snapshot."""

    workspace: Workspace

    def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Rows of a SELECT."""
        ...


class LedgerWriter:
    """Runs jobs in order on the ledger's own thread. Made by open_ledger."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ledger")
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._next_publish = 0.0
        self._dirty = False

    def open(self) -> None:
        """Open, migrate, make the views.

        Raises:
            UserError: the ledger is of a newer draftmill, damaged, or held by somebody else.
        """
        self._thread.submit(self._open).result()

    def submit(self, job: Callable[[duckdb.DuckDBPyConnection], T]) -> Future[T]:
        """Queue one transaction."""
        return self._thread.submit(self._transaction, job)

    def call(self, job: Callable[[duckdb.DuckDBPyConnection], T]) -> T:
        """Run one transaction and wait for it."""
        return self.submit(job).result()

    def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Read what is committed."""

        def read(connection: duckdb.DuckDBPyConnection) -> list[tuple[Any, ...]]:
            return list(connection.execute(sql, list(values)).fetchall())

        return self._thread.submit(lambda: read(self._open_connection())).result()

    def publish(self) -> None:
        """Publish a snapshot now."""
        self._thread.submit(self._publish).result()

    def close(self) -> None:
        """Publish what changed and let go of the file."""
        if self._connection is not None:
            self._thread.submit(self._close).result()
        self._thread.shutdown()

    def _open_connection(self) -> duckdb.DuckDBPyConnection:
        assert self._connection is not None, "the ledger is not open"
        return self._connection

    def _open(self) -> None:
        import duckdb

        path = self.workspace.ledger
        try:
            self._connection = duckdb.connect(str(path))
            self._connection.execute("SET TimeZone = 'UTC'")
        except (duckdb.Error, OSError) as error:
            reason = full_disk(error, path) or (
                f"{path}: cannot be opened ({_first_line(error)}). If the file is damaged, remove it and run "
                "`draftmill ledger rebuild`: everything in it can be made again from the other files."
            )
            raise UserError(reason) from error
        migrate(self._connection, str(path))
        self._dirty = not self.workspace.snapshot.exists()

    def _transaction(self, job: Callable[[duckdb.DuckDBPyConnection], T]) -> T:
        connection = self._open_connection()
        connection.execute("BEGIN")
        try:
            result = job(connection)
            connection.execute("COMMIT")
        except BaseException as error:
            self._rollback()
            reason = full_disk(error, self.workspace.ledger)
            if reason is not None:
                raise UserError(reason) from error
            raise
        self._dirty = True
        if time.monotonic() >= self._next_publish:
            self._publish()
        return result

    def _rollback(self) -> None:
        import duckdb

        with suppress(duckdb.Error):  # a failed COMMIT has rolled back already
            self._open_connection().execute("ROLLBACK")

    def _publish(self) -> None:
        import duckdb

        started = time.monotonic()
        temporary = temporary_path(self.workspace.snapshot)
        try:
            self._open_connection().execute("CHECKPOINT")
            subprocess.run(["cp", "--", str(self.workspace.ledger), str(temporary)], check=True, capture_output=True)
            temporary.replace(self.workspace.snapshot)
            self._dirty = False
        except (duckdb.Error, OSError, subprocess.CalledProcessError) as error:
            temporary.unlink(missing_ok=True)
            output = getattr(error, "stderr", b"") or b""
            reason = full_disk(error, self.workspace.snapshot) or full_disk(
                OSError(output.decode(errors="replace")), self.workspace.snapshot
            )
            if reason is None:
                raise
            raise UserError(reason) from error
        cost_s = time.monotonic() - started
        self._next_publish = time.monotonic() + max(PUBLISH_EVERY_S, cost_s / PUBLISH_SHARE)

    def _close(self) -> None:
        try:
            if self._dirty:
                self._publish()
        finally:
            self._open_connection().close()
            self._connection = None


@contextmanager
def open_ledger(workspace: Workspace, command: str) -> Iterator[LedgerWriter]:
    """Coordinate a workspace and hold its ledger open.

    Raises:
        UserError: see Workspace.coordinate and LedgerWriter.open.
    """
    with workspace.coordinate(command):
        remove_temporaries(workspace.root)
        writer = LedgerWriter(workspace)
        try:
            writer.open()
            yield writer
        finally:
            writer.close()


def migrations() -> list[tuple[int, str, str]]:
    """(version, name, SQL) of every migration, in order."""
    folder = resources.files("corpus.ledger") / "migrations"
    found = []
    for file in folder.iterdir():
        match = re.fullmatch(r"(\d{4})_(\w+)\.sql", file.name)
        if match:
            found.append((int(match[1]), match[2], file.read_text(encoding="utf-8")))
    return sorted(found)


def migrate(connection: duckdb.DuckDBPyConnection, path: str) -> None:
    """Bring a ledger to this version, each migration in one transaction with its record.

    Raises:
        UserError: the ledger was written by a newer draftmill.
    """
    connection.execute(
        "CREATE TABLE IF NOT EXISTS schema_migrations "
        "(version INTEGER PRIMARY KEY, name VARCHAR, applied_at TIMESTAMPTZ DEFAULT now())"
    )
    done = refuse_newer(connection, path)
    for version, name, sql in migrations():
        if version in done:
            continue
        connection.execute("BEGIN")
        connection.execute(sql)
        connection.execute("INSERT INTO schema_migrations (version, name) VALUES (?, ?)", [version, name])
        connection.execute("COMMIT")
    connection.execute((resources.files("corpus.ledger") / "views.sql").read_text(encoding="utf-8"))


def refuse_newer(connection: duckdb.DuckDBPyConnection, path: str) -> set[int]:
    """The migrations that a ledger has.

    Raises:
        UserError: one of them is unknown here: the ledger was written by a newer draftmill.
    """
    done = {int(row[0]) for row in connection.execute("SELECT version FROM schema_migrations").fetchall()}
    newest = max(version for version, _, _ in migrations())
    if done and max(done) > newest:
        raise UserError(
            f"{path}: has schema {max(done)}, this draftmill knows {newest}. "
            "Upgrade draftmill, or choose another --workspace."
        )
    return done


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
