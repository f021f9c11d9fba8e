"""Charts as plain HTML and inline SVG: no script, no request, readable without colour.

Pure: numbers and names in, markup out. Names are untrusted; markupsafe escapes whatever is put into a tag. Text stands
in HTML, never in an SVG that is scaled, so it keeps its size on a phone. Every bar has its number beside it, every SVG
a label that says in words what it shows; colours are CSS variables of the page: one hue for what is, one for what was
wanted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from draftmill.table import printable

MOST_NAME = 48
STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
"""Between ticks."""
CEILINGS = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
HEIGHT = 100.0


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


def chart_html(chart: Chart) -> Markup:
    """The markup of a chart."""
    if isinstance(chart, Bars):
        return _bars(chart)
    if isinstance(chart, Histograms):
        return _histograms(chart)
    if isinstance(chart, Lines):
        return _lines(chart)
    return _intervals(chart)


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


def _name(text: str) -> str:
    shown = printable(text[: MOST_NAME + 1])
    return shown if len(shown) <= MOST_NAME else shown[: MOST_NAME - 1] + "…"


def _percent(value: float, most: float) -> str:
    return f"{100 * min(max(value / most if most else 0.0, 0.0), 1.0):.2f}%"


def _bars(chart: Bars) -> Markup:
    parts = []
    for name, bars in chart.groups:
        head = Markup('<div class="group">{}</div>').format(_name(name)) if name else Markup("")
        parts.append(Markup('<div class="bars">{}{}</div>').format(head, Markup("").join(_bar(b, chart) for b in bars)))
    is_named, is_marked = chart.legend
    legend = Markup("")
    if is_marked:
        legend = Markup(
            '<p class="legend"><span class="key is"></span> {} <span class="key wanted"></span> {}</p>'
        ).format(is_named, is_marked)
    return Markup('<div class="chart">{}<div class="{}">{}</div></div>').format(
        legend, "groups" if len(chart.groups) > 1 else "group-alone", Markup("").join(parts)
    )


def _bar(bar: Bar, chart: Bars) -> Markup:
    fill = mark = Markup("")
    if bar.value:
        fill = Markup('<span class="fill" style="width:{}"></span>').format(_percent(bar.value, chart.most))
    if bar.wanted is not None:
        mark = Markup('<span class="mark" style="left:{}"></span>').format(_percent(bar.wanted, chart.most))
    return Markup(
        '<div class="bar"><span class="name">{}</span><span class="track">{}{}</span>'
        '<span class="value">{}</span></div>'
    ).format(_name(bar.name), fill, mark, bar.text)


def _histograms(chart: Histograms) -> Markup:
    rows = [
        Markup('<div class="panels">{}</div>').format(Markup("").join(_panel(p, chart) for p in row))
        for row in chart.panels
    ]
    return Markup('<div class="chart">{}</div>').format(Markup("").join(rows))


def _panel(panel: Histogram, chart: Histograms) -> Markup:
    most, count = max(panel.counts, default=0), max(len(panel.counts), 1)
    width = 100 / count
    rects = [
        Markup('<rect x="{:.3f}" y="{:.3f}" width="{:.3f}" height="{:.3f}"/>').format(
            i * width + width * 0.06, HEIGHT * (1 - n / most), width * 0.88, HEIGHT * n / most
        )
        for i, n in enumerate(panel.counts)
        if n
    ]
    label = f"Histogram of {_name(panel.name)}: {panel.text}"
    return Markup(
        '<div class="panel"><div class="head"><b>{}</b> <span>{}</span></div>'
        '<svg role="img" aria-label="{}" viewBox="0 0 100 100" preserveAspectRatio="none">{}</svg>{}</div>'
    ).format(_name(panel.name), panel.text, label, Markup("").join(rects), _axis(chart.ticks, chart.unit))


def _lines(chart: Lines) -> Markup:
    rows = [_line(line, chart) for line in chart.lines]
    return Markup('<div class="chart lines">{}{}</div>').format(
        Markup("").join(rows), Markup('<div class="line"><span></span>{}</div>').format(_axis(chart.ticks, chart.unit))
    )


def _line(line: Line, chart: Lines) -> Markup:
    breaks = [
        Markup('<line class="break" x1="{0:.2f}" x2="{0:.2f}" y1="0" y2="100"/>').format(100 * place)
        for place in chart.breaks
    ]
    label = f"{_name(line.name)}: {line.text}"
    return Markup(
        '<div class="line"><div class="head"><b>{}</b> <span>{}</span></div>'
        '<svg role="img" aria-label="{}" viewBox="0 0 100 100" preserveAspectRatio="none">{}{}{}</svg></div>'
    ).format(
        _name(line.name), line.text, label, _path(line, chart.most, filled=True), _path(line, chart.most, filled=False),
        Markup("").join(breaks),
    )  # fmt: skip


def _path(line: Line, most: float, *, filled: bool) -> Markup:
    pieces: list[list[tuple[float, float]]] = [[]]
    for place, value in line.points:
        if value is None:
            pieces.append([])
        else:
            pieces[-1].append((100 * place, HEIGHT * (1 - min(max(value / most if most else 0.0, 0.0), 1.0))))
    drawn = ""
    for piece in filter(None, pieces):
        points = piece if len(piece) > 1 else [piece[0], (min(piece[0][0] + 0.4, 100.0), piece[0][1])]
        drawn += "M" + "L".join(f"{x:.2f} {y:.2f}" for x, y in points)
        if filled:
            drawn += f"L{points[-1][0]:.2f} 100L{points[0][0]:.2f} 100Z"
    return Markup('<path class="{}" d="{}"/>').format("area" if filled else "edge", drawn)


def _intervals(chart: Intervals) -> Markup:
    span = chart.last - chart.first

    def place(value: float) -> float:
        return min(max((value - chart.first) / span if span else 0.0, 0.0), 1.0)

    parts = []
    for name, own in chart.groups:
        rows = []
        for one in own:
            between = Markup("")
            if one.low is not None and one.high is not None:
                low, high = place(one.low), place(one.high)
                cut = " beyond" if one.high > chart.last else ""
                between = Markup('<span class="between{}" style="left:{:.2f}%;width:{:.2f}%"></span>').format(
                    cut, 100 * low, 100 * (high - low)
                )
            rows.append(
                Markup(
                    '<div class="bar"><span class="name">{}</span><span class="track scale">{}'
                    '<span class="dot" style="left:{:.2f}%"></span></span><span class="value">{}</span></div>'
                ).format(_name(one.name), between, 100 * place(one.value), one.text)
            )
        head = Markup('<div class="group">{}</div>').format(_name(name))
        parts.append(Markup('<div class="bars">{}{}</div>').format(head, Markup("").join(rows)))
    axis = Markup('<div class="bar"><span class="name"></span>{}<span class="value"></span></div>').format(
        _axis(chart.ticks, chart.unit)
    )
    return Markup('<div class="chart"><div class="group-alone">{}{}</div></div>').format(Markup("").join(parts), axis)


def _axis(ticks: Sequence[tuple[float, str]], unit: str) -> Markup:
    marks = [
        Markup('<span class="tick{}" style="left:{:.2f}%">{}</span>').format(
            " first" if place < 0.04 else " last" if place > 0.96 else "", 100 * place, text
        )
        for place, text in ticks
    ]
    return Markup('<div class="axis">{}<span class="unit">{}</span></div>').format(Markup("").join(marks), unit)
