"""Single rows of a source's files, by their number, without reading a file for them where its form allows that.

A file is offered to a reservoir row by row. Where rows can be counted cheaply (footers of parquet, batches of arrow,
line ends of plain JSON lines) places alone are offered, and only the chosen ones are read afterwards; of all else
(compressed files, csv, JSON documents) one pass offers the rows themselves. Lines are chosen by number, never by a
place in the bytes, so a long one is as likely as a short one. What was chosen is decoded by the readers of builds.

Bad rows are rows too: they are given as BadRow, with their reason. A file that breaks off is a UserError unless it is
skipped: its shares would be those of another corpus.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from corpus.arrow import take
from corpus.errors import UserError, first_line
from corpus.line_picks import BLOCK_BYTES, LineBlock, LineEnds, count_lines, line_blocks, pick_lines
from corpus.lines import UNDECODED
from corpus.pieces import BROKEN, PIECE_BYTES, PIECE_ROWS, START, BadRow, Opened, Reading, SourceFile, file_kind
from corpus.readers import read_pieces
from corpus.sampling import Reservoir
from corpus.tables import arrow_batches, open_parquet

if TYPE_CHECKING:
    import pyarrow as pa

LINES = (".jsonl", ".ndjson")
TABLES = (".parquet", ".arrow")
CUT = "unreadable"
"""The reason of rows that a file which breaks off does not give."""
BLANK = "blank_line"
"""Line ends are counted before lines are read, so a blank line can be chosen."""

Value = dict[str, Any] | BadRow


class Place(NamedTuple):
    """A row that is read later."""

    file: int
    row: int


class Held(NamedTuple):
    """A row of a file that is read once: a line that is not decoded yet, or its values."""

    file: int
    row: int
    value: bytes | Value


Item = Place | Held


@dataclass(frozen=True)
class Row:
    """One row: the number of its file, its 0-based place there, and what it holds."""

    file: int
    row: int
    value: Value


class RowFiles:
    """The files of a corpus, and what is known of where their rows lie."""

    def __init__(self, files: Sequence[SourceFile], at: str, *, skip_bad: bool) -> None:
        self.files = tuple(_as_lines(file, Reading(at)) for file in files)
        self.skip_bad = skip_bad
        self._reading = Reading(at, skip_bad=True)
        self._ends: dict[int, LineEnds] = {}
        """Of plain JSON lines, where lines end."""

    def offer(self, number: int, reservoir: Reservoir[Item]) -> None:
        """Offer every row of a file.

        Raises:
            UserError: the file cannot be read to its end, and bad ones are not skipped.
        """
        suffix, compression = self._kind(number)
        if suffix in LINES:
            offer = self._offer_compressed_lines if compression else self._offer_lines
        else:
            offer = self._offer_tables if suffix in TABLES and not compression else self._offer_rows
        broken, done = self._broken(number), reservoir.seen
        try:
            offer(number, reservoir)
        except broken as error:
            row = reservoir.seen - done
            bad = self._cut(number, row, first_line(error), error)
            reservoir.offer(1, lambda _: Held(number, row, bad))

    def fetch(self, items: Iterable[Item], columns: Callable[[int], frozenset[str] | None]) -> list[Row]:
        """The rows of some items, file by file; of tables only the columns that `columns` names for a file.

        Raises:
            UserError: as `offer`.
        """
        places: dict[int, list[int]] = {}
        lines: dict[int, list[Held]] = {}
        rows: list[Row] = []
        for item in items:
            if isinstance(item, Place):
                places.setdefault(item.file, []).append(item.row)
            elif isinstance(item.value, bytes):
                lines.setdefault(item.file, []).append(item)
            else:
                rows.append(Row(item.file, item.row, item.value))
        for number, held in lines.items():
            texts = [one.value for one in held if isinstance(one.value, bytes)]
            rows += self._decoded(number, [one.row for one in held], texts)
        for number, chosen in places.items():
            wanted = sorted(chosen)
            got: list[Row] = []
            try:
                for row in self._pick(number, wanted, columns):
                    got.append(row)  # one by one: what came before an error stays
            except self._broken(number) as error:
                there = {row.row for row in got}
                got += [
                    Row(number, row, self._cut(number, row, first_line(error), error)) for row in set(wanted) - there
                ]
            rows += got
        return rows

    def _pick(self, number: int, rows: Sequence[int], columns: Callable[[int], frozenset[str] | None]) -> Iterator[Row]:
        """Rows of a file that was counted, in order."""
        if self._kind(number)[0] in LINES:
            return self._pick_lines(number, rows)
        return self._pick_table(number, rows, columns(number))

    def is_table(self, number: int) -> bool:
        """True if a file's columns can be read alone."""
        return self._kind(number)[0] in TABLES

    def first_rows(self, number: int, count: int) -> list[dict[str, Any]]:
        """Some rows from where a file is read first."""
        reading = replace(self._reading, piece_rows=count)
        with closing(read_pieces(self.files[number], reading)) as pieces:
            return next((piece.rows[:count] for piece in pieces if piece.rows), [])

    def every(self, number: int, columns: frozenset[str] | None) -> Iterator[list[Row]]:
        """All rows of a file, in pieces.

        Raises:
            UserError: as `offer`.
        """
        reading = replace(self._reading, columns=None if columns is None else tuple(sorted(columns)))
        for piece in read_pieces(self.files[number], reading):
            rows = [Row(number, row, value) for row, value in zip(piece.indexes, piece.rows, strict=True)]
            yield rows + [Row(number, bad.row, self._checked(number, bad)) for bad in piece.bad]

    def _kind(self, number: int) -> tuple[str, str]:
        kind = file_kind(self.files[number].name)
        assert kind is not None  # corpus.sources gives no other files
        return kind

    def _broken(self, number: int) -> tuple[type[BaseException], ...]:
        import pyarrow as pa

        return (pa.ArrowException, *BROKEN, *self.files[number].errors)

    def _opened(self, number: int, raw: IO[bytes]) -> Opened:
        return Opened(raw, self._kind(number)[1], self.files[number], self._reading, START)

    def _cut(self, number: int, row: int, why: str, error: BaseException) -> BadRow:
        """A bad row for what a file does not give, where that is skipped."""
        opened = self._opened(number, io.BytesIO())
        if not opened.torn(error):
            raise UserError(f"{opened.at}: {opened.lost(error)}") from error
        return self._checked(number, BadRow(row, CUT, f"breaks off in row {row}: {why}"[:200]))

    def _checked(self, number: int, bad: BadRow) -> BadRow:
        if bad.reason == CUT and not self.skip_bad:
            raise UserError(
                f"{self._opened(number, io.BytesIO()).at}: {bad.detail}. Fetch the file again, or add --skip-bad."
            )
        return bad

    # JSON lines

    def _offer_lines(self, number: int, reservoir: Reservoir[Item]) -> None:
        with self.files[number].open() as raw:
            self._ends[number] = count_lines(raw)
        reservoir.offer(self._ends[number].lines, lambda row: Place(number, row))

    def _offer_compressed_lines(self, number: int, reservoir: Reservoir[Item]) -> None:
        """Lines that can only be read in order: those that are taken are kept as they are."""
        row = 0
        with self.files[number].open() as raw:
            for lines in line_blocks(self._opened(number, raw).stream()):
                reservoir.offer(len(lines), partial(_held_line, number, row, lines))
                row += len(lines)

    def _pick_lines(self, number: int, rows: Sequence[int]) -> Iterator[Row]:
        with self.files[number].open() as raw:
            yield from self._decoded(number, rows, pick_lines(raw, self._ends[number], rows))

    def _decoded(self, number: int, rows: Sequence[int], lines: Iterable[bytes]) -> Iterator[Row]:
        """Lines through the reader of JSON lines, one by one: all of them beside their rows would be held twice."""
        for row, line in zip(rows, lines, strict=True):
            if not line.strip():
                yield Row(number, row, BadRow(row, BLANK, ""))
                continue
            text = line if line.endswith(b"\n") else line + b"\n"
            alone = replace(self.files[number], name="line.jsonl", open=partial(io.BytesIO, text))
            for piece in read_pieces(alone, self._reading, (row, 0)):
                yield from (Row(number, row, value) for value in piece.rows)
                yield from (Row(number, row, bad) for bad in piece.bad)

    # tables

    def _offer_tables(self, number: int, reservoir: Reservoir[Item]) -> None:
        with self.files[number].open() as raw:
            opened = self._opened(number, raw)
            if self._kind(number)[0] == ".parquet":
                import pyarrow.parquet as pq

                rows = pq.read_metadata(raw).num_rows
            else:
                rows = sum(batch.num_rows for batch in arrow_batches(opened))
        reservoir.offer(rows, lambda row: Place(number, row))

    def _pick_table(self, number: int, rows: Sequence[int], columns: frozenset[str] | None) -> Iterator[Row]:
        """Rows of a parquet or arrow file: what holds none of them is passed over, the others are taken from it."""
        import pyarrow as pa

        with self.files[number].open() as raw:
            opened = self._opened(number, raw)
            parts = _parquet_parts if self._kind(number)[0] == ".parquet" else _arrow_parts
            for first, table in parts(opened, rows, columns):
                inside = [row for row in rows if first <= row < first + table.num_rows]
                if not inside:
                    continue
                chosen = take(table, [row - first for row in inside])
                data = io.BytesIO()
                with pa.ipc.new_stream(data, chosen.schema) as writer:
                    writer.write_table(chosen)
                alone = SourceFile("rows.arrow", partial(io.BytesIO, data.getvalue()))
                for piece in read_pieces(alone, self._reading):
                    for i, value in zip(piece.indexes, piece.rows, strict=True):
                        yield Row(number, inside[i], value)
                    for bad in piece.bad:
                        row = inside[min(bad.row, len(inside) - 1)]
                        yield Row(number, row, self._checked(number, replace(bad, row=row)))

    # everything else

    def _offer_rows(self, number: int, reservoir: Reservoir[Item]) -> None:
        for rows in self.every(number, None):
            reservoir.offer(len(rows), lambda i, rows=rows: Held(number, rows[i].row, rows[i].value))  # type: ignore[misc]


def _held_line(number: int, row: int, lines: LineBlock, i: int) -> Item:
    return Held(number, row + i, lines.line(i))


def _parquet_parts(
    opened: Opened, rows: Sequence[int], columns: frozenset[str] | None
) -> Iterator[tuple[int, pa.Table]]:
    """(its first row, a table) for the parts of those row groups that hold one of the rows."""
    import pyarrow as pa

    file = open_parquet(opened)
    names = [name for name in file.schema_arrow.names if columns is None or name in columns]
    wanted, first = np.asarray(rows), 0
    for group in range(file.num_row_groups):
        about = file.metadata.row_group(group)
        inside = wanted[(wanted >= first) & (wanted < first + about.num_rows)]
        if len(inside):
            size = min(PIECE_ROWS, max(1, PIECE_BYTES * about.num_rows // max(1, about.total_byte_size)))
            at = first
            for batch in file.iter_batches(
                batch_size=size, row_groups=[group], columns=names or file.schema_arrow.names[:1]
            ):
                yield at, pa.Table.from_batches([batch])
                at += batch.num_rows
                if at > inside[-1]:
                    break
        first += about.num_rows


def _arrow_parts(opened: Opened, rows: Sequence[int], columns: frozenset[str] | None) -> Iterator[tuple[int, pa.Table]]:
    import pyarrow as pa

    first = 0
    for batch in arrow_batches(opened):
        if first > rows[-1]:
            return
        table = pa.Table.from_batches([batch])
        names = [name for name in table.column_names if columns is None or name in columns]
        yield first, table.select(names or table.column_names[:1])
        first += batch.num_rows


def _as_lines(file: SourceFile, reading: Reading) -> SourceFile:
    """A file that is called .json and holds one object a line, as one of JSON lines: many are."""
    kind = file_kind(file.name)
    if kind is None or kind[0] != ".json":
        return file
    broken: tuple[type[BaseException], ...] = (*UNDECODED, *BROKEN, *file.errors)
    try:
        with file.open() as raw:
            head = Opened(raw, kind[1], file, reading, START).stream().read(BLOCK_BYTES)
        line, _, rest = head.lstrip(b"\r\n \t").partition(b"\n")
        lines = isinstance(msgspec.json.decode(line), dict) and rest.lstrip()[:1] == b"{"
    except broken:
        return file  # what is wrong with it the reader says
    return replace(file, name=f"{file.name.removesuffix(kind[1])}l{kind[1]}") if lines else file
