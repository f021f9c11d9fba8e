"""A trained drafter on the Hub: the plan, the files, the upload.

The plan reads the workspace and writes nothing. Published are weights, config.json and the card, with no path of this
machine in them.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass

from corpus.artefacts import say_full_disk, temporary_path
from corpus.columns import table
from corpus.errors import UserError
from draftmill.drafting import training_plan
from draftmill.selecting import build_plan
from draftmill.session import Session
from draftmill.stage_run import reader
from draftmill.terminal import say
from draftmill.uploading import Place, check_place, open_repo, size, upload
from training.export_speculators import Form
from training.exporting import export_texts, fill_export
from training.plan import TrainingPlan
from training.run import exported_files, is_trained


@dataclass(frozen=True)
class DrafterPushPlan:
    """What a push of a drafter uploads."""

    place: Place
    form: Form
    training: TrainingPlan
    files: tuple[tuple[str, int], ...]
    """(name, bytes)."""

    def lines(self) -> list[str]:
        """For a person."""
        return [
            f"drafter {self.training.drafter_id} to {self.place.words()}",
            *(f"  {line.rstrip()}" for line in table(("file", "size"), [(name, size(n)) for name, n in self.files])),
            f"format: {self.form}, {size(sum(n for _, n in self.files))} in all",
        ]


def plan_drafter_push(session: Session, place: Place, form: Form) -> DrafterPushPlan:
    """What would be published of the manifest's drafter.

    Raises:
        UserError: it is not trained, cannot be said in that format, or the name is no place to write to.
    """
    check_place(place)
    ledger = reader(session)
    plan = training_plan(session, ledger, build_plan(session, ledger).build_id)
    if not is_trained(plan, ledger):
        raise UserError(f"drafter {plan.drafter_id} is not trained yet. Run `draftmill train` first.")
    export = session.workspace.drafter(plan.drafter_id) / "export"
    texts = export_texts(export, plan, form, session.manifest, session.target, ledger, place.repo or "")
    files = {name: (export / name).stat().st_size for name in exported_files(export.parent)}
    files |= {name: len(text.encode()) for name, text in texts.items()}
    return DrafterPushPlan(place, form, plan, tuple(sorted(files.items())))


def run_drafter_push(plan: DrafterPushPlan, session: Session) -> str:
    """Write the files and upload them; returns the commit's address.

    Raises:
        UserError: no token, the Hub refuses or cannot be reached, or the disk is full.
    """
    open_repo(plan.place)
    folder = temporary_path(session.workspace.root / "push-drafter")
    try:
        folder.mkdir()
        export = session.workspace.drafter(plan.training.drafter_id) / "export"
        fill_export(
            folder, export, plan.training, plan.form, session.manifest, session.target, reader(session),
            plan.place.repo or "",
        )  # fmt: skip
        say(f"push       {size(sum(n for _, n in plan.files))} to {plan.place.words()}")
        return upload(plan.place, folder, f"draftmill drafter {plan.training.drafter_id}")
    except OSError as error:
        say_full_disk(error, folder)
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
