"""The facts of a build in words, tables and figures: a document, which says nothing that the facts do not.

Pure. What was not measured yet is said so, in place of an empty table or axis.
"""

from __future__ import annotations

from datetime import datetime

from draftmill.looking.answers import minute
from draftmill.looking.report_blocks import Code, Document, Tile, words
from draftmill.looking.report_facts import Facts
from draftmill.looking.report_figures import acceptance_section, best_acceptance, lengths_section, rates_section
from draftmill.looking.report_mix import mix_section, verdict
from draftmill.looking.report_origin import changes_section, reproduce_section, runs_section
from draftmill.looking.report_sources import funnel_section, label_sections, left_out_section, sources_section


def document(facts: Facts) -> Document:
    """The whole report."""
    build = facts.build
    kind = "An imported corpus" if build.imported else "A build"
    first = words(
        f"{kind} of {build.selected:,} prompts and {build.held_out:,} held out, ", Code(build.build_id),
        f", made {when(build.created_at)}. ", *_age(facts),
    )  # fmt: skip
    return Document(
        build.name or build.build_id[:8],
        (first, *verdict(facts)),
        tuple(_tiles(facts)),
        (
            mix_section(facts),
            funnel_section(facts),
            sources_section(facts),
            *label_sections(facts),
            lengths_section(facts),
            left_out_section(facts),
            rates_section(facts),
            acceptance_section(facts),
            changes_section(facts),
            runs_section(facts),
            reproduce_section(facts),
        ),
    )


def when(moment: datetime | None) -> str:
    """To the minute, in UTC."""
    return minute(moment) if moment is None else f"{minute(moment)} UTC"


def _age(facts: Facts) -> list[str]:
    made = f"This report was made {when(facts.made_at)} by draftmill {facts.version}"
    if facts.age is None:
        return [f"{made} from the ledger as it was then."]
    seconds = max(0, round(facts.age.total_seconds()))
    unit, size = next(((u, s) for u, s in (("d", 86_400), ("h", 3_600), ("min", 60)) if seconds >= 2 * s), ("s", 1))
    told = [f"{made} from a snapshot of the ledger that was {seconds // size:,} {unit} old."]
    return [*told, f" {facts.writing} was writing meanwhile; a later report knows more."] if facts.writing else told


def _tiles(facts: Facts) -> list[Tile]:
    accepted = facts.of_stage("accepted").values()
    rows, tokens = sum(part.rows for part in accepted), sum(part.response_tokens or 0 for part in accepted)
    prompts = sum(part.prompts for part in accepted)
    tiles = [
        Tile(
            "prompts" if facts.build.imported else "prompts selected",
            f"{facts.build.selected:,}",
            "imported"
            if facts.build.imported
            else f"{facts.build.total:,} {facts.build.unit.replace('_', ' ')} wanted",
        ),
        Tile("answers accepted", f"{rows:,}" if rows else "none yet", f"to {prompts:,} prompts" if rows else ""),
        Tile(
            "response tokens", short(tokens) if rows else "none yet", f"{tokens / rows:,.0f} an answer" if rows else ""
        ),
    ]
    best = best_acceptance(facts)
    tiles.append(
        Tile("acceptance length τ", f"{best.tau:.2f}", f"{best.measured_by}, {best.drafts:,} drafts")
        if best
        else Tile("acceptance length τ", "not measured yet")
    )
    return tiles


def short(number: float) -> str:
    """Three digits and a unit."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if number >= size:
            scaled = number / (1e3 if unit == "k" else size)
            return f"{scaled:,.0f}{unit}" if scaled >= 100 else f"{scaled:,.1f}{unit}"
    return f"{number:,.0f}"
