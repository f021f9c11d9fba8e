"""Arrow tables to polars frames: what polars cannot hold becomes what says the same, or text.

A decimal of 256 bits, an interval, a union or a time at a fixed offset ends polars' import, some of them the process.
Of a column that is no prompt nothing but its text is ever asked: a label, an id, a condition.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa


def to_frame(table: pa.Table) -> pl.DataFrame:
    """The table as polars holds it: the same rows and names."""
    import polars as pl
    import pyarrow as pa

    columns = []
    for field, column in zip(table.schema, table.columns, strict=True):
        held = None if beyond_years(column) else _held(field.type)
        columns.append(column if held == field.type else _converted(column, held))
    return pl.DataFrame(pa.Table.from_arrays(columns, names=table.column_names))


def beyond_years(column: pa.ChunkedArray | pa.Array) -> bool:
    """Whether it holds a date or time that Python has not: infinite, before the year 1 or after 9999; inside lists too.

    Reading one would end in an error of the whole column, or of the process.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    is_, kind = pa.types, column.type
    if not _holds_times(kind):
        return False
    if isinstance(column, pa.ChunkedArray) and is_.is_nested(kind):
        return any(beyond_years(chunk) for chunk in column.chunks)
    if is_.is_struct(kind):
        return any(beyond_years(part) for part in column.flatten())
    if is_.is_list(kind) or is_.is_large_list(kind) or is_.is_fixed_size_list(kind):
        return beyond_years(column.flatten())
    if is_.is_map(kind):
        return beyond_years(column.keys) or beyond_years(column.items)
    if is_.is_date(kind):
        per_day, whole = (1, pa.int32()) if is_.is_date32(kind) else (86_400_000, pa.int64())
    elif is_.is_timestamp(kind):
        per_day, whole = 86_400 * PER_SECOND[kind.unit], pa.int64()
    else:
        return False
    ends = pc.min_max(column.cast(whole)).as_py()
    first, last = ((day - EPOCH).days * per_day for day in DAYS)
    return ends["min"] is not None and not first <= ends["min"] <= ends["max"] < last


def _holds_times(kind: pa.DataType) -> bool:
    """Whether values of this type hold dates or timestamps: told without a look at any."""
    import pyarrow.types as is_

    if is_.is_nested(kind):
        return any(_holds_times(kind.field(place).type) for place in range(kind.num_fields))
    return bool(is_.is_date(kind) or is_.is_timestamp(kind))


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DAYS = (datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC))
"""The first, and the first that is too late: no time zone leads out of them."""
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def take(table: pa.Table, rows: list[int]) -> pa.Table:
    """Some rows of a table. Of an empty list pyarrow would not know that it holds numbers."""
    import pyarrow as pa

    return table.take(pa.array(rows, pa.int64()))


def _converted(column: pa.ChunkedArray, held: pa.DataType | None) -> pa.ChunkedArray | pa.Array:
    import pyarrow as pa

    if held is not None:
        try:
            return column.cast(held)
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
            pass  # text can say it
    return pa.array(map(_text, column), pa.string())


OUT_OF_RANGE = "a time out of range"
"""In the place of one that neither Python nor Arrow can write."""


def _text(value: pa.Scalar) -> str | None:
    try:
        held = value.as_py()
    except (ValueError, OverflowError):
        return OUT_OF_RANGE
    return None if held is None else str(held)


def _held(kind: pa.DataType) -> pa.DataType | None:
    """The type that polars can hold in the place of this one, often the same; None if only text can be."""
    import pyarrow as pa

    is_ = pa.types
    if is_.is_decimal256(kind):
        return pa.string()
    if is_.is_timestamp(kind) and kind.tz is not None and not _is_zone(kind.tz):
        return pa.timestamp(kind.unit, "UTC")
    if is_.is_run_end_encoded(kind):
        return _held(kind.value_type)
    if is_.is_interval(kind) or is_.is_union(kind):
        return None
    if is_.is_struct(kind):
        parts = [(field, _held(field.type)) for field in kind]
        return None if any(held is None for _, held in parts) else pa.struct([f.with_type(h) for f, h in parts])
    if is_.is_list(kind) or is_.is_list_view(kind):
        return _list_of(pa.list_, kind)
    if is_.is_large_list(kind) or is_.is_large_list_view(kind):
        return _list_of(pa.large_list, kind)
    if is_.is_fixed_size_list(kind):
        return _list_of(lambda field: pa.list_(field, kind.list_size), kind)
    if is_.is_map(kind):
        key, item = _held(kind.key_type), _held(kind.item_type)
        if (key, item) == (kind.key_type, kind.item_type):
            return kind
        return None if key is None or item is None else pa.map_(key, item)
    return kind


def _list_of(make: Any, kind: pa.DataType) -> pa.DataType | None:
    held = _held(kind.value_type)
    return None if held is None else make(kind.value_field.with_type(held))


def _is_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True
