"""The drafter's stages, joined with what feeds them: train, from shards or live, serve check, export."""

from __future__ import annotations

import shlex
from pathlib import Path

from corpus.building import BuildPlan
from corpus.columns import counted, table
from corpus.errors import UserError
from corpus.ledger.writer import LedgerWriter, Readable
from corpus.outputs import refuse_own
from corpus.runlog import RunLog
from draftmill.interrupted import StoppedEarly
from draftmill.live_feed import LiveRun, live_run
from draftmill.session import Session
from draftmill.stage_run import logged, reader
from draftmill.terminal import INDENT, Screen, clock, say, say_below, say_stage, workspace_flag
from draftmill.training_block import measured_lines, past_sentence
from draftmill.training_brief import Brief, training_brief
from draftmill.training_screen import TrainingScreen
from extraction.stage import plan_capture
from fleet.interrupt import Interrupt, run_interruptible
from training.begun import newest_saved, write_begun
from training.contract import contract_of_item, require
from training.export_speculators import Form
from training.exporting import ExportPlan, copy_export, plan_export, write_untrained
from training.mask_token import mask_told
from training.messages import TrainSummary
from training.pack import all_packs
from training.plan import TrainingPlan, pack_budget, plan_training, train_item
from training.published import check_init
from training.run import is_trained, run_training
from training.serve import Served, exported, read_drafter, serve_check
from training.threads import choose_threads


def training_plan(session: Session, ledger: Readable, build_id: str) -> TrainingPlan:
    """The drafter that a build's rows make.

    Raises:
        UserError: there are none, or training.init_from holds no drafter.
    """
    capture_id, layer_ids = plan_capture(session.manifest, session.target)
    init = None
    if published := session.manifest.training.init_from:
        found = read_drafter(published)
        init = (str(found.folder.resolve()), found.drafter_id)
    return plan_training(session.manifest, build_id, capture_id, layer_ids, ledger, session.limit, init)


def train_stage(session: Session, ledger: LedgerWriter, build: BuildPlan, *, alone: bool = True) -> TrainingPlan:
    """Train the drafter, unless it is trained.

    Args:
        alone: nothing follows by itself, so the next command is named.
    """
    plan = training_plan(session, ledger, build.build_id)
    if is_trained(plan, ledger):
        say_stage("train", *trained_sentences(session, plan))
        return plan
    live = _live(session, plan)
    brief = _brief(session, plan, ledger, live)
    alone_on_cpu = live is None and session.local_devices[0].kind == "cpu"
    threads = choose_threads() if alone_on_cpu else None
    say_stage("train", *brief.sentences, *([threads.sentence()] if threads else []))
    folder, begins = session.workspace.drafter(plan.drafter_id), brief.saved.step
    log = RunLog(ledger, "train", build.build_id)

    async def main(interrupt: Interrupt) -> TrainSummary | None:
        with TrainingScreen(brief.outlook.steps, brief.saved, log.folder) as screen:
            if live:
                return await live.run(ledger, log, interrupt, screen)
            return await run_training(
                plan, session.manifest, session.target_with_weights, ledger, log, session.local_devices[0],
                threads.count if threads else 0, interrupt, screen.show, screen.stopping,
            )  # fmt: skip

    def work() -> TrainSummary:
        write_begun(session.workspace, plan, session.manifest, brief.outlook.steps)
        summary = run_interruptible(main)
        if summary is None:
            step = newest_saved(folder).step
            own = f"{max(0, step - begins):,} of them were done in this run. Run the same command to go on."
            raise StoppedEarly(f"training stopped at step {step:,} of {brief.outlook.steps:,}.\n{own}")
        return summary

    summary = logged(log, work)
    if live:
        say_below(*live.ended())
    say_below(*_ended_sentences(session, plan, summary, begins))
    for line in measured_lines(summary.acceptance):
        say(f"{'':<{INDENT}}{line}")
    say_below(*_next_sentences(session, plan, alone=alone))
    return plan


def training_lines(session: Session, plan: TrainingPlan, ledger: Readable) -> list[str]:
    """What would be trained, on what, in how much memory; for a person.

    Raises:
        UserError: training, the captured states and serving would not mean the same drafter.
    """
    if is_trained(plan, ledger):
        return trained_sentences(session, plan)
    return list(_brief(session, plan, ledger, _live(session, plan)).sentences)


def trained_sentences(session: Session, plan: TrainingPlan) -> list[str]:
    """That there is nothing to do, and where the drafter is."""
    export = session.workspace.drafter(plan.drafter_id) / "export"
    return [f"nothing to do: drafter {plan.drafter_id} is trained", f"exported to {export}"]


def _live(session: Session, plan: TrainingPlan) -> LiveRun | None:
    return live_run(session, plan) if session.manifest.training.feed == "live" else None


def _brief(session: Session, plan: TrainingPlan, ledger: Readable, live: LiveRun | None) -> Brief:
    section = session.manifest.training
    device = live.crew.drafters[0] if live else session.local_devices[0]
    packs = live.packs if live else all_packs(
        plan.tokens, pack_budget(section.tokens_per_batch, device), epochs=section.epochs, seed=plan.seed
    )  # fmt: skip
    item = train_item(plan, session.manifest, session.target, ledger, device, 0)
    require(contract_of_item(item, max_model_len=session.manifest.target.max_model_len))
    init = [check_init(item)] if item.init_dir else []
    agreed = "training, states and serving agree (RoPE, layers, vocabulary, norms)"
    return training_brief(session, plan, device, len(packs), [*(live.lines() if live else []), *init, agreed])


def _ended_sentences(session: Session, plan: TrainingPlan, summary: TrainSummary, begins: int) -> list[str]:
    """How long it took, which checkpoint is the best, and what that says."""
    done = f"{counted(summary.steps - begins, 'step')} in {clock(summary.seconds)}"
    if begins:
        done += f", after {begins:,} in earlier runs"
    mask = mask_told(session.target.folder, summary.mask_token_id)
    if not plan.holdout_rows:
        return [f"{done}; the last checkpoint is exported: nothing is held out to measure on", *mask]
    past = past_sentence(summary.best_step, summary.steps, session.manifest.training.checkpoint_every)
    return [f"{done}, best at {summary.best_step:,} of {summary.steps:,}", *([past] if past else []), *mask]


def _next_sentences(session: Session, plan: TrainingPlan, *, alone: bool) -> list[str]:
    exported_to = f"exported to {session.workspace.drafter(plan.drafter_id) / 'export'}"
    if not alone or not plan.holdout_rows:
        return [exported_to]
    command = f"draftmill serve-check {shlex.quote(str(session.manifest_path))}{workspace_flag(session.workspace.root)}"
    return [exported_to, f"`{command}` measures it in vLLM"]


def serve_sentences(session: Session, ledger: Readable, build: BuildPlan, drafter: str | None) -> list[str]:
    """What a serve check would measure, for a person; a drafter on the Hub is not looked up.

    Raises:
        UserError: there are no held-out rows, or the drafter is not there.
    """
    plan = training_plan(session, ledger, build.build_id)
    check_held_out(session, plan)
    if drafter is None or Path(drafter).expanduser().is_dir():
        drafter = exported(drafter, plan.drafter_id, ledger).drafter_id
    return [_serve_sentence(session, plan, drafter)]


def _serve_sentence(session: Session, plan: TrainingPlan, name: str) -> str:
    rows = counted(min(plan.holdout_rows, session.limit or plan.holdout_rows), "held-out row")
    return f"drafter {name} in vLLM on {rows}"


def check_held_out(session: Session, plan: TrainingPlan) -> None:
    """Refuse to measure on nothing.

    Raises:
        UserError: it says what to set.
    """
    if not plan.holdout_rows:
        raise UserError(
            f"{session.manifest.name}: build {plan.build_id} has no captured held-out rows, so nothing can be "
            "measured. Set mix.holdout, such as 0.02, and run again."
        )


def serve_stage(
    session: Session,
    ledger: LedgerWriter,
    build: BuildPlan,
    drafter: str | None,
    *,
    again: bool = True,
) -> None:
    """Measure a drafter in vLLM on held-out prompts; ours of this build, or one at a path or on the Hub."""
    plan = training_plan(session, ledger, build.build_id)
    if not again and not plan.holdout_rows:
        say_stage("serve", "nothing to measure: no row is held out (mix.holdout)")
        return
    check_held_out(session, plan)
    chosen = exported(drafter, plan.drafter_id, ledger)
    if not again and ledger.rows(
        "SELECT 1 FROM acceptance WHERE drafter_id = ? AND build_id = ? AND measured_by = 'vllm'",
        chosen.drafter_id,
        build.build_id,
    ):
        say(f"serve      nothing to do: drafter {chosen.drafter_id} was measured in vLLM")
        show_served(Served.from_ledger(chosen.drafter_id, build.build_id, ledger))
        return
    say_stage("serve", _serve_sentence(session, plan, chosen.drafter_id))
    log = RunLog(ledger, "serve-check", build.build_id)

    async def main(interrupt: Interrupt) -> Served:
        with Screen("reading the held-out rows") as screen:
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
    """What `draftmill export` would write.

    Raises:
        UserError: as plan_export, or the folder would be among a workspace's own.
    """
    refuse_own(out)
    published = reader(session)
    plan = training_plan(session, published, build.build_id)
    return plan_export(plan, out, untrained, published, form)


def export_stage(session: Session, plan: ExportPlan) -> None:
    """Write the export."""
    if not plan.untrained:
        copy_export(plan, session.manifest, session.target, reader(session))
        return
    device = session.local_devices[0]
    item = train_item(plan.training, session.manifest, session.target_with_weights, reader(session), device, 0)
    write_untrained(plan, item, session.target, session.workspace)
