"""Files of a source to rows: parquet with polars, JSON lines one by one, JSON and CSV whole.

JSON lines are decoded row by row and never through one inferred schema: tool arguments have another type in
every row of real traces. `where` is judged by polars on the row's own columns (of JSON rows, on those that hold
plain values). Every failure is one line that names source, file and row.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import IO, TYPE_CHECKING, Any, cast

import msgspec

from corpus.errors import UserError, first_line

if TYPE_CHECKING:
    import polars as pl

BATCH_ROWS = 10_000
BLOCK_BYTES = 1 << 20
SUFFIXES = (".parquet", ".jsonl", ".ndjson", ".json", ".csv")
COMPRESSIONS = (".gz", ".zst")
BROKEN = (OSError, EOFError, zlib.error)  # how a file that ends or rots in the middle shows itself


@dataclass(frozen=True)
class SourceFile:
    """One file: its name as recorded (relative, never a path of one machine), and how to open it."""

    name: str
    open: Callable[[], IO[bytes]]
    errors: tuple[type[BaseException], ...] = ()
    """What its transport raises beside OSError."""


@dataclass
class ReadCounts:
    """Rows that `where` left out; filled while reading."""

    left_out: int = 0


def file_kind(name: str) -> tuple[str, str] | None:
    """(suffix, compression) of a file that can be read, else None."""
    lower = name.lower()
    compression = next((c for c in COMPRESSIONS if lower.endswith(c)), "")
    stem = lower.removesuffix(compression)
    suffix = next((s for s in SUFFIXES if stem.endswith(s)), None)
    return (suffix, compression) if suffix else None


def read_rows(
    file: SourceFile, source: str, where: str | None, counts: ReadCounts
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(row index, row) of every row that `where` keeps, in file order.

    Raises:
        UserError: the file cannot be read, a row is not JSON, or `where` does not fit the columns.
    """
    kind = file_kind(file.name)
    if kind is None:
        known = ", ".join(SUFFIXES)
        raise UserError(f"source {source}: {file.name}: files of this kind are not read; {known} (.gz, .zst) are.")
    at = f"source {source}: {file.name}"
    broken: tuple[type[BaseException], ...] = (*BROKEN, *file.errors)
    try:
        with file.open() as raw:
            if kind[0] in (".parquet", ".csv"):
                yield from _frame_rows(raw, kind, at, where, counts)
            else:
                lines = kind[0] in (".jsonl", ".ndjson")
                stream = _decompressed(raw, kind[1])
                rows = _json_lines(stream, at) if lines else _json_document(stream, at)
                yield from _where(rows, at, where, counts)
    except FileNotFoundError as error:
        raise UserError(f"{at}: no such file any more.") from error
    except broken as error:
        raise UserError(f"{at}: cannot be read to its end ({first_line(error)}). Fetch the file again.") from error


def _frame_rows(
    raw: IO[bytes], kind: tuple[str, str], at: str, where: str | None, counts: ReadCounts
) -> Iterator[tuple[int, dict[str, Any]]]:
    import polars as pl

    try:
        if kind[0] == ".parquet":
            frame = pl.read_parquet(_decompressed(raw, kind[1]).read() if kind[1] else raw, glob=False)
        else:
            frame = pl.read_csv(_decompressed(raw, kind[1]).read(), infer_schema=False)
    except (pl.exceptions.PolarsError, *BROKEN) as error:
        what = kind[0].lstrip(".")
        raise UserError(f"{at}: not a readable {what} file ({first_line(error)}). Fetch it again.") from error
    if not where:
        yield from enumerate(frame.iter_rows(named=True))
        return
    mask = _mask(frame, at, where)
    counts.left_out += frame.height - int(mask.sum())
    yield from zip(mask.arg_true(), frame.filter(mask).iter_rows(named=True), strict=True)


def _json_lines(stream: IO[bytes], at: str) -> Iterator[tuple[int, dict[str, Any]]]:
    number = -1
    try:
        for number, line in enumerate(stream):
            if line.strip():
                yield number, _json_row(line, at, number)
    except BROKEN as error:
        raise UserError(f"{at}: breaks off after row {number} ({first_line(error)}). Fetch the file again.") from error


def _json_row(line: bytes, at: str, number: int) -> dict[str, Any]:
    try:
        row = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            row = json.loads(line)  # accepts lone surrogates, which then are a drop and not a dead run
        except (ValueError, RecursionError) as error:
            raise UserError(
                f"{at}: row {number} (line {number + 1}) is not valid JSON "
                f"({getattr(error, 'msg', None) or first_line(error)}). Repair the row or remove it."
            ) from error
    if not isinstance(row, dict):
        raise UserError(f"{at}: row {number} holds {type(row).__name__}; an object is expected.")
    return row


def _json_document(stream: IO[bytes], at: str) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        document = json.loads(stream.read())
    except (ValueError, RecursionError) as error:
        raise UserError(f"{at}: not valid JSON ({first_line(error)}). One object a line belongs in .jsonl.") from error
    if isinstance(document, dict):
        lists = [value for value in document.values() if isinstance(value, list)]
        document = lists[0] if len(lists) == 1 else None
    if not isinstance(document, list) or not all(isinstance(row, dict) for row in document):
        raise UserError(f"{at}: holds no list of objects.")
    yield from enumerate(document)


def _where(
    rows: Iterator[tuple[int, dict[str, Any]]], at: str, where: str | None, counts: ReadCounts
) -> Iterator[tuple[int, dict[str, Any]]]:
    if where is None:
        yield from rows
        return
    import polars as pl

    while batch := list(islice(rows, BATCH_ROWS)):
        plain = [{k: _judged(v) for k, v in row.items() if not isinstance(v, dict | list)} for _, row in batch]
        frame = pl.DataFrame(plain, infer_schema_length=None, strict=False)
        mask = _mask(frame, at, where)
        counts.left_out += len(batch) - int(mask.sum())
        yield from (item for item, keep in zip(batch, mask, strict=True) if keep)


def _judged(value: Any) -> Any:
    """A plain value as polars can hold it: no lone surrogates, no integer beyond 128 bits."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return float(value) if isinstance(value, int) and value.bit_length() > 127 else value


def _mask(frame: pl.DataFrame, at: str, where: str) -> pl.Series:
    """True for each row that `where` keeps."""
    import polars as pl

    try:
        condition = pl.sql_expr(where)
        kind = frame.lazy().select(condition).collect_schema().dtypes()[0]
        if kind == pl.Boolean:
            mask = frame.with_columns(condition.fill_null(value=False).alias("__kept"))
            return mask["__kept"]
    except pl.exceptions.PolarsError as error:
        columns = ", ".join(frame.columns[:12])
        raise UserError(f"{at}: where: {first_line(error)[:300]}. Columns are {columns}.") from error
    raise UserError(f"{at}: where gives {kind}, a condition (true or false) is expected.")


def _decompressed(raw: IO[bytes], compression: str) -> IO[bytes]:
    if compression == ".gz":
        return cast(IO[bytes], gzip.GzipFile(fileobj=raw))
    if compression == ".zst":
        import pyarrow as pa

        # pyarrow's stream gives blocks and no lines
        return io.BufferedReader(pa.CompressedInputStream(pa.PythonFile(raw, "r"), "zstd"), BLOCK_BYTES)
    return raw
