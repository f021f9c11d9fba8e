"""What `draftmill diff` compares, read: two builds' rows, manifests and recipes, and what the ledger has measured.

Each is a manifest, or a build that the workspace holds, by id or name (its files are enough: no source is asked).
Texts are never read. Nothing is written but cached pools and candidates.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corpus.building import manifest_folder, taken_groups
from corpus.errors import UserError, first_line
from corpus.identity import recipe_id
from corpus.ledger.query import LedgerReader
from corpus.manifest import Manifest
from corpus.manifest_file import locked_manifest
from corpus.sources import FileDigests
from corpus.workspace import Workspace
from draftmill.answer_lengths import Asked, expected_lengths, read_told
from draftmill.builds import Known, find_build
from draftmill.changes import (
    Recipes,
    SourceRead,
    depth_changes,
    manifest_changes,
    recipe_changes,
    training_changes,
)
from draftmill.differing import DiffPlan, Rate, plan_diff
from draftmill.selecting import build_plan, selection_plan
from draftmill.session import Session
from draftmill.taken import light_rows, taken_by_files
from generation.plan import ANSWER, LABELS, Recipe, all_recipes, judged_answers, policy_of
from generation.stage import load_done, load_plan

if TYPE_CHECKING:
    import polars as pl

    from corpus.building import BuildPlan
    from corpus.target import ResolvedTarget


@dataclass(frozen=True)
class Side:
    """One of the two builds."""

    name: str
    rows: pl.DataFrame
    """As light_rows gives them."""
    manifest: Manifest
    sources: dict[str, SourceRead]
    recipes: Recipes


def compare(old: str, new: str, workspace: Workspace) -> DiffPlan:
    """The difference between OLD and NEW: each a manifest's path, or a build's id or name.

    Raises:
        UserError: one of them cannot be planned, or there is no such build.
    """
    one, other = (_find(named, workspace) for named in (old, new))
    if isinstance(one, Session) and isinstance(other, Session):
        _share_target(one, other)
    after, answers, recipes = _new(other, workspace)
    before = _old(one, workspace)
    changes = [
        *manifest_changes(before.manifest, after.manifest),
        *depth_changes(before.sources, after.sources),
        *recipe_changes(before.recipes, after.recipes, after.manifest.generation.reuse == "finished"),
        *training_changes(before.manifest, after.manifest),
    ]
    ledger = LedgerReader(workspace)
    rate = measured_rate(ledger, after.manifest.target.model)
    names = (before.name, after.name)
    lengths = expected_lengths(read_told(ledger), _asked(after, answers, recipes))
    return plan_diff(names, before.rows, after.rows, answers, lengths, rate, changes)


def _find(named: str, workspace: Workspace) -> Session | Known:
    """What a person names: a manifest that is there, else a build."""
    if not _is_file(named):
        return find_build(named, workspace)
    session = Session(Path(named), workspace)
    _ = session.manifest  # a wrong manifest is answered before anything is touched
    return session


def _is_file(named: str) -> bool:
    """True for what may be read as a file, a pipe too. A folder may well be called as a build is."""
    try:
        return Path(named).exists() and not Path(named).is_dir()
    except (OSError, ValueError):  # a name that no system takes
        return False


def _share_target(old: Session, new: Session) -> None:
    """One target is loaded once."""
    if old.manifest.target == new.manifest.target and old.base.resolve() == new.base.resolve():
        old.target = new.target


def _old(named: Session | Known, workspace: Workspace) -> Side:
    if isinstance(named, Known):
        return _built(workspace, named)
    # what it would import is not asked: only its prompts are compared
    return _planned(named, selection_plan(named), all_recipes(named.manifest, named.target.identity()))


def _new(named: Session | Known, workspace: Workspace) -> tuple[Side, pl.DataFrame, Recipes]:
    """NEW, what becomes of the answers that it wants, and the recipes that make them."""
    if isinstance(named, Known):
        side = _built(workspace, named)
        if (workspace.build(named.build_id) / "responses.parquet").exists():
            return side, _built_answers(workspace, named, side.manifest), side.recipes
        target = _target_of(side.manifest, named, workspace)
        recipes = {key: recipe.body for key, recipe in all_recipes(side.manifest, target.identity()).items()}
        return side, _answers(side, target, workspace), recipes
    side = _planned(named, build_plan(named), all_recipes(named.manifest, named.target.identity()))
    return side, _answers(side, named.target, workspace), side.recipes


def _asked(side: Side, answers: pl.DataFrame, recipes: Recipes) -> list[Asked]:
    """What is to be made, by category and recipe."""
    import polars as pl

    thinking = {recipe_id(dict(body)) for body in recipes.values() if body["thinking"]}
    turns = dict(side.rows.group_by("category").agg(pl.col("turns").mean()).iter_rows())
    to_make = answers.filter(pl.col("state") == "to_make").select("category", "recipe_id", "max_tokens").unique()
    mix = side.manifest.mix.mean_response_tokens
    return [
        Asked(
            category, recipe in thinking, most, side.manifest.target.model, frozenset([recipe]),
            mix[category] / (turns.get(category) or 1.0) if category in mix else None,
        )
        for category, recipe, most in to_make.sort(pl.all()).iter_rows()
    ]  # fmt: skip


def _answers(side: Side, target: ResolvedTarget, workspace: Workspace) -> pl.DataFrame:
    plan = load_plan(side.manifest, target, "", side.rows, LedgerReader(workspace), limit=None, retry_rejected=False)
    return plan.answers


def planned_answers(session: Session, build: Known) -> pl.DataFrame:
    """Answers that the manifest wants of a build, as `draftmill generate` would plan them now.

    Returns:
        response_id, category and state, as generation.plan.judged_answers has them; and thinking.

    Raises:
        UserError: the target cannot be found, or the build's files cannot be read.
    """
    import polars as pl

    side = replace(_built(session.workspace, build), manifest=session.manifest)
    recipes = all_recipes(session.manifest, session.target.identity())
    thinking = [recipe.recipe_id for recipe in recipes.values() if recipe.thinking]
    answers = _answers(side, session.target, session.workspace)
    return answers.select("response_id", "category", "state", thinking=pl.col("recipe_id").is_in(thinking))


def _target_of(manifest: Manifest, named: Known, workspace: Workspace) -> ResolvedTarget:
    """The target of a build before its first `generate`. Paths start where its manifest lay, or here if that is not
    known: an older draftmill did not note it."""
    from corpus.target import resolve_target

    digests = FileDigests(workspace.cache / "digests.json")
    try:
        target = resolve_target(manifest.target, manifest_folder(workspace, named.build_id) or Path(), digests)
    except UserError as error:
        raise UserError(f"{error} Or name the build's manifest instead, where its target is found from.") from error
    digests.save()
    return target


def _planned(session: Session, plan: BuildPlan, recipes: dict[tuple[str, bool], Recipe]) -> Side:
    return Side(
        f"{plan.manifest.name} {plan.build_id[:8]}",
        light_rows(session.workspace, plan.candidates_id, taken_groups(session.workspace, plan)),
        plan.manifest,
        {pool.source.name: SourceRead(pool.pool_id, len(pool.chunks)) for pool in plan.pools},
        {key: recipe.body for key, recipe in recipes.items() if _in_use(plan.manifest, *key)},
    )


def _built(workspace: Workspace, named: Known) -> Side:
    """A build that the workspace holds."""
    import polars as pl

    folder = workspace.build(named.build_id)
    try:
        body = json.loads((folder / "build.json").read_text())
        lock = json.loads((folder / "manifest.lock.yaml").read_text())
        rows = light_rows(workspace, body["candidates_id"], taken_by_files(folder))
        sources = {s["source"]: SourceRead(s["pool_id"], s["chunks"]) for s in body["sources"]}
        recipes = _built_recipes(folder)
        manifest = locked_manifest(lock["manifest"], str(folder / "manifest.lock.yaml"))
    except (OSError, ValueError, KeyError, TypeError, pl.exceptions.PolarsError) as error:
        raise UserError(
            f"{folder}: its rows cannot be read ({first_line(error)[:200]}). Name its manifest instead, and they are "
            "selected again."
        ) from error
    return Side(f"{body['name']} {named.build_id[:8]}", rows, manifest, sources, recipes)


def _built_recipes(folder: Path) -> Recipes:
    """The recipes that a build's answers were planned with, imported ones apart; none before its first `generate`."""
    import polars as pl

    if not (folder / "responses.parquet").exists():
        return {}
    bodies: dict[str, dict[str, Any]] = json.loads((folder / "recipes.json").read_text())
    used = pl.scan_parquet(folder / "responses.parquet", glob=False).select("category", "recipe_id").unique().collect()
    return {
        (category, bodies[recipe]["thinking"]): bodies[recipe]
        for category, recipe in used.sort("category", "recipe_id").iter_rows()
        if recipe in bodies
    }


def _built_answers(workspace: Workspace, named: Known, manifest: Manifest) -> pl.DataFrame:
    """As generation.plan.judged_answers, of a build as `generate` planned it last."""
    import polars as pl

    folder = workspace.build(named.build_id)
    try:
        bodies: dict[str, dict[str, Any]] = json.loads((folder / "recipes.json").read_text())
        planned = pl.read_parquet(folder / "responses.parquet", glob=False)
    except (OSError, ValueError, pl.exceptions.PolarsError) as error:
        raise UserError(
            f"{folder}: its answers cannot be read ({first_line(error)[:200]}). Name its manifest instead."
        ) from error
    ledger = LedgerReader(workspace)
    names = dict(ledger.rows("SELECT import_id, name FROM imports"))
    known = [
        (recipe, bodies[recipe]["max_tokens"], None) if recipe in bodies else (recipe, 0, names.get(recipe, recipe[:8]))
        for recipe in planned["recipe_id"].unique()
    ]
    schema = {"recipe_id": pl.String, "max_tokens": pl.Int64, "imported_from": pl.String}
    named_recipes = pl.DataFrame(known, schema=schema, orient="row")
    if "recorded" not in planned.columns:  # of an older draftmill, where a rejected turn ended any conversation
        planned = planned.with_columns(recorded=pl.lit(False))
    wanted = planned.select("response_id", *LABELS, *ANSWER, "recorded").join(
        named_recipes, on="recipe_id", maintain_order="left"
    )
    policies = {category: policy_of(manifest, category) for category in manifest.mix.shares}
    return judged_answers(wanted, load_done(ledger), policies)


def _in_use(manifest: Manifest, category: str, thinking: bool) -> bool:
    share = manifest.generation.for_category(category).thinking_share or 0.0
    return share > 0 if thinking else share < 1


def measured_rate(ledger: LedgerReader, model: str) -> Rate | None:
    """The newest generate run of this target: its tokens, rejected ones too, over its first start to its last end."""
    rows = ledger.rows(
        "SELECT r.run_id, sum(r.response_tokens) / epoch(max(r.ended_at) - min(r.started_at)), "
        "count(DISTINCT r.device) "
        "FROM responses r JOIN recipes c USING (recipe_id) WHERE c.model = ? GROUP BY r.run_id "
        "HAVING sum(r.response_tokens) > 0 AND max(r.ended_at) > min(r.started_at) ORDER BY r.run_id DESC LIMIT 1",
        model,
    )
    return Rate(*rows[0]) if rows else None
