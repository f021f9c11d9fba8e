"""Pools: the rows of one source, normalised once, in append-only chunks.

A chunk is one file of the source. A pool is found again by its identity, so a changed share re-reads nothing; it
deepens by further chunks and never changes the ones it has. A row that holds no prompt stays as a row with its
reason, so that read = kept + dropped can be counted.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corpus.artefacts import write_atomically, write_text
from corpus.errors import RowError, UserError
from corpus.formats import parse_row, recognise, upstream_id
from corpus.identity import pool_id
from corpus.manifest import CategoryByColumn, FormatFields, Source
from corpus.readers import ReadCounts, read_rows
from corpus.records import encode_messages, likeness_key
from corpus.sources import FileDigests, ResolvedSource
from corpus.workspace import Workspace

if TYPE_CHECKING:
    import polars as pl

log = logging.getLogger("draftmill")

SCHEMA_VERSION = 1
POOL_KEYS = {
    "dataset", "config", "split", "revision", "format", "license", "where", "limit", "complete", "trust_remote_code"
}  # fmt: skip
CHUNK_KEYS = {"file", "rows", "left_out", "sha256"}


@dataclass(frozen=True)
class Pool:
    """What has been read of one source."""

    pool_id: str
    source: Source
    license: str | None
    chunks: tuple[dict[str, Any], ...]
    complete: bool
    known_rows: int | None

    @property
    def rows(self) -> int:
        """Rows read, drops included."""
        return sum(chunk["rows"] for chunk in self.chunks)

    def weight(self) -> float:
        """The source's weight: declared, or the rows that it has."""
        return self.source.weight or float(self.known_rows or self.rows or 1)


def read_pool(workspace: Workspace, resolved: ResolvedSource, chunks: int, digests: FileDigests | None = None) -> Pool:
    """A pool of at least `chunks` chunks, or all that there are; only what is missing or damaged is read.

    Raises:
        UserError: a file cannot be read, or its rows have no known shape.
    """
    source = resolved.source
    identity = pool_id(source, resolved.revision, [file.name for file in resolved.files])
    folder = workspace.pool(identity)
    digests = digests or FileDigests(workspace.cache / "digests.json")
    body = _known(folder, identity, digests)
    if body is None:
        body = {
            "schema_version": SCHEMA_VERSION,
            "pool_id": identity,
            "dataset": source.dataset or source.path,
            "config": source.config,
            "split": source.split if source.dataset else None,
            "revision": resolved.revision,
            "format": None,
            "where": source.where,
            "limit": source.limit,
            "trust_remote_code": source.trust_remote_code,
            "license": resolved.license,
            "files": len(resolved.files),
            "chunks": [],
            "complete": False,
        }
    have: list[dict[str, Any]] = list(body["chunks"])
    while not body["complete"] and len(have) < chunks:
        rows_before = sum(chunk["rows"] for chunk in have)
        body["format"], chunk = _read_chunk(folder, resolved, len(have), body["format"], rows_before)
        digests.remember(folder / f"{len(have)}.parquet", chunk["sha256"])
        have.append(chunk)
        full = source.limit is not None and rows_before + chunk["rows"] >= source.limit
        body |= {"chunks": have, "complete": full or len(have) == len(resolved.files)}
        write_text(folder / "pool.json", json.dumps(body, indent=1, sort_keys=True))
    used = have[:chunks]
    known_rows = resolved.rows
    if known_rows is None and source.dataset:
        # a weight that grew with the depth would reorder what smaller builds took
        known_rows = have[0]["rows"] * len(resolved.files)
    return Pool(
        identity, source, resolved.license, tuple(used), body["complete"] and len(used) == len(have), known_rows
    )


def load_chunks(workspace: Workspace, pool: Pool) -> pl.DataFrame:
    """All rows of the chunks that `pool` names, with chunk and file columns."""
    import polars as pl

    frames = [
        pl.read_parquet(workspace.pool(pool.pool_id) / f"{number}.parquet", glob=False).with_columns(
            chunk=pl.lit(number, pl.Int32), file=pl.lit(chunk["file"])
        )
        for number, chunk in enumerate(pool.chunks)
    ]
    return pl.concat(frames)


def chunk_schema() -> dict[str, Any]:
    """Columns of a chunk: one schema for every source."""
    import polars as pl

    return {
        "row_index": pl.Int64,
        "upstream_id": pl.String,
        "upstream_label": pl.String,
        "prompt_id": pl.String,
        "likeness": pl.String,
        "messages": pl.String,
        "tools": pl.String,
        "turns": pl.Int32,
        "prompt_chars": pl.Int64,
        "reason": pl.String,
        "detail": pl.String,
    }


def _known(folder: Path, identity: str, digests: FileDigests) -> dict[str, Any] | None:
    """What pool.json says, cut before the first chunk that is not what was written; None to read from the start.

    A pool is its identity's rows, so what is read again is what was there.
    """
    try:
        body: dict[str, Any] = json.loads((folder / "pool.json").read_text())
        chunks = list(body["chunks"])
        if body["pool_id"] != identity or not all(body.keys() >= POOL_KEYS and c.keys() >= CHUNK_KEYS for c in chunks):
            raise KeyError("it is of another pool")
        sums = [(str(chunk["sha256"]), int(chunk["rows"]) + int(chunk["left_out"])) for chunk in chunks]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError):
        log.warning("%s is damaged; the source is read again", folder / "pool.json")
        return None
    for number, (sha256, _) in enumerate(sums):
        if not digests.is_whole(folder / f"{number}.parquet", sha256):
            log.warning("%s is missing or damaged; it is read again", folder / f"{number}.parquet")
            return body | {"chunks": chunks[:number], "complete": False}
    return body


def _read_chunk(
    folder: Path, resolved: ResolvedSource, number: int, form: Any, rows_before: int
) -> tuple[Any, dict[str, Any]]:
    import polars as pl

    source, file = resolved.source, resolved.files[number]
    counts = ReadCounts()
    used: str | FormatFields | None = FormatFields(**form) if isinstance(form, dict) else form
    if used is None and source.format != "auto":
        used = source.format
    columns: dict[str, list[Any]] = {name: [] for name in chunk_schema()}
    room = None if source.limit is None else source.limit - rows_before
    missing, seen = _named_columns(source), set[str]()
    for row_index, row in read_rows(file, source.name, source.where, counts):
        if room is not None and len(columns["row_index"]) >= room:
            break
        if used is None:
            try:
                used = recognise(list(row), row)
            except RowError as error:
                raise UserError(
                    f"source {source.name}: {file.name}: no known format ({error.detail}). "
                    "Say which: format: {fields: {prompt: COLUMN}}."
                ) from error
        if missing:
            missing -= row.keys()
            seen |= row.keys()
        for name, value in _row_values(row_index, row, used, source).items():
            columns[name].append(value)
    if missing and seen:
        known = ", ".join(sorted(seen)[:12])
        raise UserError(
            f"source {source.name}: {file.name}: no row has the column {min(missing)} that the manifest names; "
            f"columns are {known}."
        )
    frame = pl.DataFrame(columns, schema=chunk_schema())
    written = write_atomically(
        folder / f"{number}.parquet",
        lambda path: frame.write_parquet(path, compression_level=1, metadata={"schema_version": str(SCHEMA_VERSION)}),
    )
    recorded = used.model_dump() if isinstance(used, FormatFields) else used
    return recorded, {
        "file": file.name,
        "rows": frame.height,
        "left_out": counts.left_out,
        "size_bytes": written.size_bytes,
        "sha256": written.sha256,
    }


def _named_columns(source: Source) -> set[str]:
    """Columns that the manifest names: not one row without them is a mistake in the manifest."""
    named = {source.category.column} if isinstance(source.category, CategoryByColumn) else set()
    if isinstance(source.format, FormatFields):
        named |= {column for what, column in source.format.fields.items() if what in ("prompt", "messages")}
    return named


def _row_values(row_index: int, row: dict[str, Any], form: str | FormatFields, source: Source) -> dict[str, Any]:
    values: dict[str, Any] = dict.fromkeys(chunk_schema())
    values["row_index"] = row_index
    values["upstream_id"] = _storable(upstream_id(row, form))
    if isinstance(source.category, CategoryByColumn):
        label = row.get(source.category.column)
        values["upstream_label"] = None if label is None else _storable(str(label))
    try:
        prompt = parse_row(row, form, source.history)
        values["prompt_id"] = prompt.prompt_id
        values["messages"], values["tools"] = encode_messages(prompt)
        values["likeness"] = likeness_key(prompt)
        values["turns"] = prompt.turns
        values["prompt_chars"] = len(prompt.shown_text())
    except RowError as error:
        values |= dict.fromkeys(("prompt_id", "messages", "tools", "likeness"))
        values["reason"], values["detail"] = error.reason, _storable(error.detail)
    return values


def _storable(text: str | None) -> str | None:
    return None if text is None else text.encode("utf-8", "replace").decode("utf-8")
