"""Text of somebody else's as lines that fit a terminal and steer nothing. Pure.

Line breaks are kept; every other control character, and whatever turns the writing direction or joins characters, is
shown as its escape. Tabs are spaces. Lines are folded by the columns that characters take, and no line holds more than
a few marks a column: a pile of accents stays where it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from unicodedata import category

from rich.cells import cell_len, chop_cells

from draftmill.table import printable

TAB = 4
MARKS_PER_CELL = 3
MARKS = ("Mn", "Me")
ELLIPSIS = "…"


def clipped(text: str, chars: int) -> tuple[str, int]:
    """(the first `chars` characters, how many follow them); 0 takes all."""
    if chars <= 0 or len(text) <= chars:
        return text, 0
    return text[:chars], len(text) - chars


def text_lines(text: str, width: int, chars: int, indent: str = "") -> Iterator[str]:
    """The text in lines of at most `width` columns, the indent included; the last says what was cut."""
    shown, left = clipped(text, chars)
    room = width - len(indent)
    for line in shown.split("\n"):
        for piece in folded(unpiled(printable(line.expandtabs(TAB))), room):
            yield (indent + piece).rstrip()
    if left:
        unit = "character" if left == 1 else "characters"
        yield f"{indent}{ELLIPSIS} {left:,} more {unit}"


def unpiled(line: str) -> str:
    """The line with no more than MARKS_PER_CELL combining marks on one character; further ones are escapes."""
    if line.isascii():
        return line
    shown, marks = [], 0
    for ch in line:
        marks = marks + 1 if category(ch) in MARKS else 0
        shown.append(ch if marks <= MARKS_PER_CELL else ch.encode("unicode_escape").decode())
    return "".join(shown)


def folded(line: str, width: int) -> list[str]:
    """One line as pieces of at most `width` columns, broken between words; a longer word is broken where it must."""
    if len(line) <= width and line.isascii():
        return [line]
    pieces, piece, used = [], "", 0
    for number, word in enumerate(line.split(" ")):
        size = cell_len(word)
        if number and used + 1 + size <= width and len(piece) + len(word) < width * MARKS_PER_CELL:
            piece, used = f"{piece} {word}", used + 1 + size
            continue
        if number:
            pieces.append(piece)
        piece, used = word, size
        if size > width or len(word) > width * MARKS_PER_CELL:
            *whole, piece = _hard(word, width)
            pieces += whole
            used = cell_len(piece)
    return [*pieces, piece]


def _hard(line: str, width: int) -> list[str]:
    most = width * MARKS_PER_CELL
    pieces = [
        piece[start : start + most] for piece in chop_cells(line, max(width, 2)) for start in range(0, len(piece), most)
    ]
    return pieces or [line[:most]]  # nothing but marks without a width
