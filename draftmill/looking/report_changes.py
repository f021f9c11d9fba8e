"""What is other in a build than in the one before it: in the manifest, in what is read, in prompts and answers.

Manifests come from the builds' locks; where one of them is damaged the lines say so and the counts stay.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from corpus.errors import UserError
from corpus.ledger.writer import Readable
from corpus.manifest_file import locked_manifest
from draftmill.changes import Recipes, SourceRead, depth_changes, manifest_changes, recipe_changes
from draftmill.looking.report_facts import Build, Changes

LOCK = "manifest.lock.yaml"
PROMPTS = """
WITH old AS (SELECT prompt_id, replica, category FROM selections WHERE build_id = ? AND NOT holdout),
     new AS (SELECT prompt_id, replica, category FROM selections WHERE build_id = ? AND NOT holdout)
SELECT coalesce(new.category, old.category) AS category,
       count(*) FILTER (new.category IS NOT NULL AND old.category IS NOT NULL),
       count(*) FILTER (old.category IS NULL), count(*) FILTER (new.category IS NULL)
FROM new FULL JOIN old USING (prompt_id, replica) GROUP BY ALL ORDER BY 1
"""
REUSED = """
SELECT count(*) FROM build_responses b SEMI JOIN accepted_responses r USING (response_id)
SEMI JOIN (SELECT response_id FROM build_responses WHERE build_id = ?) o ON o.response_id = b.response_id
WHERE b.build_id = ? AND b.left_out IS NULL
"""


def changes_since(ledger: Readable, before: Build, build: Build) -> Changes:
    """This build against one that was made before."""
    prompts = ledger.rows(PROMPTS, before.build_id, build.build_id)
    ((reused,),) = ledger.rows(REUSED, before.build_id, build.build_id)
    folders = [ledger.workspace.build(one.build_id) for one in (before, build)]
    recipes = recipe_changes(_recipes(ledger, before.build_id), _recipes(ledger, build.build_id))
    try:
        (old, old_read), (new, new_read) = map(_locked, folders)
    except (OSError, ValueError, KeyError, TypeError, UserError):
        lines = ["the locks of the two builds cannot be compared: one of them is gone or damaged"]
    else:
        lines = manifest_changes(old, new) + depth_changes(old_read, new_read)
    return Changes(before, tuple(lines + recipes), tuple(prompts), int(reused))


def _locked(folder: Path) -> tuple[Any, dict[str, SourceRead]]:
    lock = json.loads((folder / LOCK).read_text(encoding="utf-8"))
    read = {one["source"]: SourceRead(one["pool_id"], one["chunks"]) for one in lock["sources"]}
    return locked_manifest(lock["manifest"], str(folder / LOCK)), read


def _recipes(ledger: Readable, build_id: str) -> Recipes:
    rows = ledger.rows(
        "SELECT b.category, c.thinking, c.body FROM (SELECT DISTINCT category, recipe_id FROM build_responses "
        "WHERE build_id = ?) b JOIN recipes c USING (recipe_id) WHERE c.body IS NOT NULL AND c.thinking IS NOT NULL "
        "ORDER BY b.category, c.recipe_id",
        build_id,
    )
    found: dict[tuple[str, bool], dict[str, Any]] = {}
    for category, thinking, text in rows:
        try:
            found[category, thinking] = json.loads(text)
        except ValueError:  # an import's, or of an older draftmill
            continue
    return {key: body for key, body in found.items() if isinstance(body, dict)}
