"""What `draftmill diff` compares, read: two builds' rows, manifests and recipes, and what the ledger has measured.

OLD is a manifest, or the id of a build that the workspace holds (its files are enough: no source is asked). Texts are
never read. Nothing is written but cached pools and candidates.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corpus.errors import UserError, first_line
from corpus.ledger.query import query
from corpus.manifest import Manifest
from corpus.manifest_file import parse_manifest
from corpus.workspace import Workspace
from draftmill.changes import Recipes, SourceRead, depth_changes, manifest_changes, recipe_changes
from draftmill.differing import DiffPlan, Rate, plan_diff, wanted_answers
from draftmill.pipeline import build_plan
from draftmill.session import Session
from draftmill.taken import light_rows, taken_by_files, taken_by_plan
from generation.plan import Recipe, make_recipe

if TYPE_CHECKING:
    import polars as pl

    from corpus.building import BuildPlan
    from corpus.target import ResolvedTarget

BUILD_ID = re.compile(r"[0-9a-f]{6,24}")


@dataclass(frozen=True)
class Side:
    """One of the two builds."""

    name: str
    rows: pl.DataFrame
    """As light_rows gives them."""
    manifest: Manifest
    sources: dict[str, SourceRead]
    recipes: Recipes


def compare(old: str, session: Session) -> DiffPlan:
    """The difference between OLD (a manifest's path, or a build id) and the session's manifest.

    Raises:
        UserError: one of them cannot be planned, or there is no such build.
    """
    workspace, manifest = session.workspace, session.manifest
    before = read_old(old, session)
    plan = build_plan(session)
    recipes = _recipes(manifest, session.target)
    after = _planned(session, plan, recipes)
    changes = [
        *manifest_changes(before.manifest, manifest),
        *depth_changes(before.sources, after.sources),
        *recipe_changes(before.recipes, after.recipes),
    ]
    wanted = wanted_answers(manifest, recipes, after.rows)
    answered = _answered(workspace, sorted({recipe.recipe_id for recipe in recipes.values()}))
    rate = _rate(workspace, session.target.identity()["model"])
    names = (before.name, after.name)
    return plan_diff(names, before.rows, after.rows, wanted, answered, _means(workspace), rate, changes)


def read_old(old: str, new: Session) -> Side:
    """OLD, by its manifest or by its build's files.

    Raises:
        UserError: as compare.
    """
    if BUILD_ID.fullmatch(old) and not Path(old).exists():
        return _built(new.workspace, old)
    session = Session(Path(old), new.workspace)
    if session.manifest.target == new.manifest.target and session.base.resolve() == new.base.resolve():
        session.target = new.target  # one target is loaded once
    plan = build_plan(session)
    return _planned(session, plan, _recipes(session.manifest, session.target))


def _planned(session: Session, plan: BuildPlan, recipes: dict[tuple[str, bool], Recipe]) -> Side:
    return Side(
        f"{plan.manifest.name} {plan.build_id[:8]}",
        light_rows(session.workspace, plan.candidates_id, taken_by_plan(session.workspace, plan)),
        plan.manifest,
        {pool.source.name: SourceRead(pool.pool_id, len(pool.chunks)) for pool in plan.pools},
        {key: recipe.body for key, recipe in recipes.items() if _in_use(plan.manifest, *key)},
    )


def _built(workspace: Workspace, prefix: str) -> Side:
    """A build that the workspace holds."""
    import polars as pl

    found = sorted(path.parent.name for path in workspace.root.glob(f"builds/{prefix}*/build.json"))
    if len(found) != 1:
        what = "no build" if not found else f"{len(found)} builds ({', '.join(name[:12] for name in found)})"
        raise UserError(f"{workspace.root}: {prefix} begins {what} here. `draftmill status` shows what there is.")
    folder = workspace.build(found[0])
    try:
        body = json.loads((folder / "build.json").read_text())
        lock = json.loads((folder / "manifest.lock.yaml").read_text())
        rows = light_rows(workspace, body["candidates_id"], taken_by_files(folder))
        sources = {s["source"]: SourceRead(s["pool_id"], s["chunks"]) for s in body["sources"]}
        recipes = _built_recipes(folder)
        manifest = parse_manifest(json.dumps(lock["manifest"]), str(folder / "manifest.lock.yaml"))
    except (OSError, ValueError, KeyError, TypeError, pl.exceptions.PolarsError) as error:
        raise UserError(
            f"{folder}: its rows cannot be read ({first_line(error)[:200]}). Name its manifest instead, and they are "
            "selected again."
        ) from error
    return Side(f"{body['name']} {found[0][:8]}", rows, manifest, sources, recipes)


def _built_recipes(folder: Path) -> Recipes:
    """The recipes that a build's answers were planned with; none before its first `generate`."""
    import polars as pl

    if not (folder / "responses.parquet").exists():
        return {}
    bodies: dict[str, dict[str, Any]] = json.loads((folder / "recipes.json").read_text())
    used = pl.scan_parquet(folder / "responses.parquet", glob=False).select("category", "recipe_id").unique().collect()
    return {(category, bodies[recipe]["thinking"]): bodies[recipe] for category, recipe in used.iter_rows()}


def _recipes(manifest: Manifest, target: ResolvedTarget) -> dict[tuple[str, bool], Recipe]:
    identity = target.identity()
    return {
        (category, thinking): make_recipe(manifest, identity, category, thinking)
        for category in manifest.mix.shares
        for thinking in (False, True)
    }


def _in_use(manifest: Manifest, category: str, thinking: bool) -> bool:
    share = manifest.generation.for_category(category).thinking_share or 0.0
    return share > 0 if thinking else share < 1


def _answered(workspace: Workspace, recipe_ids: list[str]) -> pl.DataFrame:
    """ANSWER and accepted of every answer that was tried under these recipes."""
    import polars as pl

    ids = ", ".join(map(_quoted, recipe_ids))
    return _asked(
        workspace,
        "SELECT prompt_id, recipe_id, replica, turn, bool_or(state = 'accepted') AS accepted FROM responses "
        f"WHERE recipe_id IN ({ids}) GROUP BY ALL",
        {
            "prompt_id": pl.String, "recipe_id": pl.String, "replica": pl.Int32, "turn": pl.Int32,
            "accepted": pl.Boolean,
        },
    )  # fmt: skip


def _means(workspace: Workspace) -> pl.DataFrame:
    """Accepted answers and their tokens, by category and recipe, over all builds."""
    import polars as pl

    return _asked(
        workspace,
        "SELECT b.category, r.recipe_id, count(*) AS answers, sum(r.response_tokens)::BIGINT AS tokens "
        "FROM accepted_responses r JOIN (SELECT DISTINCT response_id, category FROM build_responses) b "
        "USING (response_id) GROUP BY ALL",
        {"category": pl.String, "recipe_id": pl.String, "answers": pl.Int64, "tokens": pl.Int64},
    )


def _rate(workspace: Workspace, model: str) -> Rate | None:
    """The newest generate run of this target: its tokens, rejected ones too, over its first start to its last end."""
    import polars as pl

    rows = _asked(
        workspace,
        "SELECT r.run_id, sum(r.response_tokens) / epoch(max(r.ended_at) - min(r.started_at)) AS tokens_per_s "
        f"FROM responses r JOIN recipes c USING (recipe_id) WHERE c.model = {_quoted(model)} GROUP BY r.run_id "
        "HAVING sum(r.response_tokens) > 0 AND max(r.ended_at) > min(r.started_at) ORDER BY r.run_id DESC LIMIT 1",
        {"run_id": pl.String, "tokens_per_s": pl.Float64},
    )
    return Rate(*rows.row(0)) if rows.height else None


def _asked(workspace: Workspace, sql: str, schema: dict[str, Any]) -> pl.DataFrame:
    """Rows of the published ledger; none where nothing is published."""
    import polars as pl

    return query(workspace, sql).cast(pl.Schema(schema)) if workspace.snapshot.exists() else pl.DataFrame(schema=schema)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
