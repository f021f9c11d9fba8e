"""A frame to a person or a program: table, csv, json or parquet.

In a table, text from data is shown with its control characters escaped and cut to the width of the terminal; the
other formats are exact.
"""

from __future__ import annotations

import math
import shutil
import sys
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corpus.artefacts import write_atomically

if TYPE_CHECKING:
    import polars as pl

PIPED_WIDTH = 200
MIN_CELL = 6


def write_rows(rows: pl.DataFrame, form: str, out: Path | None) -> None:
    """Print or write the rows.

    Raises:
        UserError: the file cannot be written.
    """
    if form == "parquet":
        if out is not None:
            write_atomically(out, rows.write_parquet)
        else:
            rows.write_parquet(sys.stdout.buffer)
        return
    text = {"table": _table, "csv": _csv, "json": _json}[form](rows)
    if out is None:
        sys.stdout.write(text)
    else:
        write_atomically(out, lambda path: _write(path, text))


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _csv(rows: pl.DataFrame) -> str:
    import polars as pl

    nested = {
        name: pl.Series(name, [None if v is None else _plain_json(v) for v in rows[name].to_list()], pl.String)
        for name, kind in rows.schema.items()
        if kind.is_nested()
    }
    return str(rows.with_columns(**nested).write_csv())


def _json(rows: pl.DataFrame) -> str:
    lines = (_plain_json(row) for row in rows.iter_rows(named=True))
    return "[" + ",\n ".join(lines) + "]\n"


def _plain_json(value: Any) -> str:
    import json

    return json.dumps(_jsonable(value), ensure_ascii=False, allow_nan=False, default=str)


def _jsonable(value: Any) -> Any:
    """Numbers as JSON has them: a sum of integers is one, and what is no number is null."""
    if isinstance(value, dict):
        return {str(key): _jsonable(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_jsonable(inner) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return value


def _table(rows: pl.DataFrame) -> str:
    numeric = {name for name, kind in rows.schema.items() if kind.is_numeric()}
    header = [rows.columns]
    body = [[_cell(value) for value in row] for row in rows.iter_rows()]
    widths = [max((len(row[i]) for row in header + body), default=0) for i in range(rows.width)]
    room = shutil.get_terminal_size((80, 24)).columns if sys.stdout.isatty() else PIPED_WIDTH
    widths = _fit(widths, room - 2 * max(rows.width - 1, 0))
    lines = []
    for row in header + body:
        cells = [
            f"{_cut(cell, width):>{width}}" if name in numeric else f"{_cut(cell, width):<{width}}"
            for cell, width, name in zip(row, widths, rows.columns, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "  ".join("─" * width for width in widths))
    count = f"{rows.height:,} row{'s' if rows.height != 1 else ''}"
    return "\n".join([*lines, f"({count})"]) + "\n"


def _fit(widths: list[int], room: int) -> list[int]:
    """Shrink the widest columns, one character at a time in effect, until the row fits."""
    fitted = list(widths)
    while sum(fitted) > room and max(fitted, default=0) > MIN_CELL:
        widest = max(fitted)
        second = max([width for width in fitted if width < widest], default=MIN_CELL)
        at = [i for i, width in enumerate(fitted) if width == widest]
        excess = sum(fitted) - room
        smaller = max(MIN_CELL, second, widest - max(1, excess // len(at)))
        for i in at:
            fitted[i] = smaller if smaller < widest else widest - 1
    return fitted


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e6 else f"{value:,.0f}"
    return "".join(ch if ch.isprintable() else ch.encode("unicode_escape").decode() for ch in str(value))
