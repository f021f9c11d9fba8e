"""Files of a source to rows, in pieces: one reader a kind of file, in any compression.

Tables (parquet, arrow) are read by row group or batch, JSON lines block by block, csv row by row; a JSON document
is read whole. Nothing is inferred over rows: tool arguments have another type in every row of real traces.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator

from corpus.errors import UserError
from corpus.lines import read_csv, read_document, read_lines
from corpus.pieces import (
    BROKEN,
    COMPRESSIONS,
    START,
    SUFFIXES,
    BadRow,
    Opened,
    Piece,
    Position,
    Reading,
    SourceFile,
    file_kind,
)
from corpus.tables import read_arrow, read_parquet

__all__ = [
    "COMPRESSIONS", "START", "SUFFIXES", "BadRow", "Piece", "Position", "Reading", "SourceFile", "file_kind",
    "read_pieces",
]  # fmt: skip

READERS: dict[str, Callable[[Opened], Iterator[Piece]]] = {
    ".parquet": read_parquet,
    ".arrow": read_arrow,
    ".jsonl": read_lines,
    ".ndjson": read_lines,
    ".json": read_document,
    ".csv": read_csv,
}


def read_pieces(file: SourceFile, reading: Reading, position: Position = START) -> Generator[Piece]:
    """The rows of a file that `where` keeps, from a position on.

    Raises:
        UserError: the file or a row cannot be read (unless bad rows are skipped), or `where` does not fit the columns.
    """
    kind = file_kind(file.name)
    if kind is None:
        known = f"{', '.join(SUFFIXES)} ({', '.join(COMPRESSIONS)})"
        raise UserError(f"source {reading.source}: {file.name}: files of this kind are not read; {known} are.")
    done = position
    caught: tuple[type[BaseException], ...] = (*BROKEN, *file.errors)
    try:
        with file.open() as raw:
            for piece in READERS[kind[0]](Opened(raw, kind[1], file, reading, position)):
                done = piece.position
                _refuse_changed(file, reading)
                yield piece
            _refuse_changed(file, reading)
    except caught as error:
        closed = Opened(None, kind[1], file, reading, position)  # type: ignore[arg-type]
        yield Piece([], [], done, bad=closed.broken(range(done[0], done[0] + 1), "cannot be read to its end", error))


def _refuse_changed(file: SourceFile, reading: Reading) -> None:
    """Rows of other bytes than those that the revision names would be another source's, and be kept as this one's."""
    if file.changed is not None and file.changed():
        raise UserError(
            f"source {reading.source}: {file.name}: changed while it was read. Run again when nothing writes to it."
        )
