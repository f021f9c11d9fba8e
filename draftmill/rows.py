"""A frame to a person or a program: table, csv, json or parquet.

A table is for eyes (see table); the other formats are exact. Text from data is untrusted: JSON escapes what does not
print, as its strings can, and in a terminal CSV shows it as a table does.
"""

from __future__ import annotations

import io
import math
import sys
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corpus.outputs import write_output, write_output_text
from draftmill.table import blob_text, format_table, printable_lines

if TYPE_CHECKING:
    import polars as pl


def write_rows(rows: pl.DataFrame, form: str, out: Path | None) -> None:
    """Print or write the rows.

    Raises:
        UserError: the file cannot be written.
    """
    if form == "parquet":
        if out is not None:
            write_output(out, rows.write_parquet)
        else:
            data = io.BytesIO()
            rows.write_parquet(data)
            sys.stdout.buffer.write(data.getbuffer())  # not by polars: a closed pipe is no bug
            sys.stdout.flush()
        return
    text = {"table": format_table, "csv": _csv, "json": _json}[form](rows)
    write_text(printable_lines(text) if form == "csv" and out is None and sys.stdout.isatty() else text, out)


def write_text(text: str, out: Path | None) -> None:
    """Print or write text.

    Raises:
        UserError: the file cannot be written.
    """
    if out is None:
        sys.stdout.write(text)
        sys.stdout.flush()
    else:
        write_output_text(out, text)


def _csv(rows: pl.DataFrame) -> str:
    import polars as pl

    nested = {
        name: pl.Series(name, [None if v is None else _plain_json(v) for v in rows[name].to_list()], pl.String)
        for name, kind in rows.schema.items()
        if kind.is_nested()
    }
    bytes_ = {
        name: pl.Series(name, [None if v is None else blob_text(v) for v in rows[name].to_list()], pl.String)
        for name, kind in rows.schema.items()
        if kind == pl.Binary
    }
    return str(rows.with_columns(**nested, **bytes_).write_csv())


def _json(rows: pl.DataFrame) -> str:
    lines = (_plain_json(row) for row in rows.iter_rows(named=True))
    return "[" + ",\n ".join(lines) + "]\n"


def _plain_json(value: Any) -> str:
    import json

    text = json.dumps(_jsonable(value), ensure_ascii=False, allow_nan=False, default=str)
    return text if text.isprintable() else "".join(ch if ch.isprintable() else json.dumps(ch)[1:-1] for ch in text)


def _jsonable(value: Any) -> Any:
    """Numbers as JSON has them: a sum of integers is one, and what is no number is null."""
    if isinstance(value, dict):
        return {str(key): _jsonable(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_jsonable(inner) for inner in value]
    if isinstance(value, bytes):
        return blob_text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return value
