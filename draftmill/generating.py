"""The generation stage: what the target has to answer, told to a person, and the run that has it answered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

from corpus.building import BuildPlan
from corpus.errors import UserError
from corpus.ledger.writer import LedgerWriter, Readable
from corpus.runlog import RunLog
from draftmill.interrupted import StoppedEarly
from draftmill.placement import check_settings, place
from draftmill.session import Session
from draftmill.stage_run import logged
from draftmill.terminal import WIDTH, GenerationScreen, clock, say, say_below
from fleet.interrupt import Interrupt, run_interruptible
from generation.engine_settings import vllm_names
from generation.fit import max_num_seqs
from generation.plan import GenerationPlan
from generation.run import GenerationRun, RunSummary
from generation.shares import Shares
from generation.stage import commit_plan, load_feed, load_plan, load_prompts
from generation.thinking import first_thinking, thinking_categories, thinking_warning, unheard_thinking

if TYPE_CHECKING:
    import polars as pl

VLLM = "generation.worker:create"
"""The factory of the engine whose arguments engine.extra names; a test's own takes others."""


def generation_plan(
    session: Session,
    ledger: Readable,
    build: BuildPlan,
    retry_rejected: bool = False,
    prompts: pl.DataFrame | None = None,
) -> GenerationPlan:
    """What is wanted of the target, and what of it is left. `prompts`: the build's rows, if they are read already."""
    return load_plan(
        session.manifest,
        session.target,
        build.build_id,
        load_prompts(build, ledger) if prompts is None else prompts,
        ledger,
        limit=session.limit,
        retry_rejected=retry_rejected,
    )


def generation_lines(
    session: Session, ledger: Readable, build: BuildPlan, retry_rejected: bool = False
) -> Iterator[str]:
    """A generation plan for a person: what would be made, and where engines would go, refused as the run refuses it.

    Raises:
        DeviceError, UserError: as draftmill.placement.place.
    """
    prompts = load_prompts(build, ledger)
    plan = generation_plan(session, ledger, build, retry_rejected, prompts)
    yield from plan.lines()
    if not plan.to_make:
        return
    for line in place(session, vllm_names()).lines():
        yield from wrap(line, WIDTH)
    for warning in thinking_warnings(session, build, plan, prompts):
        yield from wrap(f"warning: {warning}", WIDTH)


def thinking_warnings(session: Session, build: BuildPlan, plan: GenerationPlan, prompts: pl.DataFrame) -> list[str]:
    """What a person should know where the target's template does not heed that thinking is asked for."""
    if not thinking_categories(session.manifest):
        return []
    path = session.workspace.candidates(build.candidates_id) / "prompts.parquet"
    return thinking_warning(session.manifest, unheard_thinking(session.renderer, first_thinking(plan, prompts, path)))


def generate_stage(
    session: Session, ledger: LedgerWriter, build: BuildPlan, retry_rejected: bool = False
) -> RunSummary | None:
    """Have the target answer what is not answered, until the shares hold; None if nothing is left.

    Raises:
        StoppedEarly: an interrupt ended it; what was answered is committed.
        UserError: a category is short of accepted answers, and there is no more to ask.
    """
    prompts = load_prompts(build, ledger)
    plan = generation_plan(session, ledger, build, retry_rejected, prompts)
    commit_plan(plan, ledger)
    for name, rows in plan.reused.items():
        say(f"           {rows:,} answers are from the import {name}")
    shares = Shares(session.manifest, session.target, build, plan, ledger, retry_rejected)
    whole = session.limit is None  # shares are promises about the whole build
    feed = load_feed(plan, prompts, build, ledger)
    if whole and not len(feed) and (more := shares.top_up()) is not None:
        feed.add(more)
    if not len(feed):
        if whole:
            _say_all(shares.settle())
        plan = shares.plan
        say(f"generate   nothing to do: {plan.accepted:,} answers accepted, {plan.rejected:,} rejected")
        if not plan.accepted and plan.rejected:
            raise UserError(
                f"{session.manifest.name}: no answer was accepted; FROM unfinished says why. `draftmill generate "
                "--retry-rejected` asks again where an engine failed."
            )
        return None
    done = shares.plan.accepted + shares.plan.rejected
    wanted, to_make = shares.plan.answers.height, sum(feed.turns.values())
    say(f"generate   {to_make:,} answers to make, {done:,} of {wanted:,} done")
    target = session.target_with_weights
    session.check_shared(target.folder)
    placement = place(session)
    warnings = thinking_warnings(session, build, plan, prompts)
    say_below(*placement.lines(), *(f"warning: {warning}" for warning in warnings))
    fitting = max_num_seqs(placement.fit) if placement.devices[0].kind == "cuda" else None
    log = RunLog(ledger, "generate", build.build_id)
    run = GenerationRun(
        build.build_id, plan.recipes, plan.policies, session.manifest, target, session.renderer, ledger, log,
        launch=session.launch,
    )  # fmt: skip
    run.tally.baseline = shares.baseline()
    top_up = shares.top_up if whole else None

    async def main(interrupt: Interrupt) -> RunSummary:
        with GenerationScreen() as screen:
            return await run.run(feed, placement.devices, interrupt, screen.show, top_up, fitting)

    def work() -> RunSummary:
        if run.factory == VLLM:
            check_settings(session, vllm_names())
        for warning in warnings:
            log.event("warning", warning)
        summary = run_interruptible(main)
        if summary.rejected:
            shares.judge()
        _say_generated(summary)
        if summary.interrupted:
            raise StoppedEarly("generation stopped; all answers so far are committed.\nRun the same command to resume.")
        if not summary.accepted and not plan.accepted:
            why = _by_reason(summary.reasons)
            cures = "".join(f" {line}." for line in shares.losses(session.manifest.mix.shares))
            raise UserError(f"{session.manifest.name}: no answer was accepted ({why}); nothing can be captured.{cures}")
        if whole:
            _say_all(shares.settle())
        _say_all(shares.lines())
        return summary

    return logged(log, work)


def _say_all(lines: Sequence[str]) -> None:
    for line in lines:
        say(f"           {line}")


def _say_generated(summary: RunSummary) -> None:
    rate = summary.tokens / max(summary.seconds, 1e-9)
    took = clock(summary.seconds)
    say(f"           {summary.accepted:,} accepted, {summary.tokens:,} tokens in {took} ({rate:,.0f}/s)")
    if summary.rejected:
        say(f"           {summary.rejected:,} rejected: {_by_reason(summary.reasons)}")
    say_below(*(f"warning: {warning}" for warning in summary.warnings))


def _by_reason(reasons: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in sorted(reasons.items(), key=lambda item: -item[1]))
