"""Text of somebody else's for a page: characters that steer, hide or turn text are shown by their names. Pure.

Escaping of `<`, `&` and quotes is the template's (Jinja's autoescape): nothing here makes markup. Line breaks and tabs
are kept. Joiners stay, so that families of emoji and Indic scripts read as they are.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

from draftmill.table import blob_text

STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f\ud800-\udfff]"
)
"""Controls, direction marks, invisible spaces and tags, halves of surrogates."""
PILES = re.compile("([\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]{4})[\u0300-\u036f"
                   "\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]+")  # fmt: skip
"""More than four accents on one character: they would stand in the lines above."""


def visible(text: object) -> str:
    """The text with every steering character as ⟨its name⟩; None is empty."""
    if text is None:
        return ""
    whole = PILES.sub(r"\1⟨…⟩", str(text).replace("\r\n", "\n"))
    return STEERING.sub(lambda found: f"⟨{_name(found[0])}⟩", whole)


def _name(character: str) -> str:
    return {"\x1b": "ESC", "\x00": "NUL", "\r": "CR", "\x07": "BEL", "\x08": "BS"}.get(
        character, f"U+{ord(character):04X}"
    )


def excerpt(text: str, chars: int) -> str:
    """The beginning on one line, at most `chars` characters before names are written out."""
    line = " ".join(text[: chars * 4].split())
    return visible(line[:chars]) + ("…" if len(line) > chars or len(text) > chars * 4 else "")


def cell(value: Any, chars: int = 400) -> str:
    """A value of a query's row, cut."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, bytes):
        return excerpt(blob_text(value[:chars]), chars)
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="seconds")
    text = str(value)
    return excerpt(text, chars)
