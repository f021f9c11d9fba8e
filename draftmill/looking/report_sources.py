"""Sections on where rows come from and what became of them: the funnel, sources and licences, labels, what is missing.

Pure: facts in, blocks out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from draftmill.looking.charts import Bar, Bars
from draftmill.looking.report_blocks import MOST_ROWS, Block, Figure, Section, Table, rest_of, table, words
from draftmill.looking.report_facts import STAGES, Facts, Source

UNSTATED = "not stated"
MOST_PAIRS = 30
"""Rows of the tables about labels."""
MOST_REASONS = 7
"""Columns of the table of sources; rarer reasons are added up."""
FATES = ("selected", "held_out", "not_needed")
FATE_WORDS = {"selected": "selected", "held_out": "held out", "not_needed": "not needed", "read": "read"}


def funnel_section(facts: Facts) -> Section:
    """How many rows are left after each step, and why the others are not."""
    sums: dict[str, int] = defaultdict(int)
    for one in facts.funnel:
        sums[one.reason] += one.rows
    read = sums.pop("read", 0)
    if not read:
        return Section("funnel", "From rows read to rows trained on", (words("No row of a source was read for this."),))
    kept = sum(sums[fate] for fate in FATES if fate in sums)
    steps = [("rows read", read), ("candidates", kept), ("selected", facts.build.selected)]
    steps += [(stage, sum(part.prompts for part in facts.of_stage(stage).values())) for stage in STAGES[1:]]
    bars = tuple(
        Bar(name, float(count), f"{count:,}" if count or i < 3 else "not yet") for i, (name, count) in enumerate(steps)
    )
    lost = sorted(((count, reason) for reason, count in sums.items() if reason not in FATES), reverse=True)
    lines = [("rows read", f"{read:,}", "100.0%")]
    lines += [(FATE_WORDS[fate], f"{sums[fate]:,}", f"{sums[fate] / read:.1%}") for fate in FATES if fate in sums]
    lines += [(f"dropped: {reason}", f"{count:,}", f"{count / read:.1%}") for count, reason in lost]
    blocks: tuple[Block, ...] = (
        Figure(
            Bars((("", bars),), float(max(read, *(count for _, count in steps)))),
            "Rows read, and the prompts that are left of them after each step.",
        ),
        words("Every row that was read, by what became of it:"),
        table(("what", "#rows", "#of those read"), lines[:MOST_ROWS], rest=rest_of(len(lines), "FROM funnel")),
    )
    return Section("funnel", "From rows read to rows trained on", blocks)


def sources_section(facts: Facts) -> Section:
    """Datasets, revisions, licences, and what became of the rows of each."""
    if not facts.sources:
        return Section("sources", "Sources", (words("The ledger names no source of this build."),))
    of = [
        (
            one.name, one.category_rule, one.license or UNSTATED, f"{one.selected:,}", f"{one.accepted:,}",
            f"{one.response_tokens:,}", " ".join(part for part in (one.dataset, one.config, one.split) if part),
            one.revision or "",
        )
        for one in facts.sources
    ]  # fmt: skip
    sums = zip(*((one.selected, one.accepted, one.response_tokens) for one in facts.sources), strict=True)
    blocks: list[Block] = [
        table(
            ("source", "category", "licence", "#selected", "#answers", "#response tokens", "$dataset", "$revision"),
            of[:MOST_ROWS],
            ("all", "", "", *(f"{sum(amounts):,}" for amounts in sums), "", ""),
            rest_of(len(of), "FROM sources JOIN pools USING (pool_id)"),
        ),
        words("By licence:"),
        _licences(facts.sources),
        words("What became of the rows of each source:"),
        _fates(facts),
    ]  # fmt: skip
    unstated = sum(one.license is None for one in facts.sources)
    if unstated:
        blocks.insert(1, words(f"{unstated:,} of {len(facts.sources):,} sources state no licence."))
    imported = [recipe for recipe in facts.recipes if recipe.imported_from and recipe.answers]
    if imported:
        blocks += [
            words("Answers that were not generated for this build, but imported:"),
            table(
                ("import", "$model", "$revision", "#answers"),
                [(r.imported_from or "", r.model, r.revision or "", f"{r.answers:,}") for r in imported],
            ),
        ]
    return Section("sources", "Sources", tuple(blocks))


def _licences(sources: Sequence[Source]) -> Table:
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for one in sources:
        held = sums[one.license or UNSTATED]
        for i, amount in enumerate((1, one.selected, one.response_tokens)):
            held[i] += amount
    rows = sorted(sums.items(), key=lambda item: (-item[1][1], item[0]))
    whole = sum(held[1] for held in sums.values())
    lines = [
        (name, f"{n:,}", f"{selected:,}", f"{selected / whole:.1%}" if whole else "", f"{tokens:,}")
        for name, (n, selected, tokens) in rows
    ]
    return table(
        ("licence", "#sources", "#selected", "#share", "#response tokens"), lines[:MOST_ROWS],
        rest=rest_of(len(lines), "FROM composition"),
    )  # fmt: skip


def _fates(facts: Facts) -> Table:
    """One line a source, one column a reason; rare reasons together."""
    counts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    sums: dict[str, int] = defaultdict(int)
    for one in facts.funnel:
        counts[one.name][one.reason] += one.rows
        if one.reason not in ("read", *FATES):
            sums[one.reason] += one.rows
    common = sorted(sums, key=lambda reason: (-sums[reason], reason))
    common, rare = (
        (common, []) if len(common) <= MOST_REASONS else (common[: MOST_REASONS - 1], common[MOST_REASONS - 1 :])
    )
    known = ["read", *FATES, *common]
    header = [
        "source",
        *(f"#{FATE_WORDS.get(reason, reason)}" for reason in known),
        *(["#other reasons"] if rare else []),
    ]

    def cells(own: dict[str, int]) -> list[str]:
        return [f"{own.get(r, 0):,}" for r in known] + ([f"{sum(own.get(r, 0) for r in rare):,}"] if rare else [])

    lines = [[name, *cells(own)] for name, own in sorted(counts.items())]
    whole = {reason: sum(own.get(reason, 0) for own in counts.values()) for reason in {*known, *rare}}
    return table(header, lines[:MOST_ROWS], ["all", *cells(whole)], rest_of(len(lines), "FROM funnel"))


def label_sections(facts: Facts) -> list[Section]:
    """What sources label themselves, and where two of them disagree; none where there is neither."""
    blocks: list[Block] = []
    if facts.labels:
        blocks += [
            words("Labels that sources bring themselves, and the categories that they become, of candidates:"),
            table(
                ("source", "its label", "category", "#prompts"),
                [(s, label, category, f"{n:,}") for s, label, category, n in facts.labels[:MOST_PAIRS]],
                rest=rest_of(
                    len(facts.labels), "SELECT upstream_label, count(*) FROM source_rows GROUP BY ALL", MOST_PAIRS
                ),
            ),
        ]
    if facts.shared:
        rows, alike = sum(one.rows for one in facts.shared), sum(one.alike for one in facts.shared)
        blocks += [
            words(
                f"Of {rows:,} rows that were dropped because another source has the prompt, {alike:,} "
                f"({alike / rows:.1%}) have the category there that their own source has:"
            ),
            table(
                ("dropped of", "kept of", "#rows", "#same category"),
                [
                    (one.source, one.winner, f"{one.rows:,}", f"{one.alike / one.rows:.1%}")
                    for one in facts.shared[:MOST_PAIRS]
                ],
                rest=rest_of(len(facts.shared), "FROM drops WHERE winner_source IS NOT NULL", MOST_PAIRS),
            ),
        ]
    return [Section("labels", "Agreement of labels", tuple(blocks))] if blocks else []


def left_out_section(facts: Facts) -> Section:
    """Answers that are missing, rejected or without states, and why."""
    blocks: list[Block] = []
    kinds = (
        ("Answers that the build wants and does not have, and why (held-out ones too):", facts.unfinished,
         ("category", "why", "#answers"), "FROM unfinished"),
        ("Attempts that were rejected; the prompt may have been answered later:", facts.attempts,
         ("", "reason", "#attempts"), "SELECT reason, count(*) FROM responses GROUP BY ALL"),
        ("Accepted answers whose states no worker could capture, set aside:", facts.set_aside,
         ("$capture", "reason", "#answers"), "FROM hidden_failures"),
    )  # fmt: skip
    for said, counted, header, sql in kinds:
        if counted:
            blank = header[0] == ""
            lines = [(one.name, one.reason, f"{one.rows:,}")[blank:] for one in counted]
            whole = f"{sum(one.rows for one in counted):,}"
            blocks += [
                words(said),
                table(header[blank:], lines[:MOST_ROWS], ("all", "", whole)[blank:] if not blank else ("all", whole),
                      rest_of(len(lines), sql)),
            ]  # fmt: skip
    if not blocks:
        what = "Nothing: every answer that the build wants is there" if facts.of_stage("accepted") else "No answer yet"
        blocks.append(words(f"{what}. Rows of sources that were dropped are in the funnel above."))
    return Section("left-out", "Rejected, left out, set aside", tuple(blocks))
