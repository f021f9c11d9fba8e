"""The build stage: what the manifest selects, told to a person and entered in the ledger."""

from __future__ import annotations

import time
from textwrap import wrap

from corpus import building
from corpus.building import BuildPlan
from corpus.candidates import TokenRule
from corpus.columns import table
from corpus.ledger.writer import LedgerWriter, Readable
from corpus.reuse import check_imports
from corpus.runlog import RunLog
from draftmill.looking.report import data_is_old, write_data
from draftmill.session import Session
from draftmill.stage_run import logged, reader
from draftmill.terminal import WIDTH, Screen, say, say_below


def build_plan(session: Session, ledger: Readable | None = None) -> BuildPlan:
    """What the manifest selects, once it is known that the answers it imports can be taken.

    Args:
        ledger: where imports are looked up; what is published, if none is open.

    Raises:
        UserError: nothing can be selected, or generation.imported names what cannot be taken.
    """
    if session.manifest.generation.imported:
        check_imports(session.manifest, session.target.identity(), ledger or reader(session))
    return selection_plan(session)


def selection_plan(session: Session) -> BuildPlan:
    """What the manifest selects; reads sources into their pools where that was not done."""
    tokens = None
    if session.manifest.filters.prompt_tokens is not None:
        tokenizer = f"{session.target.tokenizer_hash}:{session.target.template_hash}"
        tokens = TokenRule(session.count_tokens, tokenizer)
    with Screen("looking at the sources") as screen:
        return building.plan_build(session.manifest, session.base, session.workspace, tokens, screen.update)


def build_stage(session: Session, ledger: LedgerWriter) -> BuildPlan:
    """Select prompts and enter the build."""
    started = time.monotonic()
    plan = build_plan(session, ledger)
    if _is_new(plan, ledger):
        log = RunLog(ledger, "build", plan.build_id)
        new = logged(log, lambda: building.commit_build(plan, session.workspace, ledger))
    else:
        new = building.commit_build(plan, session.workspace, ledger)
        if data_is_old(session.workspace, plan.build_id):
            write_data(ledger, plan.build_id)
    took = f" in {time.monotonic() - started:.1f} s" if new else ", unchanged"
    say(f"build      {plan.build_id}: {plan.selected:,} prompts and {plan.held_out:,} held out{took}")
    for note in plan.notes:
        say_below(note)
    return plan


def build_lines(plan: BuildPlan) -> list[str]:
    """A build plan for a person."""
    rows = [
        (name, f"{plan.shares[name]:.1%}", f"{wanted:,}", f"{plan.available.get(name, 0):,}")
        for name, wanted in sorted(plan.quotas.rows.items(), key=lambda item: -item[1])
    ]
    notes = [line for note in plan.notes for line in wrap(note, WIDTH)]
    return [*table(("category", "share", "prompts", "available"), rows), *notes]


def _is_new(plan: BuildPlan, ledger: Readable) -> bool:
    return not ledger.rows("SELECT 1 FROM builds WHERE build_id = ?", plan.build_id)
