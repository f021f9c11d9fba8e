"""The extraction stage: whose states are to be captured, told to a person and agreed to, and the run that does it."""

from __future__ import annotations

import time
from collections.abc import Iterator

from corpus.building import BuildPlan
from corpus.columns import counted
from corpus.errors import UserError
from corpus.ledger.writer import LedgerWriter, Readable
from corpus.runlog import RunLog
from draftmill.agreement import ALL_ROWS, Choice, asks, room_line, told, unagreed, workers_line
from draftmill.interrupted import StoppedEarly
from draftmill.session import Session
from draftmill.stage_run import logged
from draftmill.terminal import INDENT, WIDTH, ExtractionScreen, clock, laid_out, say_below, say_stage
from extraction.announcement import Announcement
from extraction.run import ExtractionRun, Watcher, check_disk
from extraction.stage import ExtractionPlan, plan_extraction
from fleet.interrupt import Interrupt, run_interruptible


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
    yield from laid_out(extraction_sentences(session, plan, choice))


def extraction_sentences(session: Session, plan: ExtractionPlan, choice: Choice) -> Iterator[str]:
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
