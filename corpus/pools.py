"""Pools: the rows of one source, normalised once, in append-only chunks.

A chunk is some tens of thousands of rows, from one file or several small ones. A pool is found again by its
identity, so a changed share re-reads nothing; it deepens by further chunks and never changes the ones it has. A row
that holds no prompt stays as a row with its reason, so that read = kept + dropped can be counted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from corpus.artefacts import read_description, write_atomically, write_description
from corpus.chunks import RECOGNISED_ROWS, Collected, Shape, chunk_schema
from corpus.identity import pool_id
from corpus.manifest import Source
from corpus.pieces import SKIP_KEY, START, Piece, Position, Reading, SourceFile
from corpus.readers import read_pieces
from corpus.sources import FileDigests, ResolvedSource
from corpus.tables import has_schema, parquet_rows
from corpus.workspace import Workspace

if TYPE_CHECKING:
    import polars as pl

log = logging.getLogger("draftmill")

Ended = Literal["everything", "limit"]
SCHEMA_VERSION = 2
CHUNK_ROWS = 50_000
CHUNK_BYTES = 256 << 20  # of shown text: agent traces are long
POOL_KEYS = {
    "dataset", "config", "split", "revision", "format", "main_column", "license", "where", "limit", "complete",
    "trust_remote_code", "rows_total", "rows_unread",
}  # fmt: skip
CHUNK_KEYS = {"files", "rows", "left_out", "sha256", "formats", "reasons", "next"}


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


@dataclass
class PoolReader:
    """Reads one source into its pool, and only what is missing there."""

    workspace: Workspace
    resolved: ResolvedSource
    digests: FileDigests
    skip_bad: bool = False
    report: Callable[[str], None] = lambda text: None
    to_skip: str = SKIP_KEY
    """What a person does so that bad rows are skipped."""

    @property
    def pool_id(self) -> str:
        """Identity of the pool."""
        files = [file.name for file in self.resolved.files]
        return pool_id(self.resolved.source, self.resolved.revision, files, self.skip_bad)

    @property
    def folder(self) -> Path:
        """Where the pool lies."""
        return self.workspace.pool(self.pool_id)

    def read(self, chunks: int | None) -> Pool:
        """A pool of at least `chunks` chunks, or all that there are (None); only what is missing or damaged is read.

        Raises:
            UserError: a file cannot be read, or its rows have no known shape.
        """
        body = self._known() or self._empty()
        if body["license"] != self.resolved.license:  # no part of the pool's identity, and declared anew
            body |= {"license": self.resolved.license}
            self._describe(body)
        have: list[dict[str, Any]] = list(body["chunks"])
        rows = sum(chunk["rows"] for chunk in have)
        file, *position = have[-1]["next"] if have else (0, *START)
        shape = Shape(self.resolved.source, body["format"], body["main_column"], self.to_skip)
        with closing(self._pieces(file, (position[0], position[1]), shape)) as pieces:
            while not body["complete"] and (chunks is None or len(have) < chunks):
                room = None if self.resolved.source.limit is None else self.resolved.source.limit - rows
                chunk, ended = self._read_chunk(len(have), pieces, shape, room)
                if chunk is not None:
                    have.append(chunk)
                    rows += chunk["rows"]
                body |= {"chunks": have, "complete": ended is not None, **self._totals(have, ended)}
                body |= {"format": shape.recorded, "main_column": shape.main}
                self._describe(body)
        used = have if chunks is None else have[:chunks]
        return Pool(
            self.pool_id, self.resolved.source, self.resolved.license, tuple(used),
            body["complete"] and len(used) == len(have), self._known_rows(have),
        )  # fmt: skip

    def _describe(self, body: dict[str, Any]) -> None:
        """Write pool.json, unless a dry run beside this one has read the same chunks and more."""
        path = self.folder / "pool.json"
        with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            there = read_description(path)
            have = body["chunks"]
            if len(there["chunks"]) > len(have) and there["chunks"][: len(have)] == have:
                return
        write_description(path, body)

    def _totals(self, have: list[dict[str, Any]], ended: Ended | None) -> dict[str, int | None]:
        """Rows that the source has, and of these the rows that its limit leaves unread; None where nobody knows."""
        looked_at = sum(chunk["rows"] + chunk["left_out"] for chunk in have)
        if ended == "everything":
            return {"rows_total": looked_at, "rows_unread": 0}
        total = self.resolved.rows
        if ended == "limit" and not self.resolved.streamed:
            total = parquet_rows(self.resolved.files)
        unread = total - looked_at if ended and total is not None and total >= looked_at else None
        return {"rows_total": total, "rows_unread": unread}

    def _known_rows(self, have: list[dict[str, Any]]) -> int | None:
        if self.resolved.rows is not None or not self.resolved.streamed or not have:
            return self.resolved.rows
        # a weight that grew with the depth would reorder what smaller builds took: the first chunk speaks for all
        first = have[0]
        file, group, row = first["next"]
        whole = file if (group, row) == START else file + 1
        return int(first["rows"] * len(self.resolved.files) / max(1, whole))

    def _empty(self) -> dict[str, Any]:
        source = self.resolved.source
        return {
            "schema_version": SCHEMA_VERSION,
            "pool_id": self.pool_id,
            "dataset": source.dataset or source.path,
            "config": source.config,
            "split": self.resolved.split,
            "revision": self.resolved.revision,
            "format": None,
            "main_column": None,
            "where": source.where,
            "limit": source.limit,
            "trust_remote_code": source.trust_remote_code,
            "license": self.resolved.license,
            "files": len(self.resolved.files),
            "chunks": [],
            "complete": False,
            "rows_total": None,
            "rows_unread": None,
        }

    def _known(self) -> dict[str, Any] | None:
        """What pool.json says, cut before the first chunk that is not what was written; None to read from the start.

        A pool is its identity's rows, so what is read again is what was there.
        """
        path = self.folder / "pool.json"
        try:
            body = read_description(path)
            chunks = list(body["chunks"])
            keys = body.keys() >= POOL_KEYS and all(chunk.keys() >= CHUNK_KEYS for chunk in chunks)
            if body["pool_id"] != self.pool_id or not keys:
                raise KeyError("it is of another pool")
            sums = [
                (str(c["sha256"]), int(c["rows"]) + int(c["left_out"]), [int(i) for i in c["next"]]) for c in chunks
            ]
            Shape(self.resolved.source, body["format"], body["main_column"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError):
            log.warning("%s is damaged; the source is read again", path)
            return None
        for number, (sha256, _, _) in enumerate(sums):
            if not self.digests.is_whole(self.folder / f"{number}.parquet", sha256):
                log.warning("%s is missing or damaged; it is read again", self.folder / f"{number}.parquet")
                return body | {"chunks": chunks[:number], "complete": False, "rows_unread": None}
        return body

    def _pieces(self, first: int, position: Position, shape: Shape) -> Generator[tuple[str, Piece, list[int]]]:
        """(file, piece, where to go on after it) from a place on; one generator serves many chunks."""
        files = self.resolved.files
        for number in range(first, len(files)):
            file, start = files[number], position if number == first else START
            fresh = start == START and not self.skip_bad
            with closing(read_pieces(file, self._reading(file, shape), start)) as read:
                for piece in read:
                    if fresh and piece.rows:
                        shape.refuse_change(piece.rows, file.name)
                        fresh = False
                    yield file.name, piece, [number + 1, *START] if piece.last else [number, *piece.position]

    def _reading(self, file: SourceFile, shape: Shape) -> Reading:
        """How a file is read. Its first rows say which columns are worth reading, where the format is not known yet."""
        source = self.resolved.source
        reading = Reading(source.name, source.where, self.skip_bad, shape.columns, to_skip=self.to_skip)
        if shape.form is not None or not has_schema(file):
            return reading
        rows: list[dict[str, Any]] = []
        with closing(read_pieces(file, replace(reading, piece_rows=RECOGNISED_ROWS))) as read:
            for piece in read:
                rows += piece.rows
                if len(rows) >= RECOGNISED_ROWS or (rows and piece.position[0]):
                    break
        if rows:
            shape.recognise(rows, file.name)
        return replace(reading, columns=shape.columns)

    def _read_chunk(
        self, number: int, pieces: Iterator[tuple[str, Piece, list[int]]], shape: Shape, room: int | None
    ) -> tuple[dict[str, Any] | None, Ended | None]:
        """(the next chunk or None at the end, why nothing is left after it)."""
        import polars as pl

        collected = Collected(shape, room)
        end = [len(self.resolved.files), *START]
        after = end
        for file, piece, then in pieces:
            collected.add(piece, file)
            self.report(f"reading {self.resolved.source.name}: {number * CHUNK_ROWS + collected.rows:,} rows")
            if collected.room == 0 or collected.rows >= CHUNK_ROWS or collected.shown_chars >= CHUNK_BYTES:
                after = then
                break
        ended: Ended | None = "everything" if after == end and not collected.cut else None
        if ended is None and collected.room == 0:
            ended = "limit"
        if not collected.rows and not collected.left_out:
            return None, "everything"
        frame = collected.frame()
        path = self.folder / f"{number}.parquet"
        metadata = {"schema_version": str(SCHEMA_VERSION)}
        written = write_atomically(path, lambda to: frame.write_parquet(to, compression_level=1, metadata=metadata))
        self.digests.remember(path, written.sha256)
        return {
            "files": collected.files,
            "rows": frame.height,
            "left_out": collected.left_out,
            "size_bytes": written.size_bytes,
            "sha256": written.sha256,
            "formats": _counts(frame.filter(pl.col("reason").is_null())["format"]),
            "reasons": _counts(frame["reason"]),
            "next": after,
        }, ended


def _counts(values: pl.Series) -> dict[str, int]:
    """How often each value is there."""
    return dict(sorted(values.drop_nulls().value_counts().iter_rows()))


def load_chunks(workspace: Workspace, pool: Pool, columns: list[str] | None = None) -> pl.DataFrame:
    """Rows of the chunks that `pool` names, with a chunk column; all columns, or some."""
    import polars as pl

    kinds = chunk_schema()
    empty = pl.DataFrame(schema={name: kinds[name] for name in columns or kinds})  # of a source without a row
    frames = [(0, empty), *each_chunk(workspace, pool, columns)]
    return pl.concat(frame.with_columns(chunk=pl.lit(number, pl.Int32)) for number, frame in frames)


def each_chunk(
    workspace: Workspace, pool: Pool, columns: list[str] | None = None
) -> Iterator[tuple[int, pl.DataFrame]]:
    """(number, rows) of each chunk that `pool` names."""
    for number in range(len(pool.chunks)):
        yield number, read_chunk(workspace, pool, number, columns)


def read_chunk(workspace: Workspace, pool: Pool, number: int, columns: list[str] | None) -> pl.DataFrame:
    """Rows of one chunk; all columns, or some."""
    import polars as pl

    return pl.read_parquet(workspace.pool(pool.pool_id) / f"{number}.parquet", columns=columns, glob=False)
