"""Which rows of a build are wanted: values from a form, as a condition with bound parameters. Pure.

A filter names columns of ours alone; every value that came from a form is bound, never written into SQL. Of one column
any of the chosen values will do, of several columns all must. The value "" stands for rows that have none (NULL).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

from corpus.errors import UserError

CHOICES = ("category", "source", "state", "reason", "finish_reason", "holdout")
"""Columns that are held to some of their values; holdout's are yes and no."""
BOUNDS = {
    "prompt_min": ("prompt_tokens", ">="), "prompt_max": ("prompt_tokens", "<="),
    "answer_min": ("response_tokens", ">="), "answer_max": ("response_tokens", "<="),
}  # fmt: skip
"""Limits in tokens, both ends included; a row without the number is outside any."""
MOST = 2**62
MOST_VALUES = 400
"""That one address may name: each is a parameter of every question that a page asks."""


@dataclass(frozen=True)
class Filters:
    """What rows must have; empty takes all."""

    category: tuple[str, ...] = ()
    source: tuple[str, ...] = ()
    state: tuple[str, ...] = ()
    reason: tuple[str, ...] = ()
    finish_reason: tuple[str, ...] = ()
    holdout: tuple[str, ...] = ()
    prompt_min: int | None = None
    prompt_max: int | None = None
    answer_min: int | None = None
    answer_max: int | None = None

    @property
    def count(self) -> int:
        """How many fields are set."""
        return sum(getattr(self, field.name) not in ((), None) for field in fields(self))

    def but(self, name: str, value: Any) -> Filters:
        """The same with one field changed."""
        return replace(self, **{name: value})


def read_filters(pairs: Iterable[tuple[str, str]]) -> Filters:
    """Filters from the pairs of a query string; keys of other things are passed over, empty limits are none.

    Raises:
        UserError: a limit is no whole number, or there are too many values.
    """
    chosen: dict[str, dict[str, None]] = {name: {} for name in CHOICES}
    limits: dict[str, int] = {}
    for key, value in pairs:
        if key in chosen:
            chosen[key][value] = None
        elif key in BOUNDS and value.strip():
            limits[key] = whole(key, value)
    named = sum(map(len, chosen.values()))
    if named > MOST_VALUES:
        raise UserError(f"filters: the address names {named:,} values; at most {MOST_VALUES} are taken. Choose fewer.")
    return Filters(**{name: tuple(values) for name, values in chosen.items()}, **limits)  # type: ignore[arg-type]


def whole(key: str, value: str) -> int:
    """A whole number, 0 or more, that a form sent.

    Raises:
        UserError: it is none.
    """
    text = value.strip()
    if not (text.isascii() and text.isdigit()) or int(text[:20]) > MOST:
        raise UserError(f"{key}: got {ascii(value)[:40]}; expected a whole number, 0 or more.")
    return int(text)


def write_filters(filters: Filters) -> list[tuple[str, str]]:
    """The pairs that read_filters reads as the same filters."""
    pairs = [(name, value) for name in CHOICES for value in getattr(filters, name)]
    return pairs + [(key, str(value)) for key in BOUNDS if (value := getattr(filters, key)) is not None]


def condition(filters: Filters) -> tuple[str, list[Any]]:
    """(an SQL condition over the columns of CHOICES and BOUNDS, the values of its parameters)."""
    parts: list[str] = []
    values: list[Any] = []
    for name in CHOICES:
        wanted = getattr(filters, name)
        if not wanted:
            continue
        column = "CASE WHEN holdout THEN 'yes' ELSE 'no' END" if name == "holdout" else f"coalesce({name}, '')"
        parts.append(f"{column} IN ({', '.join('?' * len(wanted))})")
        values += wanted
    for key, (column, sign) in BOUNDS.items():
        limit = getattr(filters, key)
        if limit is not None:
            parts.append(f"{column} {sign} ?")
            values.append(limit)
    return " AND ".join(parts) or "true", values
