"""Charts as plain HTML and inline SVG: no script, no request, readable without colour.

Pure: numbers and names in, markup out. Names are untrusted; markupsafe escapes whatever is put into a tag. Text stands
in HTML, never in an SVG that is scaled, so it keeps its size on a phone. Every bar has its number beside it, every SVG
a label that says in words what it shows; colours are CSS variables of the page: one hue for what is, one for what was
wanted.
"""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from draftmill.looking.charts import Bar, Bars, Chart, Histogram, Histograms, Intervals, Line, Lines
from draftmill.table import visible

MOST_NAME = 48
HEIGHT = 100.0


def chart_html(chart: Chart) -> Markup:
    """The markup of a chart."""
    if isinstance(chart, Bars):
        return _bars(chart)
    if isinstance(chart, Histograms):
        return _histograms(chart)
    if isinstance(chart, Lines):
        return _lines(chart)
    return _intervals(chart)


def _percent(value: float, most: float) -> str:
    return f"{100 * min(max(value / most if most else 0.0, 0.0), 1.0):.2f}%"


def _bars(chart: Bars) -> Markup:
    parts = []
    for name, bars in chart.groups:
        head = Markup('<div class="group">{}</div>').format(visible(name, MOST_NAME)) if name else Markup("")
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
    ).format(visible(bar.name, MOST_NAME), fill, mark, bar.text)


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
    label = f"Histogram of {visible(panel.name, MOST_NAME)}: {panel.text}"
    return Markup(
        '<div class="panel"><div class="head"><b>{}</b> <span>{}</span></div>'
        '<svg role="img" aria-label="{}" viewBox="0 0 100 100" preserveAspectRatio="none">{}</svg>{}</div>'
    ).format(visible(panel.name, MOST_NAME), panel.text, label, Markup("").join(rects), _axis(chart.ticks, chart.unit))


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
    label = f"{visible(line.name, MOST_NAME)}: {line.text}"
    return Markup(
        '<div class="line"><div class="head"><b>{}</b> <span>{}</span></div>'
        '<svg role="img" aria-label="{}" viewBox="0 0 100 100" preserveAspectRatio="none">{}{}{}</svg></div>'
    ).format(
        visible(line.name, MOST_NAME), line.text, label, _path(line, chart.most, filled=True),
        _path(line, chart.most, filled=False), Markup("").join(breaks),
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
                ).format(visible(one.name, MOST_NAME), between, 100 * place(one.value), one.text)
            )
        head = Markup('<div class="group">{}</div>').format(visible(name, MOST_NAME))
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
