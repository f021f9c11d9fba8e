"""The section on the mix: what was declared, what is reached of it at each stage, and in one sentence whether it holds.

Pure: facts in, blocks out. Shares are parts of one stage, in the unit that the manifest declares.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftmill.looking.answers import UNLINKED
from draftmill.looking.charts import Bar, Bars
from draftmill.looking.report_blocks import MOST_ROWS, Block, Code, Figure, Section, Table, Words, rest_of, table, words
from draftmill.looking.report_facts import TARGET, Facts, Part

MOST_CHARTED = 12
"""Categories of a figure; the table has them all."""


def mix_section(facts: Facts) -> Section:
    """Counts and shares by category and stage."""
    reached, names = facts.reached(), facts.categories()
    title = "What it is made of" if facts.build.imported else "Target against achieved"
    if not names:
        return Section("mix", title, (words("Nothing is selected yet."),))
    declared = (
        "An import declares no shares: these are what it holds."
        if facts.build.imported
        else f"Declared shares are of {facts.build.unit.replace('_', ' ')}; what is held out is not counted."
    )
    blocks: list[Block] = [words(f"{declared} A row is one turn of a conversation.")]
    in_prompts = facts.build.unit == "prompts" and not facts.build.imported
    if reached:
        blocks += [
            Figure(
                _share_bars(facts, reached, names[:MOST_CHARTED], "prompts", in_prompts),
                f"Share of prompts at each stage{', against the share that is declared' * in_prompts}.",
            ),
            _stage_table(facts, "prompts", names),
        ]
        with_rows = [stage for stage in reached if stage != "selected"]
        if with_rows:
            blocks += [
                Figure(
                    _share_bars(
                        facts, with_rows, names[:MOST_CHARTED], "response_tokens", facts.build.unit != "prompts"
                    ),
                    "Share of response tokens at each stage.",
                ),
                _stage_table(facts, "rows", names),
                _stage_table(facts, "response_tokens", names),
            ]
        else:
            blocks.append(words("No prompt is answered yet, so rows and response tokens are not measured yet."))
            if not facts.build.imported and not facts.recipes:
                blocks.append(words(UNLINKED))
        if len(names) > MOST_CHARTED:
            blocks.append(words(f"The figures show {MOST_CHARTED} of {len(names):,} categories, the largest."))
    return Section("mix", title, tuple(blocks))


def _share_bars(facts: Facts, stages: Sequence[str], names: Sequence[str], what: str, promised: bool) -> Bars:
    parts = {stage: facts.of_stage(stage) for stage in stages}
    whole = {stage: sum(_amount(part, what) for part in own.values()) for stage, own in parts.items()}
    groups, most = [], 0.0
    for name in names:
        share = facts.shares.get(name)
        bars = []
        for stage in stages:
            amount = _amount(parts[stage].get(name), what)
            value = amount / whole[stage] if whole[stage] else 0.0
            off = f" ({100 * (value - share):+.1f})" if promised and share is not None else ""
            bars.append(Bar(stage, value, f"{value:.1%}{off}", share if promised else None))
            most = max(most, value, share or 0.0)
        declared = f"{name}, declared {share:.1%}" if share is not None and promised else name
        groups.append((declared, tuple(bars)))
    legend = ("achieved (points off)", "declared") if promised else ("achieved", "")
    return Bars(tuple(groups), most, legend)


def _amount(part: Part | None, what: str) -> int:
    return int(getattr(part, what) or 0) if part else 0


def _stage_table(facts: Facts, what: str, names: Sequence[str]) -> Table:
    """Counts of every stage, and the share of the last one that has any."""
    stages = [stage for stage in facts.reached() if what == "prompts" or stage != "selected"]
    parts = {stage: facts.of_stage(stage) for stage in stages}
    whole = {stage: sum(_amount(part, what) for part in own.values()) for stage, own in parts.items()}
    wanted = facts.of_stage(TARGET)
    planned = what == "response_tokens" and bool(facts.target_tokens)
    with_target = (what == "prompts" or planned) and not facts.build.imported
    title = {"prompts": "prompts", "rows": "rows (turns)", "response_tokens": "response tokens"}[what]
    header = [title, *(["#declared", "#wanted"] if with_target else [])]
    header += [column for stage in stages for column in (f"#{stage}", "#share")]
    body = []
    for name in names:
        line = [name]
        if with_target:
            amount = facts.target_tokens.get(name, 0) if planned else _amount(wanted.get(name), what)
            line += [f"{facts.shares[name]:.1%}" if name in facts.shares else "", f"{amount:,}"]
        for stage in stages:
            amount = _amount(parts[stage].get(name), what)
            line += [f"{amount:,}", f"{amount / whole[stage]:.1%}" if whole[stage] else ""]
        body.append(line)
    total = ["all"]
    if with_target:
        total += [
            "",
            f"{sum(facts.target_tokens.values()) if planned else sum(_amount(p, what) for p in wanted.values()):,}",
        ]
    for stage in stages:
        total += [f"{whole[stage]:,}", ""]
    return table(header, body[:MOST_ROWS], total, rest_of(len(body), "FROM composition"))


def verdict(facts: Facts) -> list[Words]:
    """Whether accepted rows keep the declared shares, in one sentence; none before there are any."""
    what = "prompts" if facts.build.unit == "prompts" else "response_tokens"
    accepted = facts.of_stage("accepted")
    whole = sum(_amount(part, what) for part in accepted.values())
    if not whole or not facts.shares:
        return []
    got = {name: _amount(accepted.get(name), what) / whole for name in facts.shares}
    points, name = max((100 * abs(got[name] - share), name) for name, share in facts.shares.items())
    tolerance = facts.build.tolerance or 0.0
    prompts = sum(part.prompts for part in accepted.values())
    one_prompt = 100 / prompts if prompts else 0.0  # as the build promises: of tokens, what a prompt brings on average
    holds = "hold" if points <= max(tolerance, one_prompt) + 1e-9 else "do not hold"
    going = prompts < facts.build.selected
    so_far = ", of what is accepted so far" if going else ""
    return [
        words(
            f"The declared shares {holds}{so_far}: of accepted {what.replace('_', ' ')} the category that is furthest "
            "off is ",
            Code(name),
            f", {got[name]:.1%} where {facts.shares[name]:.1%} is declared ({points:.2g} points off; {tolerance:g} are "
            "allowed, and one prompt).",
        )
    ]
