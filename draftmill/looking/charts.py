"""What charts show: numbers, the text beside each, and round numbers for their axes. Pure; charts_html draws them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
"""Between ticks."""
CEILINGS = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)


@dataclass(frozen=True)
class Bar:
    """One bar: a value of the chart's unit, the text beside it, and what was wanted, if anything."""

    name: str
    value: float | None
    text: str
    wanted: float | None = None


@dataclass(frozen=True)
class Bars:
    """Groups of horizontal bars on one scale that starts at 0; a group without a name is a plain chart."""

    groups: tuple[tuple[str, tuple[Bar, ...]], ...]
    most: float
    legend: tuple[str, str] = ("", "")
    """(what the bars are, what the marks are)."""


@dataclass(frozen=True)
class Histogram:
    """Rows by length: counts of bins that double every `per_octave` of them, from `first`."""

    name: str
    text: str
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Histograms:
    """Small histograms on one axis of lengths; each has its own height."""

    panels: tuple[tuple[Histogram, ...], ...]
    """Rows of panels, a column a kind."""
    ticks: tuple[tuple[float, str], ...]
    """(place from 0 to 1, its label)."""
    unit: str


@dataclass(frozen=True)
class Line:
    """One series: points (place from 0 to 1, value), None where nothing was measured."""

    name: str
    text: str
    points: tuple[tuple[float, float | None], ...]


@dataclass(frozen=True)
class Lines:
    """Series one below the other on one axis of time and one scale from 0."""

    lines: tuple[Line, ...]
    most: float
    ticks: tuple[tuple[float, str], ...]
    unit: str
    breaks: tuple[float, ...] = ()
    """Places where another run begins."""


@dataclass(frozen=True)
class Interval:
    """A value with what it lies between, where that is known."""

    name: str
    value: float
    low: float | None
    high: float | None
    text: str


@dataclass(frozen=True)
class Intervals:
    """Groups of values on one axis."""

    groups: tuple[tuple[str, tuple[Interval, ...]], ...]
    first: float
    last: float
    ticks: tuple[tuple[float, str], ...]
    unit: str


Chart = Bars | Histograms | Lines | Intervals


def nice_ceiling(value: float, steps: Sequence[float] = CEILINGS) -> float:
    """The least round number that is no smaller; 1 for nothing."""
    if not math.isfinite(value) or value <= 0:
        return 1.0
    size = 10.0 ** math.floor(math.log10(value))
    return next(step * size for step in steps if step * size >= value * (1 - 1e-9))


def even_ticks(first: float, last: float, most: int = 6) -> list[float]:
    """Round numbers from first to last, at most so many and two at least where they fit."""
    step = nice_ceiling((last - first) / max(1, most - 1), STEPS)
    start = math.ceil(first / step - 1e-9)
    ticks: list[float] = []
    while start * step <= last * (1 + 1e-9) and len(ticks) < most + 1:
        ticks.append(round(start * step, 12))
        start += 1
    return ticks
