"""Costs as a person reads them, at 80 columns: needs, stages, hours; cost_sources says what each rests on. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from textwrap import wrap

from draftmill.amounts import Amount, total
from draftmill.cost_sources import WIDTH, source_lines
from draftmill.costing import CategoryNeed, Stage
from draftmill.looking.answers import left
from draftmill.planning import Costs
from draftmill.quantities import count, duration, number, sized
from draftmill.table import cut, printable

__all__ = ["cost_lines", "duration", "number", "sized"]

NAME = 20
MARKS = {"exact": "", "measured": "", "estimated": "~", "assumed": "?"}
MEANING = "unmarked: exact or measured; ~ arithmetic on published figures; ? an assumption"


def cost_lines(costs: Costs) -> list[str]:
    """Every line."""
    lines = [cut(printable(f"{costs.name} with {costs.model}"), WIDTH), ""]
    if costs.unknown:
        lines += [*wrap(printable(f"hours and states are unknown: {costs.unknown}"), WIDTH), ""]
    lines += _needs(costs.needs)
    lines += ["", *_stages(costs.stages), "", *_hours(costs)]
    if costs.elsewhere:
        lines += ["", *_elsewhere(costs)]
    lines += ["", MEANING, "where each number comes from, by column", *source_lines(costs)]
    return lines


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
    return [*table, "tokens are means of an answer; counted: answers here under the same recipe"]


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
            price = _ranged(_dollars(spent, one.gpu.price_usd), number)
        rows.append((one.gpu.name, f"{one.engine.gpus}", _ranged(spent, number), price))
    head = "all stages on other hardware, by arithmetic alone (docs/hardware.md)"
    return [head, *_table(("gpu", "GPUs an engine", "GPU-hours", "USD"), rows)]


def _dollars(hours: Amount, price_usd: tuple[float, float]) -> Amount:
    low, high = price_usd
    return Amount(hours.value * (low * high) ** 0.5, hours.low * low, hours.high * high, hours.sources)


def _shown(amount: Amount, text: Callable[[float], str]) -> str:
    """A value with its mark; nothing is marked on nothing."""
    value = text(amount.value)
    return value if value == text(0.0) else f"{MARKS[amount.sure]}{value}"


def _ranged(amount: Amount, text: Callable[[float], str]) -> str:
    """A value with its mark, and its range where one can be seen."""
    shown, value = _shown(amount, text), text(amount.value)
    low, high = (text(float(f"{end:.2g}")) for end in (amount.low, amount.high))
    same = amount.low == amount.high or low == high
    nothing = text(amount.high) in (text(0.0), value) and (value == text(0.0) or value.startswith("<"))
    return shown if same or nothing else f"{shown} ({low}–{high})"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    body = [header, *rows]
    widths = [max(len(row[i]) for row in body) for i in range(len(header))]
    lines = []
    for row in body:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append(cut("  ".join(cells).rstrip(), WIDTH))
    lines.insert(1, cut("  ".join("─" * width for width in widths), WIDTH))
    return lines
