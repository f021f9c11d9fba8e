"""A composition for a person: a table of categories and stages in 80 columns, and in words where it is off. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len

from draftmill.looking.answers import UNLINKED, WIDTH, bar, count, left, percent, said
from draftmill.looking.chosen import heading
from draftmill.looking.composition import JUDGED, SELECTED, TARGET, Composition

LABEL = 20
FIGURE = 10
ONE_LABEL = 24
MOST_NAMED = 3


def composition_lines(made: Composition, by_source: bool = False, age: str | None = None) -> list[str]:
    """All stages side by side."""
    stages = made.stages
    lines = [*_head(made), *(said(age) if age else [])]
    if not stages:
        return [*lines, "nothing is selected: its ledger has no rows of this build"]
    lines += ["", f"{'category':<{LABEL}}" + "".join(f"{stage:>{FIGURE}}" for stage in stages)]
    for category in made.categories:
        lines += _block(made, stages, category, None)
        if by_source:
            for source in made.sources(category):
                lines += _block(made, stages, category, source)
    lines += ["all".ljust(LABEL) + "".join(f"{count(made.amount(stage)):>{FIGURE}}" for stage in stages), ""]
    return lines + [line for sentence in verdict(made) for line in said(sentence)]


def _block(made: Composition, stages: Sequence[str], category: str, source: str | None) -> list[str]:
    """Shares, counts, and where one is off its target by how much."""
    shares, counts, offs = "", "", ""
    for stage in stages:
        none = source is not None and stage == TARGET
        shares += f"{'' if none else percent(made.share(stage, category, source)):>{FIGURE}}"
        amount = made.amount(stage, category, source)
        unknown = amount is None and (none or made.amount(stage) is None)
        counts += f"{'' if unknown else count(amount or 0):>{FIGURE}}"
        off = made.off(stage, category) if source is None else None
        offs += f"{'' if off is None else _off_words(off):>{FIGURE}}"
    name = category if source is None else f"  {source}"
    label = left(name, LABEL) if cell_len(name) <= LABEL else ""
    lines = [] if label else [left(name, WIDTH).rstrip()]
    lines.append((label or " " * LABEL) + shares)
    return lines + [" " * LABEL + figures for figures in (counts, offs) if figures.strip()]


def _off_words(points: float) -> str:
    return f"{abs(points):.1f} {'high' if points > 0 else 'low'}"


def _head(made: Composition) -> list[str]:
    """Which build it is, how far, and what to do where its answers are not looked up yet."""
    unlinked = not made.wanted and not made.build.imported and made.build.running is None
    return [*said(heading(made.build)), *said(_progress(made)), *(said(UNLINKED) if unlinked else [])]


def _progress(made: Composition) -> str:
    """How far it is, and what is counted."""
    unit = "response tokens" if made.in_tokens else "prompts"
    held = f"; {made.build.held_out:,} held-out prompts are not counted" if made.build.held_out else ""
    accepted = made.cell("accepted")
    have = accepted.rows if accepted else 0
    far = f"{have:,} of {made.wanted:,} answers accepted" if made.wanted else "no answers yet"
    running = f", {made.build.running} is running" if made.build.running else ""
    return f"{far}{running}; counted in {unit}{held}"


def verdict(made: Composition) -> list[str]:
    """In words: which stage keeps its shares, and which category misses its own by how much."""
    if not made.cells:
        return []
    if made.in_tokens and not any(made.amount(stage) for stage in JUDGED):
        return ["Response tokens are not known: nothing is generated, or it was imported without --tokenizer."]
    if TARGET not in made.stages:
        return ["It has no target: shares are what it holds." if made.build.imported else "It has no target."]
    if not made.is_judged:
        counted = "response tokens" if made.build.in_tokens else "prompts"
        return [f"Its target counts {counted}; these shares are not held to it."]
    tolerance = f"{made.build.tolerance or 0:g} points"
    so_far = ", so far" if made.build.running else ""
    alike: dict[tuple[tuple[str, bool], ...], list[str]] = {}
    for stage in made.stages:
        off = {name: points for name in made.categories if (points := made.off(stage, name)) is not None}
        if off:
            alike.setdefault(tuple((name, points > 0) for name, points in off.items()), []).append(stage)
    sentences = [
        f"{', '.join(stages)}: off target{so_far}: {_named(made, stages)} (tolerance {tolerance}{_of(stages)})."
        for stages in alike.values()
    ]
    judged = [stage for stage in made.stages if stage in JUDGED] or [SELECTED]
    if not sentences:
        return [f"{', '.join(judged)}: every category is within {tolerance}, or one prompt, of its target{so_far}."]
    return sentences


def _named(made: Composition, stages: Sequence[str]) -> str:
    """The categories that are off in all of these stages, and by how much where it counts."""
    stage = _told(stages)
    off = {name: points for name in made.categories if (points := made.off(stage, name)) is not None}
    worst = sorted(off, key=lambda name: (-round(abs(off[name]), 6), name))
    words = [
        f"{name} is {abs(off[name]):.1f} points {'above' if off[name] > 0 else 'below'}" for name in worst[:MOST_NAMED]
    ]
    more = f" and {len(off) - MOST_NAMED} more" if len(off) > MOST_NAMED else ""
    return f"{', '.join(words)}{more}"


def _of(stages: Sequence[str]) -> str:
    return f"; figures of {_told(stages)}" if len(stages) > 1 else ""


def _told(stages: Sequence[str]) -> str:
    """The stage whose figures stand for all."""
    return "accepted" if "accepted" in stages else stages[-1]


def stage_lines(made: Composition, stage: str, by_source: bool = False, age: str | None = None) -> list[str]:
    """One stage, with all its figures and a bar against the target."""
    lines = [*_head(made), *(said(age) if age else [])]
    header = f"{stage:<{ONE_LABEL}}{'target':>7}{'share':>8}{'prompts':>10}{'answers':>10}{'tokens':>10}"
    lines += ["", header]
    for category in made.categories:
        lines.append(_stage_line(made, stage, category, None))
        if by_source:
            lines += [
                _stage_line(made, stage, category, source)
                for source in made.sources(category)
                if made.cell(stage, category, source)
            ]
    lines.append(_figures("all", "", "", made, stage, None, None))
    words = [one for one in verdict(made) if stage in one.split(":")[0].split(", ")]
    return [*lines, *(["", *said(words[0])] if words else [])]


def _stage_line(made: Composition, stage: str, category: str, source: str | None) -> str:
    name = category if source is None else f"  {source}"
    target = percent(made.share(TARGET, category)) if source is None and TARGET in made.stages else ""
    share = made.share(stage, category, source)
    line = _figures(name, target, percent(share or 0.0), made, stage, category, source)
    return f"{line}  {bar(share or 0.0, WIDTH - cell_len(line) - 2)}".rstrip()


def _figures(
    name: str, target: str, share: str, made: Composition, stage: str, category: str | None, source: str | None
) -> str:
    one = made.cell(stage, category, source)
    answers = None if one is None or stage in (TARGET, SELECTED) else one.rows
    figures = (one.prompts if one else 0, answers, one.response_tokens if one else None)
    return f"{left(name, ONE_LABEL)}{target:>7}{share:>8}" + "".join(f"{count(value):>10}" for value in figures)
