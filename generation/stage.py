"""Between ledger and run: what a build has, what its plan is, and where both are written.

Reads the ledger and the build's files, makes the pure plan, writes the plan's own artefact (the answers that the
build wants), and gives the run its feed. Nothing here starts an engine.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corpus import building
from corpus.artefacts import write_atomically, write_text
from corpus.building import BuildPlan
from corpus.ledger import ingest
from corpus.ledger.writer import LedgerWriter, Readable
from corpus.manifest import Manifest
from corpus.records import RECORDED_MARK
from corpus.responses import read_rows_at
from corpus.reuse import imported_answers
from corpus.target import ResolvedTarget
from generation.feed import TEXT_ROWS, Feed, Said, conversations_of
from generation.order import prefix_keys
from generation.plan import (
    ANSWER,
    LABELS,
    GenerationPlan,
    all_recipes,
    done_schema,
    finished_schema,
    plan_generation,
)

if TYPE_CHECKING:
    import polars as pl

RETRIED_ON_DEMAND = ("engine_error", "engine_crashed")
"""Reasons that are no judgement on the answer."""


def load_prompts(build: BuildPlan, ledger: Readable) -> pl.DataFrame:
    """A build's rows without their texts: ROW, row, LABELS, turns, prompt_chars, recorded and prefix_key.

    row is the place in prompts.parquet; recorded says that assistant turns of the source stay as context.
    """
    import polars as pl

    rows = building.selected_rows(ledger.workspace, build, ["prompt_id", "turns", "prompt_chars"])
    path = ledger.workspace.candidates(build.candidates_id) / "prompts.parquet"
    scan = pl.scan_parquet(path, glob=False)
    height = scan.select(pl.len()).collect().item()
    taken = rows.select("row").unique().lazy()
    parts = []
    for start in range(0, height, TEXT_ROWS):
        texts = (
            scan.select("messages", "tools")
            .with_row_index("row")
            .slice(start, TEXT_ROWS)
            .join(taken, on="row", how="semi", maintain_order="left")
            .collect()
        )
        recorded = texts["messages"].str.contains(RECORDED_MARK, literal=True)
        keys = prefix_keys(texts["messages"], texts["tools"])
        parts.append(texts.select("row").with_columns(recorded=recorded, prefix_key=keys))
    schema = {"row": pl.UInt32, "recorded": pl.Boolean, "prefix_key": pl.UInt64}
    known = pl.concat([pl.DataFrame(schema=schema), *parts])
    return rows.join(known, on="row", how="left", maintain_order="left")


def load_plan(
    manifest: Manifest,
    target: ResolvedTarget,
    build_id: str,
    prompts: pl.DataFrame,
    ledger: Readable,
    *,
    limit: int | None,
    retry_rejected: bool,
) -> GenerationPlan:
    """The plan of a build, given what the ledger knows.

    Args:
        prompts: the build's rows (load_prompts).
        retry_rejected: answers that an engine's failure rejected are asked again.

    Raises:
        UserError: the manifest names an imported corpus that is not there, or whose answers are not the target's.
    """
    finished = _finished(manifest, target, ledger) if manifest.generation.reuse == "finished" else None
    return plan_generation(
        manifest,
        target.identity(),
        build_id,
        prompts,
        load_done(ledger),
        limit,
        imported_answers(manifest, target.identity(), ledger),
        finished,
        RETRIED_ON_DEMAND if retry_rejected else (),
    )


def load_done(ledger: Readable) -> pl.DataFrame:
    """Every answer that has an end, as generation.plan.done_schema."""
    import polars as pl

    found = ledger.frame(
        """
        SELECT response_id, bool_or(state = 'accepted') AS accepted,
               max_by(reason, (shard, shard_row)) FILTER (state = 'rejected') AS reason,
               any_value(finish_reason) FILTER (state = 'accepted') AS finish_reason,
               any_value(notes) FILTER (state = 'accepted') AS notes,
               min(place) FILTER (state = 'accepted') AS place
        FROM (
            SELECT response_id, state, reason, finish_reason, notes, shard, shard_row,
                   row_number() OVER (ORDER BY shard, shard_row) AS place  -- shards sort by time
            FROM responses WHERE state IN ('accepted', 'rejected')
        ) GROUP BY response_id
        """
    )
    schema = done_schema()
    return found.select(pl.col(name).cast(kind) for name, kind in schema.items())


def _finished(manifest: Manifest, target: ResolvedTarget, ledger: Readable) -> pl.DataFrame:
    """Accepted answers that stopped by themselves, of every recipe that differs from ours in max_tokens alone."""
    import polars as pl

    from corpus.identity import family_id

    ours = {recipe.family_id for recipe in all_recipes(manifest, target.identity()).values()}
    families = {
        recipe_id: family
        for recipe_id, body in ledger.rows("SELECT recipe_id, body FROM recipes")
        if (family := family_id(json.loads(body))) in ours
    }
    found = ledger.frame(
        "SELECT prompt_id, recipe_id, response_id, replica, turn, response_tokens FROM accepted_responses "
        "WHERE finish_reason = 'stop' AND list_contains(?, recipe_id)",
        sorted(families),
    )
    named = found.with_columns(
        family_id=pl.col("recipe_id").replace_strict(families, return_dtype=pl.String) if families else pl.lit("")
    )
    return named.select(pl.col(name).cast(kind) for name, kind in finished_schema().items())


def commit_plan(plan: GenerationPlan, ledger: LedgerWriter) -> None:
    """Write which answers the build wants, and enter them."""
    import polars as pl

    folder = ledger.workspace.build(plan.build_id)
    columns = ["response_id", *ANSWER, *LABELS, "left_out", "recorded"]
    frame = plan.answers.select(columns)
    path = folder / "responses.parquet"
    bodies = _known_bodies(folder) | {recipe_id: recipe.body for recipe_id, recipe in plan.recipes.items()}
    others = sorted(set(frame["recipe_id"].unique()) - set(bodies))
    known = ledger.rows(
        "SELECT recipe_id, body FROM recipes WHERE list_contains(?, recipe_id) "
        "AND recipe_id NOT IN (SELECT import_id FROM imports)",
        others,
    )
    bodies |= {recipe_id: json.loads(body) for recipe_id, body in known}  # finished under another max_tokens
    text = json.dumps(bodies, indent=1, sort_keys=True)
    held = ledger.rows("SELECT count(*) FROM build_responses WHERE build_id = ?", plan.build_id)[0][0]
    try:
        unchanged = (folder / "recipes.json").read_bytes() == text.encode() and pl.read_parquet(
            path, glob=False
        ).equals(frame)
    except (OSError, pl.exceptions.PolarsError):  # gone or damaged: written again
        unchanged = False
    if unchanged and held == frame.height:
        return
    write_text(folder / "recipes.json", text)
    write_atomically(path, frame.write_parquet)
    ledger.call(lambda connection: ingest.ingest_response_plan(connection, ledger.workspace, plan.build_id))


def _known_bodies(folder: Path) -> dict[str, Any]:
    """The recipes that a build had so far: the answers that were made under them are still there."""
    try:
        bodies: dict[str, Any] = json.loads((folder / "recipes.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # before the first plan, or damaged: made again from the ledger and the plan
        return {}
    return bodies if isinstance(bodies, dict) else {}


def load_feed(plan: GenerationPlan, prompts: pl.DataFrame, build: BuildPlan, ledger: Readable) -> Feed:
    """The plan's conversations: texts from the candidates, earlier answers from the shards."""
    budgets = {recipe_id: recipe.max_tokens for recipe_id, recipe in plan.recipes.items()}
    path = ledger.workspace.candidates(build.candidates_id) / "prompts.parquet"
    feed = Feed(path, budgets, lambda: measured_lengths(ledger), lambda window: _said(build.build_id, window, ledger))
    feed.add(conversations_of(plan.left, prompts))
    return feed


def measured_lengths(ledger: Readable) -> pl.DataFrame:
    """Accepted answers and their mean tokens: category, recipe_id, bucket, n, mean (as order.expected_tokens)."""
    return ledger.frame(
        """
        WITH chars AS (SELECT prompt_id, any_value(prompt_chars) AS prompt_chars FROM prompts GROUP BY prompt_id),
        labels AS (SELECT response_id, any_value(category) AS category FROM build_responses GROUP BY response_id)
        SELECT l.category, r.recipe_id, floor(log2(greatest(c.prompt_chars, 1)))::INTEGER AS bucket,
               count(*) AS n, avg(r.response_tokens) AS mean
        FROM accepted_responses r JOIN labels l USING (response_id) JOIN chars c USING (prompt_id)
        WHERE r.response_tokens > 0 GROUP BY ALL ORDER BY ALL
        """
    )


def _said(build_id: str, window: pl.DataFrame, ledger: Readable) -> Said:
    """The accepted answers of conversations that have begun; of which turns, a lost shard may have decided."""
    import polars as pl

    several = ~pl.col("recorded") & (pl.col("turns").list.last() + 1 > pl.col("turns_left"))
    begun = window.filter(several)["prompt_id"].unique().to_list()
    if not begun:
        return {}
    places = ledger.rows(
        "SELECT r.shard, r.shard_row FROM accepted_responses r JOIN build_responses b USING (response_id) "
        "WHERE b.build_id = ? AND b.left_out IS NULL AND b.prompt_id IN (SELECT unnest(?))",
        build_id,
        begun,
    )
    columns = ["response_id", "prompt_id", "replica", "turn", "text"]
    frame = read_rows_at(ledger.workspace.responses, places, columns).sort("prompt_id", "replica", "turn")
    said: Said = {}
    for prompt_id, replica, turn, text in frame.select("prompt_id", "replica", "turn", "text").iter_rows():
        said.setdefault((prompt_id, replica), {})[turn] = text
    return said
