"""What the looking commands' answers have in common: figures, moments and bars in 80 columns. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from textwrap import wrap

from rich.cells import cell_len

from draftmill.table import cut, printable

WIDTH = 80
BAR = "█"
PARTS = " ▏▎▍▌▋▊▉"
UNLINKED = (
    "No answers are linked yet, those that exist already neither: draftmill generate MANIFEST does it, and its "
    "--dry-run says how many are reused."
)
"""Of a build that was never planned for generation: its answers may all be there, and it shows none."""


def left(text: str, width: int) -> str:
    """Untrusted text in a column: cut or padded to `width`."""
    shown = cut(printable(text), width)
    return shown + " " * (width - cell_len(shown))


def count(number: int | None, width: int = 9) -> str:
    """A whole number: exact where it fits into `width` columns, else in millions (M), thousands of these (G), …"""
    if number is None:
        return "-"
    exact = f"{number:,}"
    if len(exact) <= width:
        return exact
    for size, unit in ((10**12, "T"), (10**9, "G"), (10**6, "M")):
        if number >= size:
            return f"{number / size:,.1f}{unit}"
    return exact


def percent(part: float | None, *, short: bool = False) -> str:
    """A share as 46.7%; `short` leaves out a decimal that is zero."""
    if part is None:
        return "-"
    text = f"{100 * part:.1f}"
    return f"{text.removesuffix('.0') if short else text}%"


def minute(moment: datetime | None, unknown: str = "at an unknown time") -> str:
    """A moment to the minute, in UTC."""
    return unknown if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M}"


def bar(part: float, width: int) -> str:
    """A bar of at most `width` columns; whatever is more than nothing shows."""
    eighths = max(round(min(max(part, 0.0), 1.0) * width * 8), 1 if part > 0 else 0)
    full, rest = divmod(eighths, 8)
    return BAR * full + (PARTS[rest] if rest else "")


def said(sentence: str, first: str = "", below: str = "  ") -> list[str]:
    """A sentence in lines of WIDTH; nothing in it steers the terminal."""
    return wrap(printable(sentence), WIDTH, initial_indent=first, subsequent_indent=below, break_on_hyphens=False)
