"""What a report is made of: sections of words, tables, figures and listings, which HTML and Markdown both show.

A document says what is to be read, not how it looks; both renderers take every string of it as untrusted. A figure's
numbers are in the words or the table beside it too: Markdown has no figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from draftmill.looking.charts import Chart

MOST_WORDS = 2_000
MOST_ROWS = 200
"""Of a table: the rest is counted."""


@dataclass(frozen=True)
class Code:
    """A name, an id or a command within words."""

    text: str


@dataclass(frozen=True)
class Words:
    """A paragraph."""

    pieces: tuple[str | Code, ...]


@dataclass(frozen=True)
class Items:
    """A list of plain lines."""

    lines: tuple[str, ...]


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    name: str
    kind: Literal["text", "code", "number"] = "text"


@dataclass(frozen=True)
class Table:
    """Rows of cells that are text already; the last one may be a total."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    total: tuple[str, ...] | None = None
    rest: str = ""
    """What to ask of rows that are left off."""


@dataclass(frozen=True)
class Listing:
    """Text as it stands: commands, or a file."""

    text: str
    language: str
    title: str = ""
    """Given, the listing is folded under it."""


@dataclass(frozen=True)
class Figure:
    """A chart and what it shows."""

    chart: Chart
    caption: str


Block = Words | Items | Table | Listing | Figure


@dataclass(frozen=True)
class Section:
    """One part, with an address of its own."""

    key: str
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Tile:
    """One figure of the summary."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Document:
    """A whole report."""

    title: str
    words: tuple[Words, ...]
    tiles: tuple[Tile, ...]
    sections: tuple[Section, ...]


def words(*pieces: str | Code) -> Words:
    """A paragraph of these pieces."""
    return Words(pieces)


def table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], total: Sequence[str] | None = None, rest: str = ""
) -> Table:
    """A table whose columns' kinds are their first letters: `#rows` are numbers, `$build` code, others text."""
    kinds: dict[str, Literal["number", "code"]] = {"#": "number", "$": "code"}
    named = tuple(Column(name[1:], kinds[name[0]]) if name[0] in kinds else Column(name) for name in columns)
    return Table(named, tuple(map(tuple, rows)), None if total is None else tuple(total), rest)


def rest_of(rows: int, sql: str, most: int = MOST_ROWS) -> str:
    """What a table does not show, and how to see it."""
    return f'{rows - most:,} more: draftmill sql "{sql}"' if rows > most else ""
