"""Bringing a ledger up to its files: adoption at every start, and rebuild from nothing.

A killed process leaves whole files that no transaction named; they are adopted. A file that is not whole
cannot be one that draftmill finished writing, so it is moved aside with a line in the log, never deleted.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from corpus.artefacts import remove_temporaries, sha256_file, sync_path, temporary_path, write_text
from corpus.errors import DamagedError, UserError, first_line
from corpus.ledger import ingest
from corpus.ledger.writer import LedgerWriter, migrate, refuse_held
from corpus.shards import capture_body, shard_index
from corpus.sources import FileDigests
from corpus.workspace import Workspace

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection as Connection

log = logging.getLogger("draftmill")

MADE_BY: dict[str, str | None] = {
    "pools": "build", "candidates": "build", "builds": "build", "responses": "generate", "hidden": "extract",
    "drafters": "train", "runs": None, "imports": "import",
}  # fmt: skip


def adopt(ledger: LedgerWriter) -> int:
    """Enter every finished file that the ledger does not name; returns how many.

    Hidden states that are gone or cut are forgotten, and so captured again.

    Raises:
        UserError: answers that the ledger names are gone or damaged.
    """
    workspace = ledger.workspace
    responses = _named_responses(ledger)
    hidden = _named_hidden(ledger)
    drafters = {row[0] for row in ledger.rows("SELECT drafter_id FROM drafters")}
    imports = {row[0] for row in ledger.rows("SELECT import_id FROM imports")}
    adopted = 0
    for path in sorted(workspace.responses.glob("*.parquet")):
        if path.name not in responses:
            adopted += _enter(ledger, path, lambda c, p=path: ingest.ingest_response_shard(c, p))  # type: ignore[misc]
    for path in sorted((workspace.root / "hidden").glob("*/*.safetensors")):
        if (path.parent.name, path.name) not in hidden:
            adopted += _enter(ledger, path, lambda c, p=path: _adopt_states(c, p))  # type: ignore[misc]
    for path in sorted((workspace.root / "drafters").glob("*/drafter.json")):
        name = path.parent.name
        if name not in drafters:
            adopted += _enter(ledger, path, lambda c, n=name: ingest.ingest_drafter(c, workspace, n))  # type: ignore[misc]
    for path in sorted((workspace.root / "imports").glob("*/import.json")):
        name = path.parent.name
        if name not in imports:
            adopted += _enter(ledger, path, lambda c, n=name: ingest.enter_import(c, workspace, n))  # type: ignore[misc]
    _end_killed_runs(ledger)
    if adopted:
        log.info("adopted %d finished files that an earlier run did not enter in the ledger", adopted)
    return adopted


def _adopt_states(connection: Connection, path: Path) -> None:
    """Enter a shard of states, unless one of its rows is captured already: then the others are captured anew.

    A worker that outlived its coordinator for a moment may have written it when the next run had begun.
    """
    meta, response_ids, _ = shard_index(path)
    known = connection.execute(
        "SELECT count(*) FROM hidden_rows WHERE capture_id = ? AND list_contains(?::VARCHAR[], response_id)",
        [meta.capture_id, response_ids],
    ).fetchone()
    if known is not None and known[0] and path.parent.name == meta.capture_id:
        log.info("%s holds %d rows that are captured already; it is removed", path.name, known[0])
        path.unlink()
        return
    ingest.ingest_hidden_shard(connection, path)


def _end_killed_runs(ledger: LedgerWriter) -> None:
    """Runs that never said how they ended were killed: nobody else writes here now. What they noted is entered."""
    known = dict(ledger.rows("SELECT run_id, outcome FROM runs"))
    there = {path.parent.name for path in ledger.workspace.root.glob("runs/*/run.json")}
    open_runs = {run_id for run_id, outcome in known.items() if outcome is None}
    for run_id in sorted(open_runs | (there - known.keys())):  # a run may be killed before it is entered
        path = ledger.workspace.run(run_id) / "run.json"
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
            if body["outcome"] is None:
                write_text(path, json.dumps(body | {"outcome": "killed"}, indent=1, sort_keys=True))
        except (OSError, ValueError, TypeError, KeyError) as error:
            if run_id not in known:
                _move_aside(path, first_line(error))
                continue
            log.warning("%s cannot be read (%s); what that run noted is lost", path, first_line(error))
            ledger.call(lambda c, r=run_id: c.execute("UPDATE runs SET outcome = 'killed' WHERE run_id = ?", [r]))  # type: ignore[misc]
            continue
        _enter(ledger, path, lambda c, r=run_id: ingest.ingest_run(c, ledger.workspace, r))  # type: ignore[misc]


def _named_responses(ledger: LedgerWriter) -> set[str]:
    """The response shards that the ledger names, all of them whole."""
    folder = ledger.workspace.responses
    digests = FileDigests(ledger.workspace.cache / "digests.json")
    named = dict(ledger.rows("SELECT shard, sha256 FROM response_shards ORDER BY shard"))
    broken = [shard for shard, sha256 in named.items() if not digests.is_whole(folder / shard, sha256)]
    if broken:
        raise UserError(
            f"{folder}: {len(broken):,} of {len(named):,} shard{'s' if len(named) != 1 else ''} that the ledger names "
            f"{'are' if len(broken) != 1 else 'is'} gone or damaged, "
            f"{broken[0]} first. Put them back, or run `draftmill ledger rebuild`: their answers are then made again."
        )
    digests.save()
    return set(named)


def _named_hidden(ledger: LedgerWriter) -> set[tuple[str, str]]:
    """The hidden shards that the ledger names, less those that are forgotten here."""
    named = set()
    lost = []
    for capture, shard, size_bytes in ledger.rows("SELECT capture_id, shard, size_bytes FROM hidden_shards"):
        path = ledger.workspace.hidden(capture) / shard
        if path.is_file() and path.stat().st_size == size_bytes:
            named.add((capture, shard))
            continue
        lost.append((capture, shard))
        if path.is_file():
            _move_aside(path, f"{path.stat().st_size:,} bytes, expected {size_bytes:,}")

    def forget(connection: Connection) -> None:
        for table in ("hidden_rows", "hidden_shards"):
            connection.executemany(f"DELETE FROM {table} WHERE capture_id = ? AND shard = ?", lost)

    if lost:
        ledger.call(forget)
        count = len(lost)
        log.warning(
            "%d %s of hidden states gone or damaged; `draftmill extract` captures again what was in them",
            count,
            "shard" if count == 1 else "shards",
        )
    return named


def rebuild(ledger: LedgerWriter, checksums: Mapping[str, str] | None = None) -> dict[str, int]:
    """Fill an empty ledger from the workspace's files; returns how many of each kind.

    Args:
        checksums: what shards are known to be, by name; others are moved aside.
    """
    known = checksums or {}
    workspace = ledger.workspace
    for folder in sorted(workspace.root.glob("hidden/*/")):
        _describe_capture(folder)
    kinds: list[tuple[str, str, Callable[[Connection, Path], object]]] = [
        ("pools", "pools/*/pool.json", lambda c, p: ingest.ingest_pool(c, workspace, p.parent.name)),
        (
            "candidates",
            "candidates/*/candidates.json",
            lambda c, p: ingest.ingest_candidates(c, workspace, p.parent.name),
        ),
        ("builds", "builds/*/build.json", lambda c, p: _build(c, workspace, p)),
        ("response shards", "responses/*.parquet", ingest.ingest_response_shard),
        (
            "captures",
            "hidden/*/capture.json",
            lambda c, p: ingest.ingest_capture(c, workspace, p.parent.name),
        ),
        ("hidden shards", "hidden/*/*.safetensors", ingest.ingest_hidden_shard),
        (
            "drafters",
            "drafters/*/drafter.json",
            lambda c, p: ingest.ingest_drafter(c, workspace, p.parent.name),
        ),
        (
            "imports",
            "imports/*/import.json",
            lambda c, p: ingest.ingest_import(c, workspace, p.parent.name),
        ),
        ("runs", "runs/*/run.json", lambda c, p: ingest.ingest_run(c, workspace, p.parent.name)),
    ]
    counts = {}
    for kind, pattern, enter in kinds:
        paths = sorted(workspace.root.glob(pattern))
        for path in [path for path in paths if known.get(path.name) not in (None, sha256_file(path))]:
            _move_aside(path, "its checksum is another than when it was written")
            paths.remove(path)
        counts[kind] = sum(_enter(ledger, path, lambda c, e=enter, p=path: e(c, p)) for path in paths)  # type: ignore[misc]
    return counts


def rebuild_workspace(workspace: Workspace) -> dict[str, int]:
    """Put a ledger made from the files in the place of the one that is there; the old one stays as *.old.

    Raises:
        UserError: a run is writing there, or a file that describes an artefact cannot be read.
    """
    with workspace.coordinate("ledger rebuild"):
        refuse_held(workspace.ledger.absolute(), workspace)
        remove_temporaries(workspace.root)
        folder = temporary_path(workspace.root / "rebuild")
        folder.mkdir()
        try:
            made = LedgerWriter(workspace, folder / workspace.ledger.name)
            try:
                made.open()
                counts = rebuild(made, _checksums(workspace))
            finally:
                made.close()
            old = workspace.ledger.with_name(workspace.ledger.name + ".old")
            for suffix in (".wal", ""):
                path, kept = (one.with_name(one.name + suffix) for one in (workspace.ledger, old))
                kept.unlink(missing_ok=True)
                if path.exists():
                    path.replace(kept)
            (folder / workspace.ledger.name).replace(workspace.ledger)
            sync_path(workspace.root)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        writer = LedgerWriter(workspace)
        try:
            writer.open()
            writer.publish()
        finally:
            writer.close()
    return counts


def _checksums(workspace: Workspace) -> dict[str, str]:
    """SHA-256 of shards by name, as far as the ledger that is there, or else its snapshot, can still say."""
    import duckdb

    for path in (workspace.ledger, workspace.snapshot):
        if not path.is_file():
            continue
        try:
            with duckdb.connect(str(path.absolute()), read_only=True) as connection:
                found = connection.execute(
                    "SELECT shard, sha256 FROM response_shards UNION ALL SELECT shard, sha256 FROM hidden_shards"
                ).fetchall()
        except (duckdb.Error, OSError):
            continue
        return dict(found)
    return {}


def _describe_capture(folder: Path) -> None:
    """Write capture.json anew if it is gone or damaged: every shard of the capture says the same."""
    path = folder / "capture.json"
    try:
        if json.loads(path.read_text(encoding="utf-8"))["capture_id"] == folder.name:
            return
    except (OSError, ValueError, KeyError, TypeError):
        pass
    for shard in sorted(folder.glob("*.safetensors")):
        try:
            body = capture_body(shard)
        except DamagedError:
            continue
        write_text(path, json.dumps(body, indent=1, sort_keys=True))
        log.warning("%s was gone or damaged; it is made again from %s", path, shard.name)
        return


def _build(connection: Connection, workspace: Workspace, path: Path) -> None:
    ingest.ingest_build(connection, workspace, path.parent.name)
    ingest.ingest_response_plan(connection, workspace, path.parent.name)


def _enter(ledger: LedgerWriter, path: Path, job: Callable[[Connection], object]) -> int:
    try:
        ledger.call(job)
    except Exception:
        why = _damage(job)
        if why is None:  # the file is well: the disk is full, or the ledger is damaged
            raise
        _move_aside(path, why)
        return 0
    return 1


def _damage(job: Callable[[Connection], object]) -> str | None:
    """What is wrong with the files of a job, judged on a ledger of its own in memory; None if nothing is."""
    import duckdb

    with duckdb.connect() as connection:
        migrate(connection, "a ledger in memory")
        try:
            job(connection)
        except duckdb.OutOfMemoryException:
            return None
        except (duckdb.Error, DamagedError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            return first_line(error)
    return None


def _move_aside(path: Path, why: str) -> None:
    """Keep a damaged file under another name, and say what makes it again."""
    aside = path.with_name(path.name + ".damaged")
    path.replace(aside)
    maker = next((MADE_BY[part] for part in reversed(path.parts) if part in MADE_BY), None)
    again = f"; `draftmill {maker}` makes it again" if maker else ""
    log.warning("%s is damaged (%s); moved to %s%s", path, why, aside.name, again)
