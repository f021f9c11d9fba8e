"""A run's progress as text: one line, or a block of two tables (categories, engines). Pure.

No line is wider than asked, whatever a name or a number holds. A block that is too high for its terminal sums its
engines up (least, median, most), then leaves categories out and says how many. Widths are those of a terminal (a CJK
character takes two columns).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median
from typing import TYPE_CHECKING

from rich.cells import cell_len

from draftmill.table import cut, printable

if TYPE_CHECKING:
    from generation.progress import CategoryProgress, EngineProgress, Progress

WIDTH = 80
GAP = 2
LEAST_NAME = 8
"""Columns that a name keeps; figures on the right give way for them."""
MANY_ENGINES = 16
"""More than these are summed up."""
SILENT_S = 30.0
"""An engine says how it is every few seconds."""
STARTS_S = 15 * 60.0
"""Seconds of a start after which an engine is said to be down: fleet gives up about then."""
UNKNOWN = "-"

Row = tuple[str, ...]
CATEGORY_HEADER = ("category", "share", "declared", "accepted", "of", "rejected", "truncated")
ENGINE_HEADER = ("engine", "tok/s", "running", "waiting", "KV", "prefix hits")


def progress_lines(
    progress: Progress, width: int = WIDTH, height: int | None = None, notes: Sequence[str] = ()
) -> list[str]:
    """The block: where the run is, its categories, its engines.

    Args:
        width: of the terminal, in columns; no line is wider.
        height: lines at most; None for no limit.
        notes: said below the first lines, such as that the run is stopping.
    """
    head = [*flow(_done_parts(progress), width), *flow(_count_parts(progress), width)]
    head += [line for note in notes for line in flow([note], width)]
    categories = fit_table(CATEGORY_HEADER, _category_rows(progress.categories), width)
    every = fit_table(ENGINE_HEADER, _engine_rows(progress), width)
    summed = fit_table(ENGINE_HEADER, _summary_rows(progress), width)
    room = math.inf if height is None else height
    engines = summed if len(progress.engines) > MANY_ENGINES else every
    if len(head) + len(categories) + len(engines) > room:
        engines = min(every, summed, key=len)
    over = len(head) + len(categories) + len(engines) - room
    if over > 0:
        categories = _shorten(categories, int(over), width)
    sections = [section for section in (head, categories, engines) if section]
    blanks = len(sections) - 1
    if sum(map(len, sections)) + blanks <= room:
        sections = [section if i == 0 else ["", *section] for i, section in enumerate(sections)]
    lines = [line for section in sections for line in section]
    return lines if height is None else lines[:height]


def progress_line(progress: Progress) -> str:
    """All in one line, for a log."""
    if progress.stopping:
        return stopping_note(progress)
    parts = _done_parts(progress)
    if progress.rejected:
        parts.insert(2, f"{count(progress.rejected)} rejected")
    return ", ".join(parts)


def result_line(progress: Progress) -> str:
    """What a build had when its run ended, in one line; tokens are the run's."""
    failed = f" ({count(progress.failed)} failed)" if progress.failed else ""
    return (
        f"{count(progress.accepted)} of {count(progress.total)} answers accepted, {count(progress.rejected)} rejected"
        f"{failed}, {count(progress.tokens)} tokens{' in this run' if progress.before else ''}"
    )


def stopping_note(progress: Progress, left_s: float | None = None) -> str:
    """What a run that was asked to stop still does.

    Args:
        left_s: how long it goes on waiting, where that is known.
    """
    within = "" if left_s is None else f", waits {span(left_s)} at most"
    return f"stopping: {count(progress.in_flight)} in flight{within}"


def left(seconds: float | None, error_s: float | None) -> str:
    """`1:42 h ± 6 min left`, `2:10 ± 0:20 min left`; no finer than is worth saying."""
    if seconds is None or not math.isfinite(seconds):
        return "time left unknown"
    known = error_s is not None and math.isfinite(error_s)
    error = error_s if error_s is not None and known else 0.0
    if seconds >= 48 * 3600:
        days, days_error = min(seconds / 86400, 9999), min(error / 86400, 9999)
        return f"{days:.1f}{f' ± {days_error:.1f}' if known else ''} days left"
    if seconds >= 3600:
        return f"{_clock(min(seconds, 9e6) / 60)} h{f' ± {span(max(error, 100))}' if known else ''} left"
    return f"{_clock(seconds)}{f' ± {_clock(min(error, 86400))}' if known else ''} min left"


def span(seconds: float) -> str:
    """A length of time in one unit: `40 s`, `6 min`, `1:10 h`."""
    if seconds < 100:
        return f"{max(0, seconds):.0f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{_clock(min(seconds, 9999 * 3600) / 60)} h"


def count(number: int) -> str:
    """Nine columns at most."""
    if number < 10_000_000:
        return f"{number:,}"
    return f"{number / 1e6:,.1f}M" if number < 10**9 else f"{number:.1e}"


def percent(part: float, whole: float, digits: int = 1) -> str:
    """Rounded, but 100% is all of it; `-` of nothing."""
    if not whole or not math.isfinite(part / whole):
        return UNKNOWN
    most = 999.0 if part >= whole else 100 - 10.0**-digits
    return f"{min(part / whole * 100, most):.{digits}f}%"


def _rate(tokens_per_s: float) -> str:
    if not math.isfinite(tokens_per_s):
        return UNKNOWN
    return f"{tokens_per_s:.1f}" if 0 < tokens_per_s < 9.95 else count(round(tokens_per_s))


def _clock(small: float) -> str:
    """Two units of sixty: minutes and seconds, or hours and minutes."""
    return f"{round(small) // 60}:{round(small) % 60:02}"


def _done_parts(progress: Progress) -> list[str]:
    done = f"{count(progress.finished)} of {count(progress.total)} answers"
    parts = [f"{done} ({percent(progress.finished, progress.total)})", f"{_rate(progress.tokens_per_s)} tok/s"]
    return parts if progress.stopping else [*parts, left(progress.left_s, progress.left_error_s)]


def _count_parts(progress: Progress) -> list[str]:
    failed = f" ({count(progress.failed)} failed)" if progress.failed else ""
    return [
        f"{count(progress.rejected)} rejected{failed}",
        f"{count(progress.truncated)} truncated",
        f"{count(progress.in_flight)} in flight",
        f"{count(progress.queued)} queued",
    ]


def _category_rows(categories: dict[str, CategoryProgress]) -> list[Row]:
    got = sum(one.got for one in categories.values())
    target = sum(one.target for one in categories.values())
    return [
        (
            name,
            percent(one.got, got),
            percent(one.target, target),
            count(one.accepted),
            count(one.wanted),
            count(one.rejected),
            count(one.truncated),
        )
        for name, one in sorted(categories.items(), key=lambda item: (-item[1].target, -item[1].wanted, item[0]))
    ]


def _engine_rows(progress: Progress) -> list[Row]:
    rows = [_engine_row(one, _silent_s(one, progress)) for one in progress.engines]
    return [*rows, _all_row(progress)] if len(rows) > 1 else rows


def _engine_row(one: EngineProgress, silent_s: float) -> Row:
    if one.starting:
        return (one.device, UNKNOWN, "starting" if silent_s < STARTS_S else "down", span(silent_s), "", "")
    if silent_s > SILENT_S:
        return (one.device, UNKNOWN, "silent", span(silent_s), "", "")
    return (
        one.device,
        _rate(one.tokens_per_s),
        f"{count(one.running)}/{count(one.max_num_seqs)}" if one.max_num_seqs else count(one.running),
        count(one.waiting),
        _part(one.kv_use),
        _part(one.prefix_hits),
    )


def _summary_rows(progress: Progress) -> list[Row]:
    engines = _heard(progress)
    if not engines:
        return [_all_row(progress)] if progress.engines else []
    kv = [one.kv_use for one in engines if one.kv_use is not None]
    hits = [one.prefix_hits for one in engines if one.prefix_hits is not None]

    def row(name: str, pick: Callable[[list[float]], float]) -> Row:
        return (
            name,
            _rate(pick([one.tokens_per_s for one in engines])),
            count(round(pick([one.running for one in engines]))),
            count(round(pick([one.waiting for one in engines]))),
            _part(pick(kv) if kv else None),
            _part(pick(hits) if hits else None),
        )

    return [row("least", min), row("median", median), row("most", max), _all_row(progress)]


def _all_row(progress: Progress) -> Row:
    engines = _heard(progress)
    running, fit = sum(one.running for one in engines), sum(one.max_num_seqs for one in engines)
    silent = len(progress.engines) - len(engines)
    return (
        f"all {len(progress.engines)}" if not silent else f"{len(engines)} of {len(progress.engines)}",
        _rate(sum(one.tokens_per_s for one in engines)),
        f"{count(running)}/{count(fit)}" if fit else count(running),
        count(sum(one.waiting for one in engines)),
        "",
        "",
    )


def _heard(progress: Progress) -> list[EngineProgress]:
    """What a silent engine said last says nothing of now; one that starts has said nothing."""
    return [one for one in progress.engines if not one.starting and _silent_s(one, progress) <= SILENT_S]


def _silent_s(one: EngineProgress, progress: Progress) -> float:
    return progress.updated_at - one.heard_at if one.heard_at else 0.0


def _part(value: float | None) -> str:
    return UNKNOWN if value is None else percent(value, 1, digits=0)


def flow(parts: Sequence[str], width: int) -> list[str]:
    """Parts one after the other, with commas; what does not fit goes into the next line."""
    lines: list[str] = []
    for i, raw in enumerate(parts):
        part = printable(raw) + ("," if i + 1 < len(parts) else "")
        if lines and cell_len(lines[-1]) + 1 + cell_len(part) <= width:
            lines[-1] += f" {part}"
        else:
            lines += _folded(part, width)
    return lines


def _folded(text: str, width: int) -> list[str]:
    lines = [""]
    for word in text.split(" "):
        if lines[-1] and cell_len(lines[-1]) + 1 + cell_len(word) > width:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".lstrip()
    return [cut(line, width) for line in lines]


def fit_table(header: Row, rows: Sequence[Row], width: int) -> list[str]:
    """Names to the left and figures to the right; names are cut first, then the rightmost figures left out."""
    if not rows:
        return []
    table = [tuple(printable(cell) for cell in row) for row in (header, *rows)]
    columns = len(header)
    while True:
        widths = [max(cell_len(row[i]) for row in table) for i in range(columns)]
        room = width - sum(widths[1:]) - GAP * (columns - 1)
        if room >= min(widths[0], LEAST_NAME) or columns == 1:
            break
        columns -= 1
    widths[0] = min(widths[0], max(room, 0))
    lines = []
    for row in table:
        cells = [_padded(cut(row[0], widths[0]), widths[0])]
        cells += [" " * (widths[i] - cell_len(row[i])) + row[i] for i in range(1, columns)]
        lines.append((" " * GAP).join(cells).rstrip())
    return lines


def _shorten(table: list[str], over: int, width: int) -> list[str]:
    """Leave the last rows out, and say so; a table of which no row would be left goes."""
    keep = len(table) - over - 1  # one line says so
    if keep < 2:
        return []
    return [*table[:keep], cut(f"and {len(table) - keep} more", width)]


def _padded(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))
