"""The stages, joined: build -> generate -> extract -> train -> export -> serve check.

`run_all` reads as the mission does. Each stage function plans, says what it found, and runs what is left; a stage
with nothing left starts no engine. The stages never import each other: what one needs of another is in the ledger.
"""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, TypeVar

from corpus import building
from corpus.building import BuildPlan
from corpus.candidates import TokenRule
from corpus.columns import table
from corpus.errors import UserError
from corpus.ledger.rebuild import adopt
from corpus.ledger.writer import LedgerWriter, Readable, open_ledger
from corpus.reuse import check_imports
from corpus.runlog import RunLog
from draftmill.agreement import ALL_ROWS, Choice, asks, room_line, told, unagreed, workers_line
from draftmill.drafting import serve_stage, train_stage, training_lines, training_plan
from draftmill.interrupted import StoppedEarly
from draftmill.looking.report import data_is_old, write_data
from draftmill.placement import check_settings, place
from draftmill.session import Session
from draftmill.stage_run import logged, reader
from draftmill.terminal import (
    INDENT,
    WIDTH,
    ExtractionScreen,
    GenerationScreen,
    Screen,
    clock,
    laid_out,
    say,
    say_below,
    say_stage,
)
from extraction.announcement import Announcement
from extraction.run import ExtractionRun, Watcher, check_disk
from extraction.stage import ExtractionPlan, counted, plan_extraction
from fleet.interrupt import Interrupt, run_interruptible
from generation.engine_settings import vllm_names
from generation.fit import max_num_seqs
from generation.plan import GenerationPlan
from generation.run import GenerationRun, RunSummary
from generation.shares import Shares
from generation.stage import commit_plan, load_feed, load_plan, load_prompts
from generation.thinking import first_thinking, thinking_categories, thinking_warning, unheard_thinking
from training.plan import TrainingPlan

if TYPE_CHECKING:
    import polars as pl

T = TypeVar("T")
VLLM = "generation.worker:create"
"""The factory of the engine whose arguments engine.extra names; a test's own takes others."""


def run_all(session: Session, serve: bool) -> None:
    """The whole chain, in one workspace, resuming wherever it stopped."""
    with open_ledger(session.workspace, "run") as ledger:
        adopt(ledger)
        build = build_stage(session, ledger)
        generate_stage(session, ledger, build)
        extract_stage(session, ledger, build)
        plan = train_stage(session, ledger, build, alone=False)
        if serve:
            serve_stage(session, ledger, build, None, again=False)
        _what_next(session, plan)


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
            write_data(ledger, plan.build_id, session.base)
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


def extraction_plan(session: Session, ledger: Readable, build: BuildPlan, choice: Choice = ALL_ROWS) -> ExtractionPlan:
    """Which accepted answers have no states yet; of training that is fed live, held-out ones alone."""
    training = session.manifest.training
    live = training.feed == "live"
    return plan_extraction(
        session.manifest, session.target, build.build_id, ledger, session.limit,
        max_disk_bytes=choice.max_disk_bytes, retry_set_aside=choice.retry_set_aside,
        holdout_only=live, holdout_limit=training.live.holdout_rows if live else None,
    )  # fmt: skip


def extraction_lines(session: Session, ledger: Readable, build: BuildPlan, choice: Choice = ALL_ROWS) -> Iterator[str]:
    """An extraction plan for a person: what would be captured, where, and what the run would refuse or ask.

    Raises:
        UserError: as extract_stage, but for a large capture that was not agreed to, which is a line here.
        DeviceError: the devices are not there.
    """
    plan = extraction_plan(session, ledger, build, choice)
    check_answered(session, plan)
    yield from laid_out(_extraction_sentences(session, plan, choice))


def later_lines(session: Session, ledger: Readable, build: BuildPlan) -> Iterator[str]:
    """What follows the answers, for a person: each stage as far as it can be planned now.

    Raises:
        UserError, DeviceError: as the stages.
    """
    if not ledger.rows(
        "SELECT 1 FROM build_responses JOIN accepted_responses USING (response_id) WHERE build_id = ? LIMIT 1",
        build.build_id,
    ):
        yield from laid_out(["extract and train follow, on what is answered then"])
        return
    below = " " * INDENT
    plan = extraction_plan(session, ledger, build)
    yield from laid_out(_extraction_sentences(session, plan, ALL_ROWS), f"{'extract':<{INDENT}}", below)
    if plan.rows:
        lines = ["follows, on the states that are captured then"]
    else:
        training = training_plan(session, ledger, build)
        lines = training_lines(session, training, ledger)
    yield from laid_out(lines, f"{'train':<{INDENT}}", below)


def _extraction_sentences(session: Session, plan: ExtractionPlan, choice: Choice) -> Iterator[str]:
    """One by one, so that what is refused comes after what it is refused for."""
    if not plan.rows:
        yield from _nothing_to_capture(plan)
        return
    root = session.workspace.root
    yield from plan.lines()
    yield room_line(plan, root)
    yield workers_line(session.devices, WIDTH - INDENT)
    check_disk(plan, root)
    if asks(plan, choice):
        yield "more than 10 GB: without --yes, extract only measures and tells the time"


def check_answered(session: Session, plan: ExtractionPlan) -> None:
    """Refuse to capture where nothing is answered.

    Raises:
        UserError: it says what comes first.
    """
    if not plan.wanted and not plan.holdout_only:
        raise UserError(
            f"{session.manifest.name}: build {plan.build_id} has no answers. Run `draftmill generate` first."
        )


def _nothing_to_capture(plan: ExtractionPlan) -> list[str]:
    if not plan.wanted:
        return ["nothing to do: fed live, and there are no held-out answers to measure on"]
    return [f"nothing to do: {plan.nothing_line()}", *([plan.disk_note] if plan.disk_note else [])]


def extract_stage(
    session: Session, ledger: LedgerWriter, build: BuildPlan, choice: Choice = ALL_ROWS
) -> ExtractionPlan:
    """Capture the target's states of every accepted answer.

    Raises:
        UserError: nothing is answered yet, the disk is too small, or a large capture was not agreed to.
        StoppedEarly: as generate_stage.
    """
    plan = extraction_plan(session, ledger, build, choice)
    check_answered(session, plan)
    if not plan.rows:
        say_stage("extract", *_nothing_to_capture(plan))
        return plan
    session.check_shared(session.target_with_weights.folder)
    if session.cluster:
        for folder in (session.workspace.hidden(plan.capture_id), session.workspace.cache):
            folder.mkdir(parents=True, exist_ok=True)
        session.check_shared(session.workspace.hidden(plan.capture_id), written=True)
    say_stage("extract", *plan.lines())
    check_disk(plan, session.workspace.root)
    unsure = asks(plan, choice)
    log = RunLog(ledger, "extract", build.build_id)
    run = ExtractionRun(plan, session.manifest, session.target_with_weights, ledger, log, launch=session.launch)
    started = time.monotonic()

    announced = ""

    def announce(announcement: Announcement) -> None:
        nonlocal announced
        announced = str(announcement.cut)
        say_below(*told(plan, announcement, session.workspace.root))
        if unsure:
            raise unagreed(plan)

    async def main(interrupt: Interrupt) -> bool:
        with ExtractionScreen(len(plan.rows)) as screen:
            run.announce, run.watcher = announce, Watcher(screen.update, screen.show, screen.stopping)
            # one worker is enough to measure
            return await run.run(session.devices, interrupt, measure_on=1 if unsure else None)

    def work() -> None:
        if not run_interruptible(main):
            captured, left = plan.captured + run.cut.rows, len(plan.rows) - run.cut.rows - run.failed
            raise StoppedEarly(
                f"extraction stopped: {captured:,} rows are captured, {left:,} are left.\n"
                "Run the same command to resume."
            )

    logged(log, work)
    took, rate = clock(time.monotonic() - started), run.cut.tokens / max(run.seconds, 1e-9)
    again = [] if str(run.cut) == announced else [str(run.cut)]  # memory that ran out has cut them otherwise
    say_below(f"captured in {took} ({rate:,.0f} tokens/s once started)", *again)
    if run.failed:
        say_below(f"{counted(run.failed, 'row')} set aside; `draftmill sql` with FROM hidden_failures says why")
    return plan


def _is_new(plan: BuildPlan, ledger: Readable) -> bool:
    return not ledger.rows("SELECT 1 FROM builds WHERE build_id = ?", plan.build_id)


def _what_next(session: Session, plan: TrainingPlan) -> None:
    root = session.workspace.root
    export = root / "drafters" / plan.drafter_id / "export"
    flag = "" if root == Path("workspace") else f" -w {shlex.quote(str(root))}"
    command = "draftmill" if shutil.which("draftmill") else shlex.quote(_shown(Path(sys.argv[0])))
    steps = session.manifest.training.block_size - 1
    say("")
    say(f"The drafter is in {export}. Serve it:")
    say(f"  vllm serve {_shown(session.target.folder)} \\")
    say(f'    --speculative-config \'{{"method": "dflash", "num_speculative_tokens": {steps},')
    say(f'      "model": "{export}"}}\'')
    say("Ask what it was made of, and where its rows came from:")
    say(f'  {command} sql{flag} "SELECT stage, category, prompts FROM composition"')
    say(f'  {command} sql{flag} "SELECT category, dataset, row_index FROM provenance"')
    say("Then change a share in the manifest and run it again:")
    say("only what the change adds is generated.")


def _shown(path: Path) -> str:
    """A path as short as it can be typed here."""
    for base, prefix in ((Path.cwd(), ""), (Path.home(), "~/")):
        if path.is_relative_to(base):
            return f"{prefix}{path.relative_to(base)}"
    return str(path)
