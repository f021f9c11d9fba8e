"""What a reader of a source's files gives: rows in pieces, and what could not be read of them.

A piece says where reading can go on, so that a source is read as deep as it is needed and later from there. What
is wrong with a row or a part of a file is told here, once for all kinds of files: one line that names source, file
and row, or, where bad rows are skipped, a bad row of the piece. The way to the data (disk, network) failing is never
a bad row: what a network lost today is there tomorrow.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import IO, TYPE_CHECKING, Any, cast

from corpus.errors import UserError, first_line

if TYPE_CHECKING:
    import polars as pl

PIECE_ROWS = 10_000
PIECE_BYTES = 16 << 20
STEP_BYTES = 1 << 16
SUFFIXES = (".parquet", ".jsonl", ".ndjson", ".json", ".csv", ".arrow")
COMPRESSIONS = (".gz", ".zst")
BROKEN: tuple[type[BaseException], ...] = (OSError, EOFError, zlib.error)
"""How a file that ends or rots in the middle shows itself, and also how a disk or a network does."""

Position = tuple[int, int]
"""Where to go on in a file: (row group or batch, row in it), or for lines (row, byte of the text)."""
START: Position = (0, 0)


@dataclass(frozen=True)
class SourceFile:
    """One file: its name as recorded (relative, never a path of one machine), and how to open it.

    What is opened is read in ranges that the reader chooses: it needs no buffer of its own.
    """

    name: str
    open: Callable[[], IO[bytes]]
    errors: tuple[type[BaseException], ...] = ()
    """What its transport raises beside OSError."""
    explain: Callable[[BaseException], str] | None = None
    """What such an error means for a person, and the next step."""
    changed: Callable[[], bool] | None = None
    """True if it is no longer the file that the source's revision was made of."""


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be read. `row` is 0-based in its file."""

    row: int
    reason: str
    detail: str


@dataclass
class Piece:
    """Some rows of one file, in order, and where the next piece begins. Rows are named by their 0-based place."""

    rows: list[dict[str, Any]]
    indexes: Sequence[int]
    position: Position
    left_out: Sequence[int] = ()
    """Rows that `where` left out."""
    bad: list[BadRow] = field(default_factory=list)
    last: bool = False
    """True if nothing follows in the file, where that is known without reading on."""


SKIP_KEY = "set on_bad_row: skip"
"""How a manifest has bad rows skipped."""


@dataclass(frozen=True)
class Reading:
    """How a source is read."""

    source: str
    where: str | None = None
    skip_bad: bool = False
    columns: tuple[str, ...] | None = None
    """Of files that have a schema, the columns to read (those that the file has)."""
    piece_rows: int | None = None
    """Most rows of a piece of a file that has a schema; None is PIECE_ROWS."""
    to_skip: str = SKIP_KEY
    """What a person does so that bad rows are skipped, for the lines that say so."""


@dataclass(frozen=True)
class Opened:
    """A file that is being read."""

    raw: IO[bytes]
    compression: str
    file: SourceFile
    reading: Reading
    position: Position

    @property
    def at(self) -> str:
        """The beginning of a line for a person."""
        return f"{called(self.reading.source)}: {self.file.name}"

    def stream(self) -> IO[bytes]:
        """The file's bytes in order, decompressed."""
        buffered = self.raw
        if not isinstance(buffered, io.BufferedIOBase):
            buffered = io.BufferedReader(cast(Any, self.raw), 1 << 20)
        if self.compression == ".gz":
            return cast(IO[bytes], gzip.GzipFile(fileobj=buffered))
        if self.compression == ".zst":
            import pyarrow as pa

            return io.BufferedReader(_Steps(pa.CompressedInputStream(pa.PythonFile(buffered, "r"), "zstd")), STEP_BYTES)
        return buffered

    def torn(self, error: BaseException) -> bool:
        """True if the data are broken, and not the way to them."""
        lost: tuple[type[BaseException], ...] = (FileNotFoundError, ConnectionError, TimeoutError, *self.file.errors)
        return not isinstance(error, lost) and getattr(error, "errno", None) is None

    def bad(self, row: int, reason: str, detail: str) -> BadRow:
        """A bad row, where those are skipped.

        Raises:
            UserError: they are not.
        """
        if not self.reading.skip_bad:
            raise UserError(f"{self.at}: row {row} {detail}. Repair the row or remove it, or {self.reading.to_skip}.")
        return BadRow(row, reason, detail[:200])

    def broken(self, rows: range, what: str, error: BaseException) -> list[BadRow]:
        """Bad rows for a part of the file that cannot be read, where those are skipped.

        Raises:
            UserError: they are not, or the way to the data failed.
        """
        if not self.torn(error):
            raise UserError(f"{self.at}: {self.lost(error)}") from error
        if not self.reading.skip_bad:
            raise UserError(
                f"{self.at}: {what} ({first_line(error)[:200]}). Fetch the file again, or {self.reading.to_skip}."
            ) from error
        detail = f"{what}: {first_line(error)}"[:200]
        return [BadRow(row, "unreadable", detail) for row in rows]

    def refuse_twice(self, columns: Sequence[str]) -> None:
        """Refuse two columns of one name: nobody could say which of them is meant.

        Raises:
            UserError: naming the first such column.
        """
        twice = next((name for name, count in Counter(columns).items() if name and count > 1), None)
        if twice is not None:
            raise UserError(
                f"{self.at}: has {columns.count(twice)} columns named {twice}. Rename or remove one of them."
            )

    def lost(self, error: BaseException) -> str:
        """What it means for a person that the file cannot be reached."""
        if self.file.explain is not None:
            return self.file.explain(error)
        if isinstance(error, FileNotFoundError):
            return "no such file any more. Put it back, or change the source."
        return f"cannot be read ({getattr(error, 'strerror', None) or first_line(error)})."


class _Steps(io.RawIOBase):
    """A pyarrow stream read step by step: where it is torn, it gives nothing of the read in which that is seen."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        part = self._stream.read(min(len(buffer), STEP_BYTES))
        buffer[: len(part)] = part
        return len(part)


def called(source: str) -> str:
    """How a line for a person names a source; an evaluation set is read like one and is none."""
    return source if source.startswith("decontaminate.") else f"source {source}"


def file_kind(name: str) -> tuple[str, str] | None:
    """(suffix, compression) of a file that can be read, else None."""
    lower = name.lower()
    compression = next((c for c in COMPRESSIONS if lower.endswith(c)), "")
    stem = lower.removesuffix(compression)
    suffix = next((s for s in SUFFIXES if stem.endswith(s)), None)
    return (suffix, compression) if suffix else None


def row_pieces(rows: Iterator[tuple[int, dict[str, Any] | BadRow]], opened: Opened) -> Iterator[Piece]:
    """Pieces of rows that come one by one; a position is (row, 0)."""
    piece, indexes = Piece([], [], START), list[int]()
    for index, row in rows:
        if len(indexes) + len(piece.bad) >= PIECE_ROWS:
            piece.indexes, piece.position = indexes, (index, 0)
            yield judged(piece, opened)
            piece, indexes = Piece([], [], START), []
        if isinstance(row, BadRow):
            piece.bad.append(row)
        else:
            piece.rows.append(row)
            indexes.append(index)
    if indexes or piece.bad:
        piece.indexes, piece.last = indexes, True
        yield judged(piece, opened)


def judged(piece: Piece, opened: Opened) -> Piece:
    """The piece less what `where` leaves out. Lists and objects are JSON text there: they differ from row to row."""
    where = opened.reading.where
    if where is None or not piece.rows:
        return piece
    import polars as pl

    plain = [{_plain(k): _plain(v, asked=k in where) for k, v in row.items()} for row in piece.rows]
    keep = mask(pl.DataFrame(plain, infer_schema_length=None, strict=False), opened.at, where).to_list()
    rows = [row for row, kept in zip(piece.rows, keep, strict=True) if kept]
    indexes = [index for index, kept in zip(piece.indexes, keep, strict=True) if kept]
    left_out = [index for index, kept in zip(piece.indexes, keep, strict=True) if not kept]
    return replace(piece, rows=rows, indexes=indexes, left_out=left_out)


def _plain(value: Any, *, asked: bool = False) -> Any:
    """A value as polars can hold it: no lone surrogates, no integer beyond 128 bits, no list or object."""
    if isinstance(value, dict | list):
        value = json.dumps(value, ensure_ascii=False) if asked else None
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    return float(value) if isinstance(value, int) and value.bit_length() > 127 else value


def mask(frame: pl.DataFrame, at: str, where: str) -> pl.Series:
    """True for each row that `where` keeps.

    Raises:
        UserError: it is no condition on these columns.
    """
    import polars as pl

    try:
        condition = pl.sql_expr(where)
        kind = frame.lazy().select(condition).collect_schema().dtypes()[0]
        if kind == pl.Boolean:
            kept = frame.with_columns(condition.fill_null(value=False).alias("__kept"))
            return kept["__kept"]
    except pl.exceptions.PolarsError as error:
        columns = ", ".join(frame.columns[:12])
        raise UserError(f"{at}: where: {first_line(error)[:300]}. Columns are {columns}.") from error
    raise UserError(f"{at}: where gives {kind}, a condition (true or false) is expected.")
