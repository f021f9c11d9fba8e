"""What the drafters' folders say of themselves: how each was asked for, how far it came, which is nearest to a new one.

A run leaves begun.json before its first step, so that a drafter without an export is known too; older folders have
drafter.json alone. Nothing else is read but the newest checkpoint's state. Two drafters differ by what their identity
is made of (corpus.identity): the section, the rows, the captured states. No torch, no ledger.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corpus.artefacts import write_text
from corpus.canonical import digest
from corpus.errors import UserError
from corpus.identity import drafter_training
from corpus.manifest import Manifest
from corpus.workspace import Workspace
from training.plan import TrainingPlan
from training.progress import CHECKPOINTS, DESCRIBED, Progress, newest_progress

BEGUN = "begun.json"
ROWS = "rows"
"""Told where two drafters differ in them; so are these."""
STATES = "captured states"
RESOLVED = ("tokens_per_batch", "mask_token_id")
"""Of a section that has what `auto` came to, these do not differ from `auto`."""


@dataclass(frozen=True)
class Asked:
    """What makes a drafter the one it is."""

    training: Mapping[str, Any]
    """The manifest's section, its seed resolved."""
    rows: int
    rows_digest: str
    """Of their ids; empty where it is not known."""
    capture_id: str
    resolved: bool = False
    """Its section has what `auto` came to: that is all that an older drafter's folder says."""


@dataclass(frozen=True)
class Begun:
    """One drafter of the workspace."""

    drafter_id: str
    build_id: str
    asked: Asked
    step: int
    """Of its newest checkpoint; the last one where it is finished."""
    steps: int
    """In all; 0: not known."""
    finished: bool


def asked_of(plan: TrainingPlan, manifest: Manifest) -> Asked:
    """What a plan asks for."""
    training = manifest.training.model_dump(mode="json") | {"seed": plan.seed, "init": plan.init or None}
    ids = plan.training_ids
    return Asked(training, len(ids), digest("rows", ids, length=24), plan.capture_id)


def write_begun(workspace: Workspace, plan: TrainingPlan, manifest: Manifest, steps: int) -> None:
    """Say in the drafter's folder what is trained there.

    Raises:
        UserError: the folder cannot be written.
    """
    own = asked_of(plan, manifest)
    body = {
        "schema_version": 1,
        "drafter_id": plan.drafter_id,
        "build_id": plan.build_id,
        "capture_id": own.capture_id,
        "training": dict(own.training),
        "rows": own.rows,
        "rows_digest": own.rows_digest,
        "steps": steps,
    }
    write_text(workspace.drafter(plan.drafter_id) / BEGUN, json.dumps(body, indent=1, sort_keys=True))


def all_begun(workspace: Workspace) -> list[Begun]:
    """Every drafter that was trained here, or begun; by id. Folders that say nothing of a build are not ours."""
    found = [_read(folder) for folder in sorted((workspace.root / "drafters").glob("*")) if folder.is_dir()]
    return [one for one in found if one is not None]


def newest_saved(folder: Path) -> Progress:
    """Where the newest checkpoint of a drafter's folder is, whoever wrote it; step 0 where there is none.

    Raises:
        UserError: it is damaged.
    """
    return newest_progress(folder / CHECKPOINTS, None)


def differences(one: Asked, other: Asked) -> list[str]:
    """Dotted names of what differs between two drafters' identities; keys that identities leave out are not asked."""
    before, after = _kept(one.training), _kept(other.training)
    resolved = one.resolved or other.resolved
    names = [name for name in sorted(before.keys() | after.keys()) if _differ(name, before, after, resolved)]
    if one.capture_id != other.capture_id:
        names.append(STATES)
    known = one.rows_digest and other.rows_digest
    if one.rows != other.rows or (known and one.rows_digest != other.rows_digest):
        names.append(f"{ROWS} ({one.rows:,} and {other.rows:,})" if one.rows != other.rows else ROWS)
    return names


def nearest(own: Asked, others: Sequence[Begun]) -> tuple[Begun, list[str]] | None:
    """The drafter that differs in the fewest things, and in which; None if there is no other."""
    compared = [(one, differences(one.asked, own)) for one in others]
    return min(compared, key=lambda pair: (len(pair[1]), not pair[0].finished, pair[0].drafter_id), default=None)


def _differ(name: str, before: Mapping[str, Any], after: Mapping[str, Any], resolved: bool) -> bool:
    sides = before.get(name), after.get(name)
    if resolved and name in RESOLVED and "auto" in sides:
        return False
    return sides[0] != sides[1]


def _kept(training: Mapping[str, Any]) -> dict[str, Any]:
    """What of a section is part of an identity, by dotted name."""
    kept = drafter_training(training)
    kept.pop("best_step", None)
    kept |= {f"live.{key}": value for key, value in kept.pop("live", {}).items()}
    if "init" in kept:
        kept["init_from"] = kept.pop("init")
    return kept


def _read(folder: Path) -> Begun | None:
    begun, finished = _body(folder / BEGUN), _body(folder / DESCRIBED)
    body = begun or finished
    if body is None:
        return None
    try:
        rows, mark = int(body["rows"]), str(body.get("rows_digest", ""))
        asked = Asked(dict(body["training"]), rows, mark, body["capture_id"], resolved=begun is None)
        steps = int((finished or body)["steps"])
        step = steps if finished else _step(folder)
        return Begun(folder.name, str(body["build_id"]), asked, step, steps, finished is not None)
    except (KeyError, TypeError, ValueError):
        return None


def _body(path: Path) -> dict[str, Any] | None:
    """None too for somebody's drafter that was only measured: it is of no build."""
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return body if isinstance(body, dict) and body.get("build_id") else None


def _step(folder: Path) -> int:
    try:
        return newest_saved(folder).step
    except UserError:  # the run that goes on from it says what is wrong
        return 0
