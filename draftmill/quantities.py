"""Numbers as a person reads them: short, with their unit. Pure."""

from __future__ import annotations

from math import isfinite


def number(value: float) -> str:
    """Three digits or so: 918,000, 1.3M, 12.4."""
    if not isfinite(value):
        return "-"
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if abs(value) >= size * 0.9995:
            return f"{value / size:,.3g}{unit}" if value < size * 999.5 else f"{value / size:,.0f}{unit}"
    if value >= 100 or value == round(value):
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 0.01 else "<0.01"


def count(value: float) -> str:
    """Whole things, short where there are many."""
    return number(round(value) if isfinite(value) else value)


def sized(value: float) -> str:
    """Bytes, decimal."""
    if not isfinite(value):
        return "-"
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if value >= size:
            return f"{value / size:.3g} {unit}" if value < size * 999.5 else f"{value / size:,.0f} {unit}"
    return f"{value / 1e3:.3g} kB" if value >= 1e3 else "0" if value < 1 else "<1 kB"


def duration(hours: float) -> str:
    """A time for a person: 13 h, 50 min, <1 min."""
    if hours >= 1:
        return f"{number(hours)} h"
    minutes = hours * 60
    return f"{minutes:.0f} min" if minutes >= 1 else "<1 min" if hours else "0"
