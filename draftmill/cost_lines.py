"""Costs as a person reads them, at 80 columns: stages, hours, what each number rests on. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from textwrap import wrap

from draftmill.amounts import SURENESS, Amount, total
from draftmill.costing import CategoryNeed, Stage
from draftmill.looking.answers import left
from draftmill.planning import Costs
from draftmill.table import cut, printable

WIDTH = 80
NAME = 20
MARKS = {"exact": "", "measured": "", "estimated": "~", "assumed": "?"}
MEANING = "~ arithmetic on published figures; ? rests on an assumption: both are said below"


def cost_lines(costs: Costs) -> list[str]:
    """Every line."""
    lines = [cut(printable(f"{costs.name} with {costs.model}"), WIDTH), ""]
    if costs.unknown:
        lines += [*wrap(printable(f"hours and states are unknown: {costs.unknown}"), WIDTH), ""]
    lines += _needs(costs.needs)
    lines += ["", *_stages(costs.stages), "", *_hours(costs)]
    marks = {_mark(amount) for stage in costs.stages for amount in (stage.rows, stage.tokens, *_known(stage))}
    lines += ["", MEANING] if marks - {""} else []
    if costs.elsewhere:
        lines += ["", *_elsewhere(costs)]
    lines += ["", "where the numbers come from", *_sources(costs)]
    return lines


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
    """A time for a person: 13 h, 50 min, 20 s."""
    if hours >= 1:
        return f"{number(hours)} h"
    minutes = hours * 60
    return f"{minutes:.0f} min" if minutes >= 1 else f"{minutes * 60:.0f} s" if hours else "0"


def _needs(needs: Sequence[CategoryNeed]) -> list[str]:
    rows = [
        (
            left(need.name or "-", NAME).rstrip(), f"{need.prompts:,}", f"{need.held_out:,}",
            _shown(need.answers, count), _shown(need.prompt_tokens, number), _shown(need.response_tokens, number),
            f"{need.counted:,}" if need.counted else "none",
        )
        for need in needs
    ]  # fmt: skip
    rows.append(
        (
            "all", f"{sum(need.prompts for need in needs):,}", f"{sum(need.held_out for need in needs):,}",
            _shown(total(need.answers for need in needs), count), "", "", "",
        )
    )  # fmt: skip
    table = _table(("category", "prompts", "held out", "answers", "prompt tok.", "resp. tok.", "counted"), rows)
    return [*table, "tokens are means of an answer; counted: answers here that they are of"]


def _stages(stages: Sequence[Stage]) -> list[str]:
    rows = [
        (
            stage.name, _shown(stage.rows, count), _shown(stage.tokens, number),
            "unknown" if stage.disk_bytes is None else _ranged(stage.disk_bytes, sized),
        )
        for stage in stages
    ]  # fmt: skip
    return _table(("stage", "rows to make", "tokens", "disk"), rows)


def _hours(costs: Costs) -> list[str]:
    what = costs.gpu.name if costs.gpu else f"this machine's {costs.devices}s"
    timed = [stage for stage in costs.stages if stage.name != "prompts"]
    rows = []
    for stage in timed:
        rows.append((stage.name, *_priced(stage.gpu_hours, costs)))
    known = [stage.gpu_hours for stage in timed if stage.gpu_hours is not None]
    if known and len(known) == len(timed):
        rows.append(("all", *_priced(total(known), costs)))
    price = ""
    if costs.price_usd:
        low, high = costs.price_usd
        price = f", {low:.2f} USD an hour each" if low == high else f", {low:.2f} to {high:.2f} USD an hour each"
    return [
        cut(f"on {costs.gpus:,} x {what}{price}", WIDTH),
        *_table(("stage", f"{costs.devices}-hours", "time", "USD"), rows),
    ]


def _priced(hours: Amount | None, costs: Costs) -> tuple[str, str, str]:
    if hours is None:
        return "unknown", "unknown", "unknown"
    usd = _ranged(_dollars(hours, costs.price_usd), number) if costs.price_usd else "unknown"
    return _ranged(hours, number), _ranged(hours.times(1 / costs.gpus), duration), usd


def _elsewhere(costs: Costs) -> list[str]:
    rows = []
    for one in costs.elsewhere:
        hours = [stage.gpu_hours for stage in one.stages if stage.name != "prompts"]
        known = [amount for amount in hours if amount is not None]
        if one.engine is None or len(known) < len(hours):
            rows.append((one.gpu.name, "does not fit", "", ""))
            continue
        spent, price = total(known), ""
        if one.gpu.price_usd:
            price = _ranged(_dollars(spent, one.gpu.price_usd), number, mark=False)
        rows.append((one.gpu.name, f"{one.engine.gpus}", _ranged(spent, number, mark=False), price))
    head = "all stages on other hardware, by arithmetic alone, at list prices"
    return [head, *_table(("gpu", "GPUs an engine", "GPU-hours", "USD"), rows)]


def _dollars(hours: Amount, price_usd: tuple[float, float]) -> Amount:
    low, high = price_usd
    return Amount(hours.value * (low * high) ** 0.5, hours.low * low, hours.high * high, hours.sources)


def _sources(costs: Costs) -> list[str]:
    """Each source once, the surest first, and what was noticed."""
    amounts = [amount for stage in costs.stages for amount in (stage.rows, stage.tokens, *_known(stage))]
    parts = [amount for need in costs.needs for amount in (need.turns, need.prompt_tokens, need.response_tokens)]
    found = dict.fromkeys(source for amount in (*parts, *amounts) for source in amount.sources)
    lines = []
    for sure in SURENESS:
        named = [source for of, source in found if of == sure]
        if named:
            told = printable(f"{sure}: {'; '.join(named)}")
            lines += wrap(told, WIDTH - 2, initial_indent="  ", subsequent_indent="    ")
    for note in costs.notes:
        lines += wrap(printable(note), WIDTH - 2, initial_indent="  ", subsequent_indent="    ")
    if costs.price_usd and costs.gpu:
        where = costs.gpu.price_source if costs.price_usd == costs.gpu.price_usd else "--price"
        lines += wrap(f"prices: {where}", WIDTH - 2, initial_indent="  ", subsequent_indent="    ")
    return lines


def _known(stage: Stage) -> list[Amount]:
    return [amount for amount in (stage.disk_bytes, stage.gpu_hours) if amount is not None]


def _mark(amount: Amount) -> str:
    return MARKS[amount.sure]


def _shown(amount: Amount, text: Callable[[float], str]) -> str:
    return f"{_mark(amount)}{text(amount.value)}"


def _ranged(amount: Amount, text: Callable[[float], str], mark: bool = True) -> str:
    """A value with its range where it has one."""
    value, low, high = text(amount.value), *(text(float(f"{end:.2g}")) for end in (amount.low, amount.high))
    if amount.low == amount.high:
        low = high = value
    shown = f"{_mark(amount) if mark else ''}{value}"
    return shown if low == high else f"{shown} ({low}–{high})"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    body = [header, *rows]
    widths = [max(len(row[i]) for row in body) for i in range(len(header))]
    lines = []
    for row in body:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append(cut("  ".join(cells).rstrip(), WIDTH))
    lines.insert(1, cut("  ".join("─" * width for width in widths), WIDTH))
    return lines
