"""`draftmill export`: the plan's drafter copied out in either format, or one of its shape with random weights.

Both formats hold the same weights; config.json and README.md differ, and the card of a copy says what has been
measured until now. The untrained one has the trained one's mask token, so that both differ in weights alone.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corpus.artefacts import replace_folder
from corpus.errors import DamagedError, UserError
from corpus.ledger.writer import Readable
from corpus.manifest import Manifest
from corpus.target import ResolvedTarget
from corpus.workspace import Workspace
from training.card import CARD, CONFIG, card_text, gather, is_on_hub, target_name
from training.export_speculators import Form, to_speculators_config
from training.messages import TrainItem
from training.plan import TrainingPlan
from training.progress import DESCRIBED
from training.record import read_acceptance
from training.run import exported_files, is_trained


@dataclass(frozen=True)
class ExportPlan:
    """What is written where."""

    training: TrainingPlan
    out: Path
    untrained: bool
    form: Form = Form.zlab

    def line(self) -> str:
        """For a person."""
        what = "a drafter with random weights, in the shape of" if self.untrained else "drafter"
        form = "" if self.form is Form.zlab else " in speculators' format"
        return f"export     {what} {self.training.drafter_id}{form} -> {self.out}"


def plan_export(plan: TrainingPlan, out: Path, untrained: bool, ledger: Readable, form: Form = Form.zlab) -> ExportPlan:
    """Check that it can be written.

    Raises:
        UserError: the folder exists, or the drafter is not trained.
    """
    if os.path.lexists(out):
        raise UserError(f"{out}: exists already. Choose another --out, or remove it.")
    if not untrained and not is_trained(plan, ledger):
        raise UserError(f"drafter {plan.drafter_id} is not trained yet. Run `draftmill train` first, or --untrained.")
    return ExportPlan(plan, out, untrained, form)


def copy_export(plan: ExportPlan, manifest: Manifest, target: ResolvedTarget, ledger: Readable) -> None:
    """Copy a trained drafter's export.

    Raises:
        UserError: the drafter cannot be said in that format, or the disk is full.
    """
    export = ledger.workspace.drafter(plan.training.drafter_id) / "export"
    replace_folder(
        plan.out, lambda folder: fill_export(folder, export, plan.training, plan.form, manifest, target, ledger)
    )


def fill_export(
    folder: Path,
    export: Path,
    plan: TrainingPlan,
    form: Form,
    manifest: Manifest,
    target: ResolvedTarget,
    ledger: Readable,
    repo: str = "",
) -> None:
    """Fill a new folder with an export in one of the formats: the files that its description lists, the card anew.

    Args:
        repo: where it will be published. Then no path of this machine is in it.

    Raises:
        UserError: as export_texts, or a listed file cannot be read.
    """
    texts = export_texts(export, plan, form, manifest, target, ledger, repo)
    for name in exported_files(export.parent):
        if name not in texts:
            try:
                shutil.copyfile(export / name, folder / name)
            except FileNotFoundError as error:
                raise DamagedError(f"{export / name}: is gone. Run `draftmill train`: it is made again.") from error
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")


def export_texts(
    export: Path,
    plan: TrainingPlan,
    form: Form,
    manifest: Manifest,
    target: ResolvedTarget,
    ledger: Readable,
    repo: str = "",
) -> dict[str, str]:
    """config.json and README.md of an export, by name; the weights are `export`'s in every format.

    Raises:
        UserError: the drafter cannot be said in that format, or a file is damaged.
    """
    config = in_form(_read_config(export / CONFIG), form, target, published=bool(repo))
    acceptance = read_acceptance(ledger.workspace.drafter(plan.drafter_id))
    card = card_text(config, gather(plan, manifest, target, ledger), acceptance, repo)
    return {CONFIG: _config_text(config), CARD: card}


def in_form(config: dict[str, Any], form: Form, target: ResolvedTarget, *, published: bool = False) -> dict[str, Any]:
    """z-lab's config.json in a format.

    Args:
        published: names a target that lies on this machine by its last part, not by its path.

    Raises:
        UserError: the drafter cannot be said in that format.
    """
    if form is Form.zlab:
        return config
    verifier = target_name(target) if is_on_hub(target) or published else str(target.folder.resolve())
    return to_speculators_config(config, verifier, target.config.get("architectures") or [])


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DamagedError(f"{path}: damaged. Run `draftmill train`: it is made again.") from error
    return config


def _config_text(config: dict[str, Any]) -> str:
    return json.dumps(config, indent=2, sort_keys=True) + "\n"


def write_untrained(plan: ExportPlan, item: TrainItem, target: ResolvedTarget, workspace: Workspace) -> None:
    """Write a drafter with the plan's shape and seed, before any step. Imports torch."""
    import msgspec

    from training.data import TrainingData
    from training.export import export_untrained
    from training.frozen import load_frozen
    from training.worker import drafter_shape

    described = workspace.drafter(plan.training.drafter_id) / DESCRIBED
    if described.exists():
        try:
            mask = int(json.loads(described.read_text(encoding="utf-8"))["training"]["mask_token_id"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DamagedError(f"{described}: damaged. Run `draftmill train`: it is made again.") from error
        item = msgspec.structs.replace(item, mask_token_id=mask)
    data = TrainingData(item.shards, item.layer_ids, item.labels, held_out_only=True)
    try:
        shape = drafter_shape(item, data, load_frozen(item.target_dir, "float32", "cpu"))
    finally:
        data.close()

    def fill(folder: Path) -> None:
        export_untrained(shape, folder, target_dir=item.target_dir, seed=item.seed, dtype=item.export_dtype)
        config = in_form(_read_config(folder / CONFIG), plan.form, target)
        (folder / CONFIG).write_text(_config_text(config), encoding="utf-8")
        said = f"# A drafter with random weights\n\nUntrained, seed {item.seed}: a floor to compare with.\n"
        (folder / CARD).write_text(said, encoding="utf-8")

    replace_folder(plan.out, fill)
