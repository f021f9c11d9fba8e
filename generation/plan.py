"""What a build wants answered, what is answered already, and what is left: pure, printable, no engine.

A prompt of k turns wants k answers, whose ids are known before any is made. Recipes are made per category and
thinking; which prompts think is decided by a salted hash of the id, so the same ones do in every build. Rows are
columns here, never objects: a build has a million of them. The policies on answers are the manifest's as it is now, so
a stricter one leaves accepted answers out, and a milder one asks again for what it no longer rejects. A later turn
counts only over the earlier turns that count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

from corpus import identity, selection
from corpus.manifest import AnswerCheck, Manifest, Sampling
from corpus.reuse import ImportedConversation, conversation_for

if TYPE_CHECKING:
    import polars as pl

SAMPLING_FIELDS = tuple(Sampling.model_fields)
LABELS = list(selection.GROUP)
ROW = ["prompt_id", "replica"]
ANSWER = ["prompt_id", "recipe_id", "replica", "turn"]
EARLIER_TURN_REJECTED = "earlier_turn_rejected"
TRUNCATED = "truncated"
CHECKS = get_args(AnswerCheck)


@dataclass(frozen=True)
class Recipe:
    """An effective recipe."""

    recipe_id: str
    body: dict[str, Any]
    sampling: dict[str, float]
    max_tokens: int
    thinking: bool

    @property
    def family_id(self) -> str:
        """What it shares with recipes that differ in max_tokens alone."""
        return identity.family_id(self.body)


@dataclass(frozen=True)
class Policy:
    """What becomes of a category's answers: no part of any recipe."""

    truncated: str
    """keep, drop or retry"""
    reject: frozenset[str]
    """Findings that reject an answer."""


@dataclass(frozen=True)
class GenerationPlan:
    """All wanted answers in nested order, and those to be made now."""

    build_id: str
    recipes: dict[str, Recipe]
    policies: dict[str, Policy]
    answers: pl.DataFrame
    """LABELS, ANSWER, response_id, max_tokens, imported_from, recorded, state and left_out; as judged_answers."""
    left: pl.DataFrame
    """The rows of `answers` that are made now: all to_make, or as many as a limit lets."""

    @property
    def accepted(self) -> int:
        """Answers that the build has."""
        return self._count("accepted")

    @property
    def rejected(self) -> int:
        """Answers that it will not have: rejected, behind a rejected turn, or left out."""
        return self._count("rejected") + self._count("left_out")

    @property
    def to_make(self) -> int:
        """Answers that are made now."""
        return self.left.height

    @property
    def reused(self) -> dict[str, int]:
        """Accepted answers that are not generated, by the imported corpus that they come from."""
        counts = self.answers.drop_nulls("imported_from").group_by("imported_from").len().sort("imported_from")
        return dict(counts.iter_rows())

    @property
    def finished_elsewhere(self) -> int:
        """Accepted answers that stopped by themselves under another max_tokens."""
        own = list(self.recipes)
        return self.answers.filter(
            self.answers["imported_from"].is_null() & ~self.answers["recipe_id"].is_in(own)
        ).height

    def _count(self, state: str) -> int:
        return int((self.answers["state"] == state).sum())

    def lines(self) -> list[str]:
        """For a person."""
        lines = [
            f"{self.answers.height:,} answers wanted: {self.accepted:,} accepted, {self.rejected:,} rejected, "
            f"{self.to_make:,} to make"
        ]
        lines += [f"  {rows:,} of the accepted are from the import {name}" for name, rows in self.reused.items()]
        if self.finished_elsewhere:
            lines.append(
                f"  {self.finished_elsewhere:,} of the accepted stopped by themselves under another max_tokens"
            )
        left_out = self.answers.filter(self.answers["state"] == "left_out").group_by("left_out").len().sort("left_out")
        lines += [
            f"  {rows:,} accepted under an earlier policy are left out: {why}" for why, rows in left_out.iter_rows()
        ]
        counts = self.left.group_by("category").len().sort("category")
        return lines + [f"  {category:<14}{rows:>10,}" for category, rows in counts.iter_rows()]


def done_schema() -> dict[str, Any]:
    """Columns of what a ledger says of answers that have an end: one row a response_id."""
    import polars as pl

    texts = dict.fromkeys(("response_id", "reason", "finish_reason"), pl.String)
    # place: where an accepted answer stands among all in the order in which they were written
    return {**texts, "accepted": pl.Boolean, "notes": pl.List(pl.String), "place": pl.Int64}


def finished_schema() -> dict[str, Any]:
    """Columns of accepted answers that stopped by themselves, of recipes that differ from ours in max_tokens alone."""
    import polars as pl

    texts = dict.fromkeys(("prompt_id", "recipe_id", "family_id", "response_id"), pl.String)
    return {**texts, "replica": pl.Int32, "turn": pl.Int32, "response_tokens": pl.Int64}


def plan_generation(
    manifest: Manifest,
    target: dict[str, Any],
    build_id: str,
    prompts: pl.DataFrame,
    done: pl.DataFrame,
    limit: int | None = None,
    imported: Mapping[str, Sequence[ImportedConversation]] | None = None,
    finished: pl.DataFrame | None = None,
    retry: Iterable[str] = (),
) -> GenerationPlan:
    """Wanted answers of a build's prompts less those that are done.

    Args:
        target: the resolved target's identity.
        prompts: prompt_id, replica, turns, recorded and LABELS, in nested order.
        done: as done_schema; answers of other builds may be among it.
        limit: most prompts with something to do, category shares kept.
        imported: by prompt_id, conversations that replicas take in their order; not where a prompt is held out.
        finished: as finished_schema, with generation.reuse: finished.
        retry: reasons of rejection that are asked again.
    """
    recipes = all_recipes(manifest, target)
    wanted = wanted_answers(manifest, recipes, prompts, imported, finished, done)
    policies = {category: policy_of(manifest, category) for category in manifest.mix.shares}
    answers = judged_answers(wanted, done, policies, retry)
    to_make = answers.filter(answers["state"] == "to_make")
    return GenerationPlan(
        build_id,
        {recipe.recipe_id: recipe for recipe in recipes.values()},
        policies,
        answers,
        to_make if limit is None else _limited(to_make, limit),
    )


def all_recipes(manifest: Manifest, target: dict[str, Any]) -> dict[tuple[str, bool], Recipe]:
    """The recipes of a manifest by category and thinking."""
    return {
        (category, thinking): make_recipe(manifest, target, category, thinking)
        for category in manifest.mix.shares
        for thinking in (False, True)
    }


def make_recipe(manifest: Manifest, target: dict[str, Any], category: str, thinking: bool) -> Recipe:
    """The effective recipe of a category's prompts with thinking on or off."""
    own = manifest.generation.for_category(category)
    sampling = manifest.generation.thinking.on if thinking else manifest.generation.thinking.off
    if own.temperature is not None:
        sampling = sampling.model_copy(update={"temperature": own.temperature})
    max_tokens = own.max_tokens or manifest.generation.max_tokens
    body = identity.recipe_body(manifest, target, sampling, max_tokens, thinking)
    return Recipe(
        identity.recipe_id(body),
        body,
        {name: getattr(sampling, name) for name in SAMPLING_FIELDS},
        max_tokens,
        thinking,
    )


def policy_of(manifest: Manifest, category: str) -> Policy:
    """The policy on a category's answers."""
    own = manifest.generation.for_category(category)
    return Policy(own.truncated or manifest.generation.truncated, frozenset(own.reject or ()))


def wanted_answers(
    manifest: Manifest,
    recipes: Mapping[tuple[str, bool], Recipe],
    prompts: pl.DataFrame,
    imported: Mapping[str, Sequence[ImportedConversation]] | None = None,
    finished: pl.DataFrame | None = None,
    done: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """The answers that a build wants, one a row: LABELS, ANSWER, response_id, max_tokens, imported_from and recorded.

    Args as plan_generation. imported_from is null where an answer is generated.
    """
    import polars as pl

    table = pl.DataFrame(
        [(category, thinking, r.recipe_id, r.family_id, r.max_tokens) for (category, thinking), r in recipes.items()],
        schema={
            "category": pl.String, "thinking": pl.Boolean, "recipe_id": pl.String, "family_id": pl.String,
            "max_tokens": pl.Int64,
        },
        orient="row",
    )  # fmt: skip
    asked = prompts.select(*ROW, *LABELS, "turns", "recorded")
    turns = (
        asked.with_columns(pl.col("replica").cast(pl.Int32), thinking=_thinking(manifest, asked))
        .with_columns(turn=pl.int_ranges("turns").cast(pl.List(pl.Int32)))
        .explode("turn", empty_as_null=False)
        .drop("turns")
        .join(table, on=["category", "thinking"], how="left", maintain_order="left")
    )
    ids = identity.response_ids(turns.select("prompt_id", "recipe_id", "replica", "turn").iter_rows())
    made = turns.with_columns(response_id=pl.Series(ids, dtype=pl.String), imported_from=pl.lit(None, pl.String))
    if finished is not None and finished.height:
        assert done is not None, "what is finished elsewhere is taken where nothing of one's own is"
        made = _with_finished(made, finished, done)
    if imported:
        made = _with_imported(made, prompts, imported)
    return made.select(*LABELS, *ANSWER, "response_id", "max_tokens", "imported_from", "recorded")


def _thinking(manifest: Manifest, prompts: pl.DataFrame) -> pl.Series:
    import numpy as np
    import polars as pl

    ids, categories = prompts["prompt_id"].to_list(), prompts["category"].to_list()
    shares = {c: manifest.generation.for_category(c).thinking_share or 0.0 for c in manifest.mix.shares}
    position: Any = selection.spread(ids, selection.THINKING_SALT) / 2.0**64 if ids else np.zeros(0)
    return pl.Series(position < np.array([shares[category] for category in categories]), dtype=pl.Boolean)


def _with_imported(
    made: pl.DataFrame, prompts: pl.DataFrame, imported: Mapping[str, Sequence[ImportedConversation]]
) -> pl.DataFrame:
    """Rows that take an imported conversation have its answers, turn by turn."""
    import polars as pl

    taken = [
        (prompt_id, replica, turn, one.recipe_id, response_id, one.imported_from)
        for prompt_id, replica, holdout in prompts.select(*ROW, "holdout").iter_rows()
        if (one := conversation_for(imported, prompt_id, replica, holdout))
        for turn, response_id in enumerate(one.response_ids)
    ]
    schema = {
        "prompt_id": pl.String, "replica": pl.Int32, "turn": pl.Int32, "own_recipe": pl.String, "own_id": pl.String,
        "own_import": pl.String,
    }  # fmt: skip
    adopted = pl.DataFrame(taken, schema=schema, orient="row")
    return made.join(adopted, on=[*ROW, "turn"], how="left", maintain_order="left").with_columns(
        recipe_id=pl.coalesce("own_recipe", "recipe_id"),
        response_id=pl.coalesce("own_id", "response_id"),
        imported_from=pl.coalesce("own_import", "imported_from"),
    )


def _with_finished(made: pl.DataFrame, finished: pl.DataFrame, done: pl.DataFrame) -> pl.DataFrame:
    """Answers that stopped by themselves under another max_tokens take the place of those that would be made.

    A conversation is taken whole, all of one recipe, for each turn is shown the ones before it; or not at all. Where
    its first turn is accepted under our own recipe, all of it is our own.
    """
    import polars as pl

    mine = made.with_columns(own=pl.col("response_id").is_in(done.filter("accepted")["response_id"].implode()))
    there = finished.rename({"recipe_id": "their_recipe", "response_id": "their_id"})
    usable = mine.join(there, on=[*ROW, "turn", "family_id"], how="inner").filter(
        (pl.col("response_tokens") <= pl.col("max_tokens")) & (pl.col("their_recipe") != pl.col("recipe_id"))
    )
    begun = mine.filter(pl.col("own") & (pl.col("turn") == 0)).select(ROW)
    whole = (
        usable.filter(~pl.col("recorded"))
        .join(begun, on=ROW, how="anti")
        .join(made.group_by(ROW).agg(turns=pl.len()), on=ROW)
        .filter(pl.len().over([*ROW, "their_recipe"]) == pl.col("turns"))
        .filter(pl.col("their_recipe") == pl.col("their_recipe").min().over(ROW))
    )
    singles = usable.filter(pl.col("recorded") & ~pl.col("own")).sort("their_recipe")
    columns = [*ROW, "turn", "their_recipe", "their_id"]
    one = singles.unique([*ROW, "turn"], keep="first", maintain_order=True)
    taken = pl.concat([whole.select(columns), one.select(columns)])
    return (
        made.join(taken, on=[*ROW, "turn"], how="left", maintain_order="left")
        .with_columns(
            recipe_id=pl.coalesce("their_recipe", "recipe_id"), response_id=pl.coalesce("their_id", "response_id")
        )
        .drop("their_recipe", "their_id")
    )


def judged_answers(
    wanted: pl.DataFrame, done: pl.DataFrame, policies: Mapping[str, Policy], retry: Iterable[str] = ()
) -> pl.DataFrame:
    """Wanted answers with `state` (accepted, left_out, rejected or to_make) and `left_out` (why).

    Of rejected answers too `left_out` says why, so that one which another build has accepted later does not enter
    before this build is planned again. Unless its history is recorded, a turn that does not count ends its
    conversation: what is accepted behind it is left out. So is a turn that was written before the one that it would
    follow: it was an answer to another, which a lost shard held.

    Args:
        wanted: as wanted_answers; a row's turns stand together, in their order.
    """
    import polars as pl

    rules = pl.DataFrame(
        [(category, policy.truncated, sorted(policy.reject)) for category, policy in policies.items()],
        schema={"category": pl.String, "truncated": pl.String, "reject": pl.List(pl.String)},
        orient="row",
    )
    known = wanted.join(done, on="response_id", how="left", maintain_order="left")
    known = known.join(rules, on="category", how="left", maintain_order="left")
    found = pl.col("notes").list.set_intersection("reject").list.first()
    cut = (pl.col("truncated") == "drop") & (pl.col("finish_reason") == "length")
    generated = pl.col("imported_from").is_null()
    policy_reason = pl.col("reason").is_in([TRUNCATED, *CHECKS])
    still = ((pl.col("reason") == TRUNCATED) & (pl.col("truncated") == "drop")) | (
        (pl.col("reason") != TRUNCATED) & pl.col("reject").list.contains(pl.col("reason"))
    )
    again = pl.col("reason").is_in([EARLIER_TURN_REJECTED, *retry]) | (policy_reason & ~still)
    rejected = (~pl.col("accepted") & ~again).fill_null(False)
    taken = generated & pl.col("accepted").fill_null(False)
    follows = generated & ~pl.col("recorded")
    same_row = pl.all_horizontal(pl.col(name) == pl.col(name).shift(1) for name in ROW)
    before = pl.when(same_row).then(pl.col("place").shift(1))
    known = known.with_columns(
        refused=pl.when(taken & cut).then(pl.lit(TRUNCATED)).when(taken).then(found),
        rejected=rejected,
        stale=follows & taken & (pl.col("place") < before).fill_null(False),
    )
    counts = taken & pl.col("refused").is_null() & ~pl.col("stale")
    behind = follows & (pl.col("turn") > pl.when(~counts).then("turn").min().over(ROW))
    orphan = taken & (behind | pl.col("stale"))
    known = known.with_columns(left_out=pl.coalesce("refused", pl.when(orphan).then(pl.lit(EARLIER_TURN_REJECTED))))
    ends = pl.col("left_out").is_not_null() | pl.col("rejected")
    ended = follows & (pl.col("turn") > pl.when(ends).then("turn").min().over(ROW)).fill_null(False)
    state = (
        pl.when(pl.col("left_out").is_not_null())
        .then(pl.lit("left_out"))
        .when(taken | ~generated)
        .then(pl.lit("accepted"))
        .when(pl.col("rejected") | ended)
        .then(pl.lit("rejected"))
        .otherwise(pl.lit("to_make"))
    )
    why = pl.when(pl.col("rejected")).then("reason").otherwise(pl.lit(EARLIER_TURN_REJECTED))
    judged = known.with_columns(state=state).with_columns(
        left_out=pl.when(pl.col("state") == "rejected").then(why).otherwise("left_out")
    )
    return judged.select(*wanted.columns, "state", "left_out")


def _limited(to_make: pl.DataFrame, limit: int) -> pl.DataFrame:
    """The first `limit` prompts when categories take turns in proportion to what each has to do."""
    import polars as pl

    prompts = to_make.select(*ROW, "category").unique(ROW, keep="first", maintain_order=True)
    rank = (pl.int_range(pl.len()).over("category") + 0.5) / pl.len().over("category")
    first = prompts.with_columns(rank=rank).sort("rank", "category", maintain_order=True).head(limit)
    return to_make.join(first.select(ROW), on=ROW, how="semi", maintain_order="left")
