"""Funnels for a person, in 80 columns: each loss in plain words with its code, count, share and a bar. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from draftmill.looking.answers import UNLINKED, WIDTH, bar, count, left, percent, said
from draftmill.looking.chosen import Build, heading
from draftmill.looking.funnel import Funnel, summed
from draftmill.looking.reasons import answer_words, row_words

LABEL = 52
BAR = WIDTH - LABEL - 10 - 8 - 2
TAKEN_WORDS = {
    "not_needed": "not needed: the mix has enough",
    "held_out": "held out, never trained on",
    "selected": "selected",
}


def funnel_lines(build: Build, funnels: list[Funnel], age: str | None = None) -> list[str]:
    """The sum of all sources, then each of them."""
    lines = [*said(heading(build)), *(said(age) if age else [])]
    if build.running:
        lines += said(f"{build.running} is running: answers are those so far")
    elif not build.imported and not any(one.wanted for one in funnels):
        lines += said(UNLINKED)
    shown = [summed(funnels), *funnels] if len(funnels) > 1 else funnels
    for one in shown:
        lines += ["", *_block(one)]
    return [*lines, "", *_sums(funnels)]


def _sums(funnels: list[Funnel]) -> list[str]:
    breaches = [breach for one in funnels for breach in one.breaches]
    if not breaches:
        answers = " and each answer wanted" if any(one.wanted for one in funnels) else ""
        return [f"sums hold: each row read{answers} is in one line of its source"]
    return [line for breach in breaches for line in said(f"BREACH {breach}")]


def _block(one: Funnel) -> Iterator[str]:
    title = ", ".join(part for part in (one.source, one.license, one.dataset) if part)
    yield left(title, WIDTH).rstrip()
    yield _line("  rows read", one.read, one.read)
    for code, rows in one.drops.items():
        yield _line(f"    {row_words(code)} ({code})", rows, one.read)
    for code, words in TAKEN_WORDS.items():
        if code in one.rows:
            yield _line(f"    {words} ({code})" if code != "selected" else f"    {words}", one.rows[code], one.read)
    if not one.wanted:
        yield left("  answers wanted: none yet", WIDTH).rstrip()
        return
    yield _line("  answers wanted, one a turn, held-out ones too", one.wanted, one.wanted)
    for why, rows in sorted(one.missing.items(), key=lambda item: (-item[1], item[0])):
        words = answer_words(why)
        yield _line(f"    {words} ({why})" if words != why else f"    {words}", rows, one.wanted)
    yield _line("    accepted", one.accepted, one.wanted)
    if one.captured:
        yield _line("      captured", one.captured, one.wanted)
    if one.trained:
        yield _line("      trained on", one.trained, one.wanted)


def _line(label: str, number: int, whole: int) -> str:
    part = number / whole if whole else 0.0
    figures = f"{count(number):>10}{percent(part):>8}"
    return f"{left(label, LABEL)}{figures}  {bar(part, BAR)}".rstrip()
