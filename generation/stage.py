"""Between ledger and run: what a build has, what its plan is, and where both are written.

Reads the ledger and the build's files, makes the pure plan, writes the plan's own artefact (the answers that the
build wants), and gives the run its conversations. Nothing here starts an engine.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from corpus.artefacts import write_atomically, write_text
from corpus.ledger import ingest
from corpus.ledger.writer import LedgerWriter, Readable
from corpus.manifest import Manifest
from corpus.responses import read_rows_at
from corpus.reuse import imported_answers
from corpus.target import ResolvedTarget
from generation.conversation import Conversation, make_conversations
from generation.plan import Answer, GenerationPlan, plan_generation

if TYPE_CHECKING:
    import polars as pl

RETRIED_ON_DEMAND = ("engine_error", "engine_crashed", "earlier_turn_rejected")
"""Reasons that are no judgement on the answer: with an earlier turn asked again, the later ones follow."""


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
        prompts: the build's rows (corpus.building.selected_rows).
        retry_rejected: answers that an engine's failure rejected are asked again.

    Raises:
        UserError: the manifest names an imported corpus that is not there, or whose answers are not the target's.
    """
    imported = imported_answers(manifest, target.identity(), ledger)
    states = ledger.rows(
        "SELECT response_id, max(CASE state WHEN 'accepted' THEN 2 WHEN 'rejected' THEN 1 ELSE 0 END), "
        "max(CASE WHEN state = 'rejected' AND NOT list_contains(?, reason) THEN 1 ELSE 0 END) "
        "FROM responses GROUP BY response_id",
        list(RETRIED_ON_DEMAND),
    )
    done = {
        response_id: "accepted" if rank == 2 else "rejected"
        for response_id, rank, by_policy in states
        if rank == 2 or (rank == 1 and (by_policy or not retry_rejected))
    }
    return plan_generation(manifest, target.identity(), build_id, prompts, done, limit, imported)


def commit_plan(plan: GenerationPlan, ledger: LedgerWriter) -> None:
    """Write which answers the build wants, and enter them."""
    import polars as pl

    folder = ledger.workspace.build(plan.build_id)
    names = tuple(Answer.__dataclass_fields__)
    schema = {**dict.fromkeys(names, pl.String), "replica": pl.Int32, "turn": pl.Int32, "holdout": pl.Boolean}
    frame = pl.DataFrame({name: [getattr(a, name) for a in plan.wanted] for name in names}, schema=schema)
    path = folder / "responses.parquet"
    recipes = {recipe_id: recipe.body for recipe_id, recipe in plan.recipes.items()}
    text = json.dumps(recipes, indent=1, sort_keys=True)
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


def load_conversations(plan: GenerationPlan, prompts: pl.DataFrame, ledger: Readable) -> list[Conversation]:
    """The plan's conversations: texts from the build, earlier answers from the shards."""
    texts = {
        prompt_id: (messages, tools)
        for prompt_id, messages, tools in prompts.select("prompt_id", "messages", "tools").iter_rows()
    }
    begun = {(answers[0].prompt_id, answers[0].replica) for answers in plan.conversations if answers[0].turn > 0}
    earlier: dict[tuple[str, int], list[str]] = {}
    if begun:
        wanted = {a.response_id: a for a in plan.wanted if (a.prompt_id, a.replica) in begun}
        places = ledger.rows(
            "SELECT r.shard, r.shard_row FROM accepted_responses r WHERE list_contains(?, r.response_id)",
            sorted(wanted),
        )
        columns = ["response_id", "prompt_id", "replica", "turn", "text"]
        frame = read_rows_at(ledger.workspace.responses, places, columns)
        said = frame.sort("prompt_id", "replica", "turn").select("prompt_id", "replica", "text")
        for prompt_id, replica, text in said.iter_rows():
            earlier.setdefault((prompt_id, replica), []).append(text)
    return make_conversations(plan, texts, earlier, _expected(plan, ledger))


def _expected(plan: GenerationPlan, ledger: Readable) -> Callable[[Answer], float]:
    """Expected tokens of an answer: the mean of its category under its recipe, else the recipe's budget."""
    means = {
        (category, recipe_id): float(mean)
        for category, recipe_id, mean in ledger.rows(
            "SELECT b.category, r.recipe_id, avg(r.response_tokens) FROM accepted_responses r "
            "JOIN build_responses b USING (response_id) GROUP BY ALL"
        )
    }
    budgets = {recipe_id: recipe.max_tokens for recipe_id, recipe in plan.recipes.items()}
    return lambda answer: means.get((answer.category, answer.recipe_id), float(budgets[answer.recipe_id]))
