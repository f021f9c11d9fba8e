"""Bringing a ledger up to its files: adoption at every start, and rebuild from nothing.

A killed process leaves whole files that no transaction named; they are adopted. A file that is not whole
cannot be one that draftmill finished writing, so it is moved aside with a line in the log, never deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from corpus.errors import UserError
from corpus.ledger import ingest
from corpus.ledger.writer import LedgerWriter
from corpus.workspace import Workspace

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection as Connection

log = logging.getLogger("draftmill")


def adopt(ledger: LedgerWriter) -> int:
    """Enter every finished file that the ledger does not name; returns how many."""
    workspace = ledger.workspace
    responses = {row[0] for row in ledger.rows("SELECT shard FROM response_shards")}
    hidden = {(row[0], row[1]) for row in ledger.rows("SELECT capture_id, shard FROM hidden_shards")}
    adopted = 0
    for path in sorted(workspace.responses.glob("*.parquet")):
        if path.name not in responses:
            adopted += _enter(ledger, path, lambda c, p=path: ingest.ingest_response_shard(c, p))  # type: ignore[misc]
    for path in sorted((workspace.root / "hidden").glob("*/*.safetensors")):
        if (path.parent.name, path.name) not in hidden:
            adopted += _enter(ledger, path, lambda c, p=path: ingest.ingest_hidden_shard(c, p))  # type: ignore[misc]
    if adopted:
        log.info("adopted %d finished files that an earlier run did not enter in the ledger", adopted)
    return adopted


def rebuild(ledger: LedgerWriter) -> dict[str, int]:
    """Fill an empty ledger from the workspace's files; returns how many of each kind."""
    workspace = ledger.workspace
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
        ("runs", "runs/*/run.json", lambda c, p: ingest.ingest_run(c, workspace, p.parent.name)),
    ]
    counts = {}
    for kind, pattern, enter in kinds:
        paths = sorted(workspace.root.glob(pattern))
        counts[kind] = sum(_enter(ledger, path, lambda c, e=enter, p=path: e(c, p)) for path in paths)  # type: ignore[misc]
    return counts


def rebuild_workspace(workspace: Workspace) -> dict[str, int]:
    """Put a ledger made from the files in the place of the one that is there; the old one stays as *.old.

    Raises:
        UserError: a run is writing there, or a file that describes an artefact cannot be read.
    """
    with workspace.coordinate("ledger rebuild"):
        old = workspace.ledger.with_name(workspace.ledger.name + ".old")
        if workspace.ledger.exists():
            workspace.ledger.replace(old)
        wal = workspace.ledger.with_name(workspace.ledger.name + ".wal")
        if wal.exists():
            wal.replace(old.with_name(old.name + ".wal"))
        writer = LedgerWriter(workspace)
        try:
            writer.open()
            counts = rebuild(writer)
            writer.publish()
        finally:
            writer.close()
    return counts


def _build(connection: Connection, workspace: Workspace, path: Path) -> None:
    ingest.ingest_build(connection, workspace, path.parent.name)
    ingest.ingest_response_plan(connection, workspace, path.parent.name)


def _enter(ledger: LedgerWriter, path: Path, job: Callable[[Connection], object]) -> int:
    import duckdb

    try:
        ledger.call(job)
    except (duckdb.Error, UserError, ValueError, KeyError) as error:
        if path.suffix not in (".parquet", ".safetensors"):
            raise UserError(f"{path}: cannot be entered in the ledger ({str(error).splitlines()[0]}).") from error
        aside = path.with_name(path.name + ".damaged")
        path.replace(aside)
        log.warning("%s is damaged (%s); moved to %s", path, str(error).splitlines()[0], aside.name)
        return 0
    return 1
