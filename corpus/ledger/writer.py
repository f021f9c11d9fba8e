"""The one process that writes the ledger, through one thread.

Every job is one transaction on one connection. After a job the writer publishes a snapshot if the last one is
old enough, else as soon as it is: of a large ledger composition is counted, once for all who will ask; CHECKPOINT; then
a child process copies the file (a copy inside this process would drop DuckDB's lock on it) and the copy is renamed into
place. Publishing takes at most PUBLISH_SHARE of the time and happens at most every PUBLISH_EVERY_S, so queries never
delay a run, and what they see is at most the longer of PUBLISH_EVERY_S and cost / PUBLISH_SHARE old.
"""

from __future__ import annotations

import fcntl
import logging
import math
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from corpus.artefacts import full_disk, remove_temporaries, temporary_path
from corpus.errors import UserError, first_line
from corpus.ledger.kept import keep_composition
from corpus.workspace import Workspace

if TYPE_CHECKING:
    import duckdb
    import polars as pl

log = logging.getLogger(__name__)

T = TypeVar("T")

PUBLISH_EVERY_S = 10.0
PUBLISH_SHARE = 0.05
KEPT_FROM = 100_000
"""Wanted answers from which on composition is counted before a snapshot is published; fewer are counted at once."""


class Readable(Protocol):
    """What plans need of a ledger: the writer's, or the published snapshot."""

    workspace: Workspace

    def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Rows of a SELECT."""
        ...

    def frame(self, sql: str, *values: Any) -> pl.DataFrame:
        """The same as a frame: a million rows are no million objects."""
        ...


class LedgerWriter:
    """Runs jobs in order on the ledger's own thread. Made by open_ledger."""

    def __init__(self, workspace: Workspace, apart: Path | None = None) -> None:
        """`apart` is another file than the workspace's ledger; nothing of it is published."""
        self.workspace = workspace
        self._path = apart or workspace.ledger
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ledger")
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._next_publish = math.inf if apart else 0.0
        self._timer: threading.Timer | None = None
        self._dirty = False
        self._damaged = False

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

        def read() -> list[tuple[Any, ...]]:
            with self._explained():
                return list(self._open_connection().execute(sql, list(values)).fetchall())

        return self._thread.submit(read).result()

    def frame(self, sql: str, *values: Any) -> pl.DataFrame:
        """Read what is committed."""
        import polars as pl

        def read() -> pl.DataFrame:
            with self._explained():
                return pl.DataFrame(self._open_connection().sql(sql, params=list(values)).to_arrow_table())

        return self._thread.submit(read).result()

    def publish(self) -> None:
        """Publish a snapshot now."""
        self._thread.submit(self._publish).result()

    def close(self) -> None:
        """Publish what changed and let go of the file."""
        if self._timer is not None:
            self._timer.cancel()
        if self._connection is not None:
            self._thread.submit(self._close).result()
        self._thread.shutdown()

    def _open_connection(self) -> duckdb.DuckDBPyConnection:
        assert self._connection is not None, "the ledger is not open"
        return self._connection

    def _open(self) -> None:
        import duckdb

        path = self._path.absolute()  # DuckDB takes what looks like a scheme for a service to attach
        refuse_held(path, self.workspace)
        if path == self.workspace.ledger.absolute():
            _refuse_gone(self.workspace)
        stale = path == self.workspace.ledger.absolute() and _is_behind(self.workspace)
        try:
            self._connection = duckdb.connect(str(path))
            self._connection.execute("SET TimeZone = 'UTC'")
            migrated = migrate(self._connection, str(self._path))
        except (duckdb.Error, OSError, UnicodeError) as error:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            reason = full_disk(error, self._path) or (
                f"{self._path}: cannot be opened ({first_line(error)}). Run `draftmill ledger rebuild`: "
                "everything in it is made again from the other files."
            )
            raise UserError(reason) from error
        self._dirty = stale or migrated
        if self._next_publish == 0.0 and not self._dirty and self.workspace.snapshot.exists():
            self._next_publish = time.monotonic() + PUBLISH_EVERY_S  # what is published is as new as the ledger

    def _transaction(self, job: Callable[[duckdb.DuckDBPyConnection], T]) -> T:
        connection = self._open_connection()
        with self._explained():
            try:
                connection.execute("BEGIN")
                result = job(connection)
                connection.execute("COMMIT")
            except BaseException:
                self._rollback()
                raise
        self._dirty = self._path == self.workspace.ledger
        if time.monotonic() >= self._next_publish:
            self._publish()
        else:
            self._publish_when_due()
        return result

    def _publish_when_due(self) -> None:
        """See that what is committed is published, also where no later job does it."""
        if self._dirty and self._timer is None and math.isfinite(self._next_publish):
            self._timer = threading.Timer(self._next_publish - time.monotonic(), self._due)
            self._timer.daemon = True
            self._timer.start()

    def _due(self) -> None:
        """On the timer's thread."""
        with suppress(RuntimeError):  # the ledger is closed
            self._thread.submit(self._publish_late)

    def _publish_late(self) -> None:
        self._timer = None
        if self._connection is None or self._damaged or not self._dirty:
            return
        try:
            if time.monotonic() >= self._next_publish:
                self._publish()
            self._publish_when_due()
        except Exception as error:  # nobody waits for this one: the next job meets it too, and has an owner
            log.warning("%s is not as new as it should be (%s)", self.workspace.snapshot, first_line(error))

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """A full disk and a damaged ledger, found while it is in use, are one line."""
        import duckdb

        try:
            yield
        except BaseException as error:
            reason = full_disk(error, self._path)
            if reason is None and isinstance(error, duckdb.Error) and _is_corrupt(error, self._path):
                self._damaged = True
                reason = (
                    f"{self._path}: is damaged ({first_line(error)[:200]}). Run `draftmill ledger rebuild`: "
                    "everything in it is made again from the other files."
                )
            if reason is None:
                raise
            raise UserError(reason) from error

    def _rollback(self) -> None:
        import duckdb

        with suppress(duckdb.Error):  # a failed COMMIT has rolled back already
            self._open_connection().execute("ROLLBACK")

    def _publish(self) -> None:
        import duckdb

        started = time.monotonic()
        temporary = temporary_path(self.workspace.snapshot)
        try:
            with self._explained():
                self._keep_composition()
                self._open_connection().execute("CHECKPOINT")
            subprocess.run(["cp", "--", str(self.workspace.ledger), str(temporary)], check=True, capture_output=True)
            temporary.replace(self.workspace.snapshot)
            self._dirty = False
        except (duckdb.Error, OSError, subprocess.CalledProcessError) as error:
            temporary.unlink(missing_ok=True)
            output = (getattr(error, "stderr", b"") or b"").decode(errors="replace")
            reason = full_disk(error, self.workspace.snapshot) or full_disk(OSError(output), self.workspace.snapshot)
            if reason is not None:
                raise UserError(reason) from error
            if isinstance(error, duckdb.Error):
                raise
            # who asks waits for the next one; a run does not end for it
            log.warning("%s is not as new as it should be (%s)", self.workspace.snapshot, output.strip() or error)
        cost_s = time.monotonic() - started
        self._next_publish = time.monotonic() + max(PUBLISH_EVERY_S, cost_s / PUBLISH_SHARE)

    def _keep_composition(self) -> None:
        """Count composition where everybody who asks the snapshot would count it anew, and that takes a while."""
        import duckdb

        connection = self._open_connection()
        ((answers,),) = connection.execute("SELECT count(*) FROM build_responses").fetchall()
        if answers < KEPT_FROM:
            return
        try:
            connection.execute("BEGIN")
            keep_composition(connection)
            connection.execute("COMMIT")
        except BaseException as error:
            self._rollback()
            if not isinstance(error, duckdb.OutOfMemoryException):
                raise
            # who asks counts it anew; a run does not end for it
            log.warning("composition was not counted for %s (%s)", self.workspace.snapshot, first_line(error)[:200])

    def _close(self) -> None:
        import duckdb

        try:
            if self._dirty and not self._damaged:  # the last snapshot knows the checksums that a rebuild goes by
                self._publish()
        finally:
            with suppress(duckdb.Error):  # a ledger that is damaged or full cannot be closed well either
                self._open_connection().close()
            self._connection = None
        if self._path == self.workspace.ledger:
            with suppress(OSError):
                os.utime(self.workspace.snapshot)  # closing touched the ledger, and the snapshot is as new


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


def refuse_held(path: Path, workspace: Workspace) -> None:
    """Refuse a ledger that another process has open, whatever became of workspace.lock.

    Raises:
        UserError: one has.
    """
    if path.is_file():
        with path.open("rb+") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise UserError(
                    f"{path}: another process has it open (was workspace.lock removed?). Wait for it, or stop it; "
                    f"to look, open {workspace.snapshot.name}."
                ) from error


def _is_behind(workspace: Workspace) -> bool:
    """True if the snapshot may lack what a killed coordinator committed and did not publish."""
    wal = workspace.ledger.with_name(workspace.ledger.name + ".wal")
    try:
        published_ns = workspace.snapshot.stat().st_mtime_ns
        return wal.exists() or workspace.ledger.stat().st_mtime_ns > published_ns
    except FileNotFoundError:
        return not workspace.snapshot.exists()


def _refuse_gone(workspace: Workspace) -> None:
    """An empty ledger in the place of one that is gone would have everything made again, and be published.

    Raises:
        UserError: it is gone, and its artefacts are there.
    """
    path = workspace.ledger
    gone = not path.exists() or path.stat().st_size == 0
    if gone and any(workspace.root.glob("builds/*/build.json")):
        raise UserError(
            f"{workspace.ledger}: is gone, and builds are there. Run `draftmill ledger rebuild`: everything in it is "
            "made again from the other files."
        )


def _is_corrupt(error: duckdb.Error, path: Path) -> bool:
    """DuckDB tells a block that is cut or fails its checksum by its words alone; then it refuses the whole file."""
    import duckdb

    if isinstance(error, duckdb.IOException) and str(path.absolute()) in str(error):
        return True
    return isinstance(error, duckdb.FatalException | duckdb.InternalException) or "Corrupt database file" in str(error)


def migrations() -> list[tuple[int, str, str]]:
    """(version, name, SQL) of every migration, in order."""
    folder = resources.files("corpus.ledger") / "migrations"
    found = []
    for file in folder.iterdir():
        match = re.fullmatch(r"(\d{4})_(\w+)\.sql", file.name)
        if match:
            found.append((int(match[1]), match[2], file.read_text(encoding="utf-8")))
    return sorted(found)


def migrate(connection: duckdb.DuckDBPyConnection, path: str) -> bool:
    """Bring a ledger to this version, each migration in one transaction with its record; True if one was missing.

    Raises:
        UserError: the ledger was written by a newer draftmill.
    """
    connection.execute(
        "CREATE TABLE IF NOT EXISTS schema_migrations "
        "(version INTEGER PRIMARY KEY, name VARCHAR, applied_at TIMESTAMPTZ DEFAULT now())"
    )
    done = refuse_newer(connection, path)
    missing = [one for one in migrations() if one[0] not in done]
    for version, name, sql in missing:
        connection.execute("BEGIN")
        connection.execute(sql)
        connection.execute("INSERT INTO schema_migrations (version, name) VALUES (?, ?)", [version, name])
        connection.execute("COMMIT")
    connection.execute((resources.files("corpus.ledger") / "views.sql").read_text(encoding="utf-8"))
    return bool(missing)


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
