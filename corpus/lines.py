"""JSON lines, csv and JSON documents to pieces.

JSON lines are decoded row by row and never through one inferred schema. Lines and csv rows are read block by block,
so that memory does not grow with the file; a line that is longer than any row may be is read past. A JSON document
is read whole: nothing in it can be read alone.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from typing import IO, Any

import msgspec

from corpus.errors import UserError, first_line
from corpus.pieces import BROKEN, PIECE_BYTES, START, BadRow, Opened, Piece, judged, row_pieces

MAX_LINE_BYTES = 64 << 20
AHEAD_BYTES = 1 << 16  # read on behind a piece, to know if it is the last
UNDECODED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def read_lines(opened: Opened) -> Iterator[Piece]:
    """JSON lines, in pieces of at most PIECE_BYTES or one line. A position is (row, byte of the text).

    Where a piece ends depends on where it begins and on nothing else: who goes on later finds the same pieces.
    """
    row, offset = opened.position
    text = _Text(opened.stream(), (*BROKEN, *opened.file.errors))
    text.skip(offset, seekable=not opened.compression)
    decoder = msgspec.json.Decoder()
    while size := text.whole_lines():
        piece = Piece([], [], START)
        if size > MAX_LINE_BYTES:
            piece.bad.append(_too_long(opened, row))
            row, offset = row + 1, offset + text.drop_line()
        else:
            row = _decode_lines(decoder, text.take(size).removesuffix(b"\n"), row, opened, piece)
            offset += size
        piece.position, piece.last = (row, offset), text.is_over()
        if piece.indexes or piece.bad:
            yield judged(piece, opened)
    if text.error is not None:
        bad = opened.broken(range(row, row + 1), f"breaks off in row {row}", text.error)
        yield Piece([], [], (row, offset), bad=bad)


class _Text:
    """A stream of lines with what was read ahead of it. Where it breaks off, what came before is given first."""

    def __init__(self, stream: IO[bytes], broken: tuple[type[BaseException], ...]) -> None:
        self.error: BaseException | None = None
        self._stream, self._broken = stream, broken
        self._read = getattr(stream, "read1", stream.read)  # gives what there is, so that little is lost of a torn one
        self._ahead, self._ended = b"", False

    def skip(self, count: int, seekable: bool) -> None:
        """Go on behind the first `count` bytes."""
        if seekable:
            self._stream.seek(count)
            return
        while count > 0 and (block := self._stream.read(min(count, PIECE_BYTES))):
            count -= len(block)

    def whole_lines(self) -> int:
        """How many bytes of whole lines come next, at most PIECE_BYTES or one line; 0 at the end.

        Of a line that is longer than MAX_LINE_BYTES it is more than that, and not all of it is read.
        """
        self._fill(PIECE_BYTES + AHEAD_BYTES)
        if self._ended and self.error is None and len(self._ahead) <= PIECE_BYTES:
            return len(self._ahead)
        end = self._ahead.rfind(b"\n", 0, PIECE_BYTES) + 1
        seen = PIECE_BYTES
        while not end and seen <= MAX_LINE_BYTES:
            self._fill(seen + PIECE_BYTES)
            if len(self._ahead) <= seen:
                break
            end = self._ahead.find(b"\n", seen, seen + PIECE_BYTES) + 1
            seen += PIECE_BYTES
        if end or self.error is not None:  # what a torn file's last line would have been nobody knows
            return end
        return len(self._ahead)

    def is_over(self) -> bool:
        """True if nothing follows, as far as is known without reading on."""
        return self._ended and self.error is None and not self._ahead

    def take(self, count: int) -> bytes:
        """The next bytes."""
        taken, self._ahead = self._ahead[:count], self._ahead[count:]
        return taken

    def drop_line(self) -> int:
        """Read past the end of the present line; returns how many bytes that were."""
        dropped = 0
        while True:
            end = self._ahead.find(b"\n") + 1
            dropped += end or len(self._ahead)
            self._ahead = self._ahead[end:] if end else b""
            if end or self._ended:
                return dropped
            self._fill(PIECE_BYTES)

    def _fill(self, size: int) -> None:
        """Have `size` bytes ahead, where there are so many."""
        parts, have = [self._ahead], len(self._ahead)
        try:
            while have < size and not self._ended:
                part = self._read(size - have)
                parts.append(part)
                have += len(part)
                self._ended = not part
        except self._broken as error:
            self.error, self._ended = error, True
        self._ahead = b"".join(parts)


def _decode_lines(decoder: msgspec.json.Decoder[Any], text: bytes, row: int, opened: Opened, piece: Piece) -> int:
    """Decode whole lines into a piece; returns the number of the next row. Blank lines have a number too."""
    lines = text.count(b"\n") + 1
    try:
        rows = decoder.decode_lines(text)
    except UNDECODED:
        rows = []
    if len(rows) == lines and all(type(one) is dict for one in rows):
        piece.rows, piece.indexes = rows, range(row, row + lines)
        return row + lines
    numbers = []
    for number, line in enumerate(text.split(b"\n"), row):
        if not line.strip():
            continue
        decoded = _json_row(line, number, opened)
        if isinstance(decoded, BadRow):
            piece.bad.append(decoded)
        else:
            piece.rows.append(decoded)
            numbers.append(number)
    piece.indexes = numbers
    return row + lines


def _json_row(line: bytes, number: int, opened: Opened) -> dict[str, Any] | BadRow:
    try:
        row = msgspec.json.decode(line)
    except UNDECODED:
        try:
            row = json.loads(line)  # accepts lone surrogates, which then are a drop and not a dead run
        except (ValueError, RecursionError) as error:
            why = getattr(error, "msg", None) or first_line(error)
            reason = "not_utf8" if isinstance(error, UnicodeDecodeError) else "not_json"
            return opened.bad(number, reason, f"(line {number + 1}) is not valid JSON ({why})")
    if not isinstance(row, dict):
        return opened.bad(number, "not_json", f"holds {type(row).__name__}; an object is expected")
    return row


def _too_long(opened: Opened, row: int) -> BadRow:
    return opened.bad(row, "line_too_long", f"(line {row + 1}) is longer than {MAX_LINE_BYTES >> 20} MiB")


def read_csv(opened: Opened) -> Iterator[Piece]:
    """Rows of a csv file with a header; every value is text, an empty one is None. A position is (row, 0)."""
    csv.field_size_limit(MAX_LINE_BYTES)
    text = io.TextIOWrapper(opened.stream(), encoding="utf-8-sig", errors="surrogateescape", newline="")
    try:
        yield from row_pieces(_csv_rows(csv.reader(text, strict=True), opened), opened)
    finally:
        text.detach()  # whoever opened the file closes it


def _csv_rows(reader: Iterator[list[str]], opened: Opened) -> Iterator[tuple[int, dict[str, Any] | BadRow]]:
    number = -1
    broken: tuple[type[BaseException], ...] = (csv.Error, *BROKEN, *opened.file.errors)
    try:
        header = next(reader, None)
        if header is None:
            raise UserError(f"{opened.at}: is empty; a csv file has a header.")
        opened.refuse_twice(header)
        for values in reader:
            if not values:  # a blank line
                continue
            number += 1
            if number >= opened.position[0]:
                yield number, _csv_row(header, values, number, opened)
    except broken as error:
        row = number + 1
        if row >= opened.position[0]:
            yield row, opened.broken(range(row, row + 1), f"csv breaks off in row {row}", error)[0]


def _csv_row(header: list[str], values: list[str], number: int, opened: Opened) -> dict[str, Any] | BadRow:
    if len(values) > len(header):
        return opened.bad(number, "ragged", f"has {len(values)} fields, the header has {len(header)}")
    if any("\udc80" <= char <= "\udcff" for value in values if not value.isascii() for char in value):
        return opened.bad(number, "not_utf8", "holds text that is not UTF-8")
    return dict.fromkeys(header) | {name: value or None for name, value in zip(header, values, strict=False)}


def read_document(opened: Opened) -> Iterator[Piece]:
    """A list of objects, an object with one such list beside its metadata, or a trace. A position is (row, 0)."""
    data = opened.stream().read()
    try:
        try:
            document = msgspec.json.decode(data)
        except UNDECODED:
            document = json.loads(data)  # accepts lone surrogates
    except (ValueError, RecursionError) as error:
        if not opened.reading.skip_bad:
            first = first_line(error)
            hint = f"One object a line belongs in .jsonl. Repair it, or {opened.reading.to_skip}."
            raise UserError(f"{opened.at}: not valid JSON ({first}). {hint}") from error
        reason = "not_utf8" if isinstance(error, UnicodeDecodeError) else "not_json"
        yield Piece([], [], (1, 0), bad=[BadRow(0, reason, f"not valid JSON ({first_line(error)})"[:200])])
        return
    rows = enumerate(_document_rows(document))
    start = opened.position[0]
    yield from row_pieces(((i, _object(row, i, opened)) for i, row in rows if i >= start), opened)


def _document_rows(document: Any) -> list[Any]:
    if isinstance(document, dict):
        lists = [value for value in document.values() if isinstance(value, list) and value]
        # a trace of its own is one row; a file with one list of objects beside its metadata is that list
        nested = len(lists) == 1 and all(isinstance(row, dict) for row in lists[0]) and not _is_trace(lists[0])
        return lists[0] if nested else [document]
    if not isinstance(document, list):
        return [document]
    return [{"messages": document}] if document and _is_trace(document) else document


def _object(row: Any, number: int, opened: Opened) -> dict[str, Any] | BadRow:
    if isinstance(row, dict):
        return row
    return opened.bad(number, "not_json", f"holds {type(row).__name__}; an object is expected")


def _is_trace(rows: list[Any]) -> bool:
    """True if these are the turns of one conversation and not rows."""
    return all(
        isinstance(row, dict) and row.keys() & {"role", "from"} and row.keys() & {"content", "value", "tool_calls"}
        for row in rows
    )
