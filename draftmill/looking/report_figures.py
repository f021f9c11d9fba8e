"""Sections of a report that rest on measurements: lengths, how answers end, rates, acceptance.

Pure: facts in, blocks out. A section without a measurement says so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from draftmill.looking.charts import (
    Bar,
    Bars,
    Histogram,
    Histograms,
    Interval,
    Intervals,
    Line,
    Lines,
    even_ticks,
    nice_ceiling,
)
from draftmill.looking.report_blocks import MOST_ROWS, Block, Code, Figure, Section, Table, table, words
from draftmill.looking.report_facts import Acceptance, Facts, Lengths, Rates

PER_OCTAVE = 2
MOST_PANELS = 12
MOST_LINES = 16
MOST_DRAFTERS = 6
WIDEST = 3.0
"""The axis of τ ends at the widest interval, and at most at so many times the highest τ."""
AS_SERVED = ("vllm", "walk")
"""Measures that say what serving will see, the best first."""
UNITS = ((3600.0, "h"), (60.0, "min"), (1.0, "s"))
COMMANDS = {"generate": "Generation", "extract": "Extraction", "train": "Training"}


def lengths_section(facts: Facts) -> Section:
    """Histograms and percentiles of prompts and responses, and how answers ended."""
    if not facts.lengths:
        return Section(
            "lengths", "Lengths and ends of answers", (words("No answer is accepted yet: not measured yet."),)
        )
    names = [name for name in facts.categories() if any(one.category == name for one in facts.lengths)]
    held = {(one.category, one.kind): one for one in facts.lengths}
    blocks: list[Block] = [
        words("Tokens of accepted answers, one turn each, by category; the axis doubles from mark to mark."),
        Figure(_histograms(held, names[:MOST_PANELS]), "How many answers have how many tokens, prompt and response."),
        _percentiles(held, names),
    ]
    if len(names) > MOST_PANELS:
        blocks.append(words(f"The figure shows {MOST_PANELS} of {len(names):,} categories, the largest."))
    return Section("lengths", "Lengths and ends of answers", (*blocks, *_ends(facts)))


def _histograms(held: dict[tuple[str, str], Lengths], names: Sequence[str]) -> Histograms:
    bins = [place for one in held.values() for place, _ in one.bins]
    first = min(bins, default=0) // PER_OCTAVE * PER_OCTAVE
    last = (max(bins, default=0) // PER_OCTAVE + 1) * PER_OCTAVE
    count = last - first
    panels = []
    for name in names:
        row = []
        for kind in ("prompt", "response"):
            one = held.get((name, kind))
            if one:
                counts = [0] * count
                for place, rows in one.bins:
                    counts[place - first] += rows
                row.append(Histogram(f"{name}, {kind}", f"median {one.p50:,.0f}", tuple(counts)))
        panels.append(tuple(row))
    octaves = range(first // PER_OCTAVE, last // PER_OCTAVE + 1)
    step = max(1, -(-len(octaves) // 6))
    ticks = tuple(
        ((octave * PER_OCTAVE - first) / count, _tokens(2**octave)) for i, octave in enumerate(octaves) if i % step == 0
    )
    return Histograms(tuple(panels), ticks, "tokens")


def _tokens(number: int) -> str:
    return f"{number // 1024}k" if number >= 4096 else str(number)


def _percentiles(held: dict[tuple[str, str], Lengths], names: Sequence[str]) -> Table:
    lines = []
    for name in names:
        for kind in ("prompt", "response"):
            one = held.get((name, kind))
            if one:
                figures = (one.mean, one.least, one.p50, one.p90, one.p99, one.most)
                lines.append((name, kind, f"{one.rows:,}", *(f"{figure:,.0f}" for figure in figures)))
    header = ("category", "tokens of", "#answers", "#mean", "#least", "#median", "#90%", "#99%", "#most")
    left = f"{len(lines) - MOST_ROWS:,} more" if len(lines) > MOST_ROWS else ""
    return table(header, lines[:MOST_ROWS], rest=left)


def _ends(facts: Facts) -> list[Block]:
    counts: dict[str, dict[str, int]] = defaultdict(dict)
    sums: dict[str, int] = defaultdict(int)
    for one in facts.finish:
        counts[one.name][one.reason] = one.rows
        sums[one.reason] += one.rows
    reasons = sorted(sums, key=lambda reason: (-sums[reason], reason))[:MOST_PANELS]
    names = [name for name in facts.categories() if name in counts]
    if not reasons:
        return []
    lines = []
    for name in names:
        whole = sum(counts[name].values())
        shares = [f"{counts[name].get(r, 0) / whole:.1%}" for r in reasons]
        both = [
            cell for r, share in zip(reasons, shares, strict=True) for cell in (f"{counts[name].get(r, 0):,}", share)
        ]
        lines.append((name, *both))
    whole = sum(sums.values())
    total = ["all", *(cell for r in reasons for cell in (f"{sums[r]:,}", f"{sums[r] / whole:.1%}"))]
    bars = tuple(
        Bar(reason, float(sums[reason]), f"{sums[reason]:,} ({sums[reason] / whole:.1%})") for reason in reasons
    )
    return [
        words("Why accepted answers ended (", Code("finish_reason"), "): ", Code("stop"), " is the model's own end, ",
              Code("length"), " the most tokens that it may take."),
        Figure(Bars((("", bars),), float(max(sums.values()))), "Accepted answers by finish_reason."),
        table(["category", *(c for r in reasons for c in (f"#{r}", "#share"))], lines[:MOST_ROWS], total),
    ]  # fmt: skip


def rates_section(facts: Facts) -> Section:
    """Tokens a second over time, all engines and each."""
    blocks: list[Block] = []
    for rates in facts.rates:
        if rates.engines:
            blocks += _rates(rates)
    if not blocks:
        blocks.append(words("No engine was sampled for this build: not measured yet."))
    return Section("throughput", "Throughput", tuple(blocks))


def _rates(rates: Rates) -> list[Block]:
    shown = rates.engines[:MOST_LINES]
    size, unit = next(one for one in UNITS if rates.seconds >= 2 * one[0] or one[0] == 1.0)
    whole = max(rates.seconds, 1e-9)
    ticks = tuple((at * size / whole, f"{at:g}") for at in even_ticks(0, whole / size))
    several = len(rates.engines) > 1

    def line(name: str, text: str, points: Sequence[tuple[float, float | None]]) -> Line:
        return Line(name, text, tuple((min(at / whole, 1.0), value) for at, value in points))

    def rate(points: Sequence[tuple[float, float | None]]) -> float:
        known = [value for _, value in points if value is not None]
        return sum(known) / len(known) if known else 0.0

    def peak(points: Sequence[tuple[float, float | None]]) -> float:
        return max((value for _, value in points if value is not None), default=0.0)

    most = nice_ceiling(max(one.peak for one in rates.engines))
    command = COMMANDS.get(rates.command, rates.command)
    breaks = tuple(at / whole for at in rates.breaks[:60])
    runs = f" over {len(rates.breaks) + 1:,} runs laid end to end" if rates.breaks else ""
    all_of_them = line("all engines", f"mean {rate(rates.total):,.0f} tokens/s", rates.total)
    figures: list[Block] = [words(f"{command}: {len(rates.engines):,} engine{'s' if several else ''}{runs}.")]
    if several:
        highest = nice_ceiling(peak(rates.total))
        figures.append(
            Figure(
                Lines((all_of_them,), highest, ticks, unit, breaks),
                f"{command}: tokens a second of all engines together, from 0 to {highest:,.0f}.",
            )
        )
    lines = tuple(
        line(f"{one.device} {one.name}".strip(), f"mean {one.mean:,.0f} tokens/s", one.points) for one in shown
    )
    figures.append(
        Figure(
            Lines(lines, most, ticks, unit, breaks),
            f"{command}: tokens a second of each engine, from 0 to {most:,.0f}.",
        )
    )
    if len(rates.engines) > len(shown):
        figures.append(words(f"The figure shows {len(shown)} of {len(rates.engines)} engines."))
    body = [
        (
            one.device, one.name, f"{one.samples:,}", f"{one.mean:,.0f}", f"{one.peak:,.0f}", _number(one.running),
            _percent(one.kv_use), _percent(one.prefix_hits),
        )
        for one in rates.engines
    ]  # fmt: skip
    header = ("device", "engine", "#samples", "#tokens/s", "#peak", "#running", "#KV cache used", "#prefix hits")
    return [*figures, table(header, body)]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def best_acceptance(facts: Facts) -> Acceptance | None:
    """The pooled figure of the newest own drafter, measured as serving sees it if it was."""
    pooled = {(one.drafter_id, one.measured_by): one for one in facts.acceptance if not one.category}
    for drafter in facts.drafters:
        for measure in AS_SERVED:
            if (drafter.drafter_id, measure) in pooled:
                return pooled[drafter.drafter_id, measure]
    return None


def acceptance_section(facts: Facts) -> Section:
    """Acceptance length by category, with intervals, of every drafter that was measured here."""
    title = "Acceptance length τ"
    measured = [one for one in facts.drafters if any(a.drafter_id == one.drafter_id for a in facts.acceptance)]
    if not measured:
        told = (
            "A drafter is trained, and not measured yet."
            if facts.drafters
            else "No drafter is trained yet: not measured yet."
        )
        return Section("acceptance", title, (words(told),))
    blocks: list[Block] = [
        words(
            "Tokens a step of the target on held-out prompts, its own one included: 1 + accepted / drafts. Intervals "
            "are 95%, with answers taken for the independent draws; vLLM's counters and single answers have none. ",
            Code("vllm"), " is its own counters, ", Code("walk"), " the sequential walk as serving steps, ",
            Code("anchors"), " the mean over all positions "
            "(another number), ", Code("ddtree_N"), " the walk with a tree of N drafted nodes.",
        )
    ]  # fmt: skip
    for drafter in measured[:MOST_DRAFTERS]:
        own = [one for one in facts.acceptance if one.drafter_id == drafter.drafter_id]
        kind = "Trained on this build" if drafter.own else "Not of this build, measured on it"
        steps = f", {drafter.steps:,} steps" if drafter.steps else ""
        rows = f", {drafter.rows:,} rows" if drafter.rows else ""
        blocks.append(
            words("Drafter ", Code(drafter.drafter_id), f". {kind}: {drafter.algorithm or 'unknown'}{steps}{rows}.")
        )
        charted = [one for one in own if one.measured_by in AS_SERVED] or own
        chart = _intervals(charted, facts)
        goes_on = any(one.high is not None and one.high > chart.last for _, group in chart.groups for one in group)
        more = ", → marks one that goes on beyond the axis" if goes_on else ""
        blocks += [
            Figure(chart, f"τ by category; bars are 95% intervals{more}."),
            _acceptance(own, facts),
        ]
    if len(measured) > MOST_DRAFTERS:
        blocks.append(
            words(f'{len(measured) - MOST_DRAFTERS:,} more drafters: draftmill sql "FROM acceptance_by_category"')
        )
    return Section("acceptance", title, tuple(blocks))


def _ordered(own: Sequence[Acceptance], facts: Facts) -> list[Acceptance]:
    names = dict.fromkeys([*facts.categories(), *sorted({one.category for one in own if one.category})])
    places = {name: i for i, name in enumerate([*names, ""])}  # pooled comes last
    return sorted(own, key=lambda one: (places[one.category], _measure_order(one.measured_by)))


def _measure_order(measure: str) -> tuple[int, int, str]:
    order = [*AS_SERVED, "anchors"]
    size = measure.rpartition("_")[2]
    return order.index(measure) if measure in order else len(order), int(size) if size.isdigit() else 0, measure


def _intervals(own: Sequence[Acceptance], facts: Facts) -> Intervals:
    most = max(one.tau for one in own)
    # an interval of two answers may be as wide as it likes: the figures are what is to be seen
    last = min(max(one.high or one.tau for one in own), WIDEST * most)
    last = max(last, most)
    ticks = even_ticks(1.0, max(last, 1.5))
    end = max(ticks[-1], last)
    groups: dict[str, list[Interval]] = defaultdict(list)
    for one in _ordered(own, facts)[: MOST_PANELS * 4]:
        groups[one.category or "all, pooled"].append(
            Interval(one.measured_by, one.tau, one.low, one.high, _interval_text(one, end))
        )
    span = end - 1.0
    marks = tuple(((at - 1.0) / span, f"{at:g}") for at in ticks)
    return Intervals(tuple((name, tuple(rows)) for name, rows in groups.items()), 1.0, end, marks, "τ")


def _interval_text(one: Acceptance, end: float) -> str:
    goes_on = " →" if one.high is not None and one.high > end else ""
    return f"{one.tau:.2f} {_between(one, '–')}".rstrip() + goes_on


def _between(one: Acceptance, to: str = " to ") -> str:
    return f"({one.low:.2f}{to}{one.high:.2f})" if one.low is not None and one.high is not None else ""


def _acceptance(own: Sequence[Acceptance], facts: Facts) -> Table:
    lines = [
        (
            one.category or "all, pooled", one.measured_by, f"{one.tau:.2f}",
            _between(one).strip("()"), f"{one.drafts:,}", f"{one.rows:,}",
        )
        for one in _ordered(own, facts)
    ]  # fmt: skip
    left = f"{len(lines) - MOST_ROWS:,} more" if len(lines) > MOST_ROWS else ""
    return table(
        ("category", "measured by", "#τ", "#95% interval", "#drafts", "#answers"), lines[:MOST_ROWS], rest=left
    )
