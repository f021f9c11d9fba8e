"""Parquet and arrow files to pieces: files with a schema, whose parts and columns can be read alone.

The columns that `where` names are read first, and the others only where a row is left. A long parquet file is read
in a salted order of its row groups, because upstream order is sorted by subject. Every part is validated before
polars sees it: polars believes what arrow says, and invalid text would end the process.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import IO, TYPE_CHECKING

from corpus.arrow import take, to_frame
from corpus.errors import UserError
from corpus.pieces import BROKEN, PIECE_BYTES, PIECE_ROWS, Opened, Piece, SourceFile, file_kind, mask

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

ORDER_SALT = "draftmill row group order 1"
SHUFFLED_ROWS = 50_000  # a parquet file above this is read in a salted order of its row groups
LARGE_GROUP_BYTES = 64 << 20  # a row group above this is read in windows, below in as few reads as there are gaps
WINDOW_BYTES = 4 << 20
GLANCE_BYTES = 1 << 18  # a window where a few rows are wanted


def has_schema(file: SourceFile) -> bool:
    """True if the file's columns can be read alone."""
    kind = file_kind(file.name)
    return kind is not None and kind[0] in (".parquet", ".arrow")


def parquet_rows(files: Iterable[SourceFile]) -> int | None:
    """Rows of parquet files, as their footers count them; None if there are other files, or one is broken."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = 0
    for file in files:
        if file_kind(file.name) != (".parquet", ""):
            return None
        try:
            with file.open() as raw:
                rows += pq.read_metadata(raw).num_rows
        except (pa.ArrowException, *BROKEN, *file.errors):
            return None
    return rows


def read_parquet(opened: Opened) -> Iterator[Piece]:
    """Row group by row group; a damaged one is named, or its rows are bad rows and the next one is read."""
    import pyarrow as pa

    try:
        file = open_parquet(opened)
    except (pa.ArrowException, *BROKEN, *opened.file.errors) as error:
        yield Piece([], [], (1, 0), bad=opened.broken(range(1), "not a readable parquet file", error))
        return
    opened.refuse_twice(file.schema_arrow.names)
    lengths = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    starts = list(accumulate(lengths, initial=0))
    for number, group in enumerate(group_order(opened.file.name, lengths)):
        if number < opened.position[0]:
            continue
        row = opened.position[1] if number == opened.position[0] else 0
        try:
            for piece in _group_pieces(file, group, opened, starts[group], number, row):
                row = piece.position[1] or lengths[group]
                piece.last = piece.position == (len(lengths), 0)
                yield piece
        except (pa.ArrowException, *BROKEN, *opened.file.errors) as error:
            rows = range(starts[group] + row, starts[group] + lengths[group])
            what = f"row group {group} (rows {rows.start} to {rows.stop - 1}) cannot be read"
            yield Piece([], [], (number + 1, 0), bad=opened.broken(rows, what, error))


def open_parquet(opened: Opened) -> pq.ParquetFile:
    """A parquet file, read in windows where its row groups are large."""
    import pyarrow.parquet as pq

    raw: IO[bytes] = io.BytesIO(opened.stream().read()) if opened.compression else opened.raw
    metadata = pq.read_metadata(raw)
    size = max((metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups)), default=0)
    window = GLANCE_BYTES if opened.reading.piece_rows else WINDOW_BYTES if size > LARGE_GROUP_BYTES else 0
    return pq.ParquetFile(
        raw, metadata=metadata, pre_buffer=not window, buffer_size=window,
        page_checksum_verification=True,
    )  # fmt: skip


def group_order(name: str, lengths: list[int]) -> list[int]:
    """Row groups in the order in which they are read: of a long file a salted one, unlike the upstream order."""
    groups = range(len(lengths))
    if sum(lengths) <= SHUFFLED_ROWS:
        return list(groups)
    return sorted(groups, key=lambda i: hashlib.sha256(f"{ORDER_SALT}:{name}:{i}".encode()).hexdigest())


def _group_pieces(
    file: pq.ParquetFile, group: int, opened: Opened, first: int, number: int, row: int
) -> Iterator[Piece]:
    """Pieces of one row group from its row `row` on; `first` is its first row's place in the file."""
    import pyarrow as pa

    names = file.schema_arrow.names
    length, group_bytes = file.metadata.row_group(group).num_rows, file.metadata.row_group(group).total_byte_size
    kept = None
    if opened.reading.where is not None:
        asked = [name for name in _where_columns(opened.reading.where) if name in names]
        kept = _kept(file.read_row_group(group, columns=asked or names), opened)
        if all(one is False for one in kept):
            yield Piece([], [], (number + 1, 0), range(first + row, first + length))
            return
    begin = 0
    # a piece of long traces is short, whatever the file's row groups are
    size = min(opened.reading.piece_rows or PIECE_ROWS, max(1, PIECE_BYTES * 4 * length // max(1, group_bytes)))
    for batch in file.iter_batches(batch_size=size, row_groups=[group], columns=_wanted(names, opened)):
        end = begin + batch.num_rows
        if end > row:
            row = max(row, begin)
            part = pa.Table.from_batches([batch.slice(row - begin)])
            after = (number + 1, 0) if end == length else (number, end)
            yield _piece(part, opened, first + row, None if kept is None else kept[row:end], after)
        begin = end


def read_arrow(opened: Opened) -> Iterator[Piece]:
    """Batch by batch, of a stream (what `datasets` writes) or a file; behind a damaged batch nothing is read."""
    import pyarrow as pa

    first = number = 0
    (start, row), where = opened.position, opened.reading.where
    try:
        for batch in arrow_batches(opened):
            table = pa.Table.from_batches([batch])
            opened.refuse_twice(table.column_names)
            names = _wanted(table.column_names, opened)
            begin = row if number == start else 0
            size = opened.reading.piece_rows or PIECE_ROWS
            for at in range(begin, table.num_rows, size) if number >= start else ():
                part = table.slice(at, size)
                end = at + part.num_rows
                kept = None if where is None else _kept(part, opened)
                after = (number + 1, 0) if end == table.num_rows else (number, end)
                yield _piece(part.select(names), opened, first + at, kept, after)
            first += table.num_rows
            number += 1
    except (pa.ArrowException, *BROKEN, *opened.file.errors) as error:
        what = f"breaks off after row {first - 1}" if first else "not a readable arrow file"
        yield Piece([], [], (number + 1, 0), bad=opened.broken(range(first, first + 1), what, error))


def arrow_batches(opened: Opened) -> Iterator[pa.RecordBatch]:
    """The batches of an arrow stream or file, in order."""
    import pyarrow as pa

    stream = io.BytesIO(opened.stream().read()) if opened.compression else opened.stream()
    try:
        reader = pa.ipc.open_stream(stream)
    except pa.ArrowInvalid:
        stream.seek(0)
        whole = pa.ipc.open_file(stream)
        yield from (whole.get_batch(i) for i in range(whole.num_record_batches))
        return
    yield from reader


def _wanted(names: list[str], opened: Opened) -> list[str]:
    """Columns to read. A file with none of them is refused, or, where bad rows are skipped, its rows hold nothing."""
    columns = opened.reading.columns
    wanted = [name for name in names if columns is None or name in columns]
    if not wanted and names:
        if opened.reading.skip_bad:
            return names[:1]
        known = ", ".join(names[:12])
        raise UserError(
            f"{opened.at}: has none of the columns that the source's format looks at; columns are {known}. "
            f"Make it a source of its own with its format, or {opened.reading.to_skip}."
        )
    return wanted


def _where_columns(where: str) -> list[str]:
    import polars as pl

    try:
        return pl.sql_expr(where).meta.root_names()
    except pl.exceptions.PolarsError:
        return []  # the mask says what is wrong with it


Kept = list[bool | None]
"""For each row if `where` keeps it; None where it cannot be judged: a bad row."""


def _kept(table: pa.Table, opened: Opened) -> Kept:
    where = opened.reading.where or ""
    wrong = _not_text(table)
    if not wrong:
        return mask(to_frame(table), opened.at, where).to_list()
    good = [row for row in range(table.num_rows) if row not in wrong]
    kept = dict(zip(good, mask(to_frame(take(table, good)), opened.at, where), strict=True))
    return [kept.get(row) for row in range(table.num_rows)]


def _piece(table: pa.Table, opened: Opened, first: int, kept: Kept | None, after: tuple[int, int]) -> Piece:
    """A piece of a table whose row 0 is the file's row `first`."""
    places = range(table.num_rows)
    rows = [row for row in places if kept is None or kept[row]]
    left_out = [first + row for row in places if kept is not None and kept[row] is False]
    chosen = table if len(rows) == table.num_rows else take(table, rows)
    wrong = _not_text(chosen)
    unreadable = [rows[i] for i in wrong] + [row for row in places if kept is not None and kept[row] is None]
    if wrong:
        good = [i for i in range(len(rows)) if i not in wrong]
        chosen, rows = take(chosen, good), [rows[i] for i in good]
    values = list(to_frame(chosen).iter_rows(named=True)) if rows else []
    bad = [opened.bad(first + row, "not_utf8", "holds text that is not UTF-8") for row in sorted(unreadable)]
    return Piece(values, [first + row for row in rows], after, left_out, bad)


def _not_text(table: pa.Table) -> set[int]:
    """Rows that hold text that is not UTF-8.

    Raises:
        pa.ArrowException: the table is broken in another way.
    """
    import pyarrow as pa

    try:
        table.validate(full=True)
    except pa.ArrowInvalid:
        table.cast(pa.schema([field.with_type(_bytes_type(field.type)) for field in table.schema])).validate(full=True)
    else:
        return set()
    wrong, parts = set(), [range(table.num_rows)]
    while parts:
        part = parts.pop()
        try:
            take(table, list(part)).validate(full=True)
        except pa.ArrowInvalid:
            half = len(part) // 2
            if half:
                parts += [part[:half], part[half:]]
            else:
                wrong.add(part.start)
    return wrong


def _bytes_type(kind: pa.DataType) -> pa.DataType:
    """The type with bytes in the place of text."""
    import pyarrow as pa

    if pa.types.is_string(kind):
        return pa.binary()
    if pa.types.is_large_string(kind):
        return pa.large_binary()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_bytes_type(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_bytes_type(kind.value_type)))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_bytes_type(kind.value_type)))
    return kind
