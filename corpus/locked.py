"""The manifest of a lock as it selects the same rows anywhere: what lies on the Hub at the commit that was read.

A lock has the revision of each source and evaluation set, and the ledger that of the target that answered. Local files
and folders have no commit; what was read of them is told by their digests alone.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from corpus.evalsets import set_name
from corpus.hub import HF, pinned_revision, without_revision
from corpus.manifest import EvalSet
from corpus.naming import is_on_hub


def pinned_lock(lock: dict[str, Any], answered_by: tuple[str, str | None], base: Path) -> dict[str, Any]:
    """The lock with its manifest's revisions resolved.

    Args:
        answered_by: the model that answered the build and its revision, where that is known.
        base: relative paths start here.
    """
    manifest: dict[str, Any] = lock["manifest"]
    read = {one["source"]: one["revision"] for one in lock["sources"]}
    sources = [_at(source, read.get(source["name"])) for source in manifest["sources"]]
    told = manifest | {"sources": sources, "target": _target(manifest["target"], answered_by, base)}
    if manifest.get("decontaminate"):
        found: dict[tuple[str, str], set[str]] = defaultdict(set)
        for one in lock["eval_sets"]:
            found[one["set"], one["field"]].add(one["revision"])
        against = [_at(one, _only(found[_name(one), one["field"]])) for one in manifest["decontaminate"]["against"]]
        told["decontaminate"] = manifest["decontaminate"] | {"against": against}
    return lock | {"manifest": told}


def _at(origin: dict[str, Any], revision: str | None) -> dict[str, Any]:
    """A source or a set at a revision, if it lies on the Hub."""
    path = origin.get("path")
    if revision is None or (path is not None and not path.startswith(HF)):
        return origin
    if path is None:
        return origin | {"revision": pinned_revision(origin["revision"], revision)}
    return origin | {"revision": revision, "path": without_revision(path)}


def _target(target: dict[str, Any], answered_by: tuple[str, str | None], base: Path) -> dict[str, Any]:
    model, revision = answered_by
    known = revision is not None and model == target["model"] and is_on_hub(model, base)
    return target | {"revision": revision} if known else target


def _name(one: dict[str, Any]) -> str:
    return set_name(EvalSet.model_validate(one))


def _only(revisions: set[str]) -> str | None:
    return next(iter(revisions)) if len(revisions) == 1 else None
