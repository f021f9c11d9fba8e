"""`draftmill export`: the plan's drafter copied out, or one of its shape with random weights to compare with.

The untrained one has the trained one's mask token, so that both differ in weights alone.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from corpus.artefacts import replace_folder
from corpus.errors import DamagedError, UserError
from corpus.ledger.writer import Readable
from corpus.workspace import Workspace
from training.messages import TrainItem
from training.run import TrainingPlan, is_trained


@dataclass(frozen=True)
class ExportPlan:
    """What is written where."""

    training: TrainingPlan
    out: Path
    untrained: bool

    def line(self) -> str:
        """For a person."""
        what = "a drafter with random weights, in the shape of" if self.untrained else "drafter"
        return f"export     {what} {self.training.drafter_id} -> {self.out}"


def plan_export(plan: TrainingPlan, out: Path, untrained: bool, ledger: Readable) -> ExportPlan:
    """Check that it can be written.

    Raises:
        UserError: the folder exists, or the drafter is not trained.
    """
    if out.exists():
        raise UserError(f"{out}: exists already. Choose another --out, or remove it.")
    if not untrained and not is_trained(plan, ledger):
        raise UserError(f"drafter {plan.drafter_id} is not trained yet. Run `draftmill train` first, or --untrained.")
    return ExportPlan(plan, out, untrained)


def copy_export(plan: ExportPlan, workspace: Workspace) -> None:
    """Copy a trained drafter's export."""
    export = workspace.drafter(plan.training.drafter_id) / "export"
    replace_folder(plan.out, lambda folder: _copy(export, folder))


def write_untrained(plan: ExportPlan, item: TrainItem, workspace: Workspace) -> None:
    """Write a drafter with the plan's shape and seed, before any step. Imports torch."""
    import msgspec

    from training.data import TrainingData
    from training.export import export_untrained
    from training.frozen import load_frozen
    from training.worker import drafter_shape

    described = workspace.drafter(plan.training.drafter_id) / "drafter.json"
    if described.exists():
        try:
            mask = int(json.loads(described.read_text(encoding="utf-8"))["training"]["mask_token_id"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DamagedError(f"{described}: damaged. Run `draftmill train`: it is made again.") from error
        item = msgspec.structs.replace(item, mask_token_id=mask)
    data = TrainingData(item.shards, item.layer_ids, item.labels)
    try:
        shape = drafter_shape(item, data, load_frozen(item.target_dir, "float32", "cpu"))
    finally:
        data.close()
    export_untrained(shape, plan.out, target_dir=item.target_dir, seed=item.seed, dtype=item.export_dtype)


def _copy(source: Path, folder: Path) -> None:
    shutil.copytree(source, folder, dirs_exist_ok=True)
