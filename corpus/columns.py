"""Names and figures in plain text: in columns, and a count with its noun. Pure; nothing is cut."""

from __future__ import annotations

from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Left-aligned names, right-aligned figures."""
    widths = [max(len(str(row[i])) for row in [header, *rows]) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        return "  ".join(
            f"{cell:<{width}}" if i == 0 else f"{cell:>{width}}"
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )

    return [line(header), *(line(row) for row in rows)]


def counted(count: int, what: str) -> str:
    """For a person: "1 row", "1,200 rows"."""
    return f"{count:,} {what}{'s' if count != 1 else ''}"
