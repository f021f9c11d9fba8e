"""A frame as a table in a terminal; where its rows do not fit, one field a line.

Text from data is untrusted: control characters are escaped, and a cell is cut to its column. Widths are those of a
terminal (a CJK character takes two). Timestamps are shown to the second, in UTC.
"""

from __future__ import annotations

import os
import shutil
import sys
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len, set_cell_size

if TYPE_CHECKING:
    import polars as pl

PIPED_WIDTH, MOST_WIDTH = 200, 10_000
MIN_CELL = 12
MOST_CHARS = 80
"""Of a name or a cell of a page: what is longer is cut, and ends in an ellipsis."""
CHARS_A_COLUMN = 4
"""Characters that a cell may hold for each column of its width: marks that stand on others take none."""
GAP = 2


def format_table(rows: pl.DataFrame) -> str:
    """Lines for a person, ending in the number of rows."""
    room = shutil.get_terminal_size((80, 24)).columns if sys.stdout.isatty() else _piped_width()
    columns = list(map(printable, rows.columns))
    body = [[_cell(value) for value in row] for row in rows.iter_rows()]
    widths = [max((cell_len(line[i]) for line in [columns, *body]), default=0) for i in range(rows.width)]
    least = sum(min(width, MIN_CELL) for width in widths) + GAP * max(rows.width - 1, 0)
    count = f"({rows.height:,} row{'s' if rows.height != 1 else ''})\n"
    if least > room and body:
        return _records(columns, body, room) + count
    numeric = [kind.is_numeric() for kind in rows.dtypes]
    fitted = _fit(widths, room - GAP * max(rows.width - 1, 0))
    lines = [_line(line, fitted, numeric) for line in [columns, *body]]
    lines.insert(1, (" " * GAP).join("─" * width for width in fitted))
    return "\n".join(lines) + "\n" + count


def _piped_width() -> int:
    """Columns of a table that goes elsewhere: as COLUMNS says, where whoever reads it has set that."""
    said = os.environ.get("COLUMNS", "")
    if not (said.isascii() and said.isdigit()):
        return PIPED_WIDTH
    return min(max(int(said[:6]), MIN_CELL), MOST_WIDTH)  # six digits: of some thousand Python makes no number


def _line(cells: list[str], widths: list[int], numeric: list[bool]) -> str:
    shown = []
    for cell, width, right in zip(cells, widths, numeric, strict=True):
        text = cut(cell, width)
        padding = " " * (width - cell_len(text))
        shown.append(padding + text if right else text + padding)
    return (" " * GAP).join(shown).rstrip()


def _records(columns: list[str], body: list[list[str]], room: int) -> str:
    name_width = min(max(cell_len(column) for column in columns), max(room // 2, MIN_CELL))
    value_width = max(room - name_width - GAP, MIN_CELL)
    text = ""
    for row in body:
        for column, cell in zip(columns, row, strict=True):
            name = cut(column, name_width)
            text += f"{name}{' ' * (name_width - cell_len(name) + GAP)}{cut(cell, value_width)}".rstrip() + "\n"
        text += "─" * min(room, 40) + "\n"
    return text


def _fit(widths: list[int], room: int) -> list[int]:
    """Shrink the widest columns until the row fits; none below MIN_CELL."""
    fitted: list[int] = list(widths)
    while sum(fitted) > room and max(fitted, default=0) > MIN_CELL:
        widest = max(fitted)
        at = [i for i, width in enumerate(fitted) if width == widest]
        second = max((width for width in fitted if width < widest), default=MIN_CELL)
        excess = sum(fitted) - room
        smaller = max(MIN_CELL, second, widest - max(1, excess // len(at)))
        for i in at:
            fitted[i] = smaller if smaller < widest else widest - 1
    return fitted


def cut(text: str, width: int) -> str:
    """No wider than `width` columns, and no longer than marks may make it; what is cut ends in an ellipsis."""
    most = CHARS_A_COLUMN * width
    if cell_len(text) <= width and len(text) <= most:
        return text
    return set_cell_size(text[:most], width - 1).rstrip() + "…" if width > 0 else ""


def printable(text: str) -> str:
    """Text of somebody else's, of which nothing steers the terminal."""
    return "".join(ch if ch.isprintable() else ch.encode("unicode_escape").decode() for ch in text)


def visible(text: str | None, most: int = MOST_CHARS) -> str:
    """Text of somebody else's on one line, cut; nothing of it steers a terminal or the direction of writing.

    None is `-`: rows of a damaged ledger lack what the whole ones have.
    """
    shown = printable("-" if text is None else text[: most + 1])
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def printable_lines(text: str) -> str:
    """The same of several lines of ours: the breaks between them stay."""
    return "\n".join(map(printable, text.split("\n")))


def blob_text(value: bytes) -> str:
    """Bytes as DuckDB writes them: ASCII that prints as it is, the rest and the backslash as \\xHH."""
    return "".join(chr(one) if 32 <= one < 127 and one != 92 else f"\\x{one:02X}" for one in value)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Decimal) and value == value.to_integral_value():
        return str(int(value))
    if isinstance(value, float | Decimal):
        return f"{value:.4g}" if abs(float(value)) < 1000 else f"{value:.1f}".removesuffix(".0")
    if isinstance(value, bytes):
        return blob_text(value)
    if isinstance(value, datetime) and value.tzinfo is not None:
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
    return printable(str(value))
