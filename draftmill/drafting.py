"""The drafter's stages, joined with what feeds them: train, from shards or live, serve check, export."""

from __future__ import annotations

from pathlib import Path

from corpus.building import BuildPlan
from corpus.columns import table
from corpus.ledger.writer import LedgerWriter, Readable
from corpus.runlog import RunLog
from draftmill.drafter_memory import drafter_memory
from draftmill.interrupted import StoppedEarly
from draftmill.live_feed import LiveRun, live_run
from draftmill.session import Session
from draftmill.stage_run import logged, reader
from draftmill.terminal import INDENT, Screen, clock, say, say_below
from draftmill.training_block import measured_lines
from draftmill.training_screen import TrainingScreen
from extraction.stage import plan_capture
from fleet.interrupt import Interrupt, run_interruptible
from training.contract import contract_of_item, require
from training.export_speculators import Form
from training.exporting import ExportPlan, copy_export, plan_export, write_untrained
from training.messages import TrainSummary
from training.plan import TrainingPlan, plan_training, train_item
from training.run import cpu_threads, is_trained, run_training
from training.serve import Served, exported, read_drafter, serve_check


def training_plan(session: Session, ledger: Readable, build: BuildPlan) -> TrainingPlan:
    """The drafter that the build's rows make.

    Raises:
        UserError: there are none, or training.init_from holds no drafter.
    """
    capture_id, layer_ids = plan_capture(session.manifest, session.target)
    init = None
    if published := session.manifest.training.init_from:
        found = read_drafter(published)
        init = (str(found.folder.resolve()), found.drafter_id)
    return plan_training(session.manifest, build.build_id, capture_id, layer_ids, ledger, session.limit, init)


def train_stage(session: Session, ledger: LedgerWriter, build: BuildPlan) -> TrainingPlan:
    """Train the drafter, unless it is trained."""
    plan = training_plan(session, ledger, build)
    if is_trained(plan, ledger):
        say(f"train      nothing to do: drafter {plan.drafter_id} is trained")
        return plan
    live = _live(session, plan)
    for i, line in enumerate(_lines(session, plan, ledger, live)):
        say(f"{'train' if i == 0 else '':<{INDENT}}{line}")
    log = RunLog(ledger, "train", build.build_id)

    async def main(interrupt: Interrupt) -> TrainSummary | None:
        with TrainingScreen() as screen:
            if live:
                return await live.run(ledger, log, interrupt, screen)
            device = session.local_devices[0]
            threads = cpu_threads() if device.kind == "cpu" else 0
            return await run_training(
                plan, session.manifest, session.target_with_weights, ledger, log, device, threads, interrupt,
                screen.show, screen.stopping,
            )  # fmt: skip

    def work() -> TrainSummary:
        summary = run_interruptible(main)
        if summary is None:
            raise StoppedEarly("training stopped at a checkpoint. Run the same command to go on from it.")
        return summary

    summary = logged(log, work)
    if live:
        say_below(*live.ended())
    say(f"           {summary.steps:,} steps in {clock(summary.seconds)}, best at {summary.best_step:,}")
    for line in measured_lines(summary.acceptance):
        say(f"           {line}")
    return plan


def training_lines(session: Session, plan: TrainingPlan, ledger: Readable) -> list[str]:
    """What would be trained, on what, in how much memory; for a person.

    Raises:
        UserError: training, the captured states and serving would not mean the same drafter.
    """
    return _lines(session, plan, ledger, _live(session, plan))


def _live(session: Session, plan: TrainingPlan) -> LiveRun | None:
    return live_run(session, plan) if session.manifest.training.feed == "live" else None


def _lines(session: Session, plan: TrainingPlan, ledger: Readable, live: LiveRun | None) -> list[str]:
    device = live.crew.drafters[0] if live else session.local_devices[0]
    item = train_item(plan, session.manifest, session.target, ledger, device, 0)
    require(contract_of_item(item, max_model_len=session.manifest.target.max_model_len))
    agreed = "training, states and serving agree (RoPE, layers, vocabulary, norms)"
    return [*plan.lines(), *drafter_memory(session, plan).text_lines(), *(live.lines() if live else []), agreed]


def serve_stage(
    session: Session,
    ledger: LedgerWriter,
    build: BuildPlan,
    drafter: str | None,
    *,
    again: bool = True,
) -> None:
    """Measure a drafter in vLLM on held-out prompts; ours of this build, or one at a path or on the Hub."""
    plan = training_plan(session, ledger, build)
    chosen = exported(drafter, plan.drafter_id, ledger)
    if not again and ledger.rows(
        "SELECT 1 FROM acceptance WHERE drafter_id = ? AND build_id = ? AND measured_by = 'vllm'",
        chosen.drafter_id,
        build.build_id,
    ):
        say(f"serve      nothing to do: drafter {chosen.drafter_id} was measured in vLLM")
        show_served(Served.from_ledger(chosen.drafter_id, build.build_id, ledger))
        return
    say(f"serve      drafter {chosen.drafter_id} in vLLM on {plan.holdout_rows:,} held-out rows")
    log = RunLog(ledger, "serve-check", build.build_id)

    async def main(interrupt: Interrupt) -> Served:
        with Screen("starting vLLM with the drafter") as screen:
            return await serve_check(
                chosen, plan, session.manifest, session.target_with_weights, ledger, log, session.local_devices,
                session.limit, screen.update,
            )  # fmt: skip

    show_served(logged(log, lambda: run_interruptible(main)))


def show_served(served: Served) -> None:
    """Acceptance by category: vLLM beside the offline walk."""
    for line in table(("category", "vllm", "walk", "drafts", "rows"), served.table_rows()):
        say(f"           {line}")


def export_plan(session: Session, build: BuildPlan, out: Path, untrained: bool, form: Form = Form.zlab) -> ExportPlan:
    """What `draftmill export` would write."""
    published = reader(session)
    plan = training_plan(session, published, build)
    return plan_export(plan, out, untrained, published, form)


def export_stage(session: Session, plan: ExportPlan) -> None:
    """Write the export."""
    if not plan.untrained:
        copy_export(plan, session.manifest, session.target, reader(session))
        return
    device = session.local_devices[0]
    item = train_item(plan.training, session.manifest, session.target_with_weights, reader(session), device, 0)
    write_untrained(plan, item, session.target, session.workspace)
