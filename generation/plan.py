"""What a build wants answered, what is answered already, and what is left: pure, printable, no engine.

A prompt of k turns wants k answers, whose ids are known before any is made. Recipes are made per category and
thinking; which prompts think is decided by a salted hash of the id, so the same ones do in every build. The first
missing turn of each prompt can start; the next is queued when it is accepted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from corpus import identity, selection
from corpus.manifest import Manifest, Sampling
from corpus.reuse import ImportedConversation, conversation_for

if TYPE_CHECKING:
    import polars as pl

SAMPLING_FIELDS = tuple(Sampling.model_fields)


@dataclass(frozen=True)
class Recipe:
    """An effective recipe and the policies that go with it."""

    recipe_id: str
    body: dict[str, Any]
    sampling: dict[str, float]
    max_tokens: int
    thinking: bool
    truncated: str


@dataclass(frozen=True)
class Answer:
    """One wanted answer."""

    response_id: str
    prompt_id: str
    recipe_id: str
    replica: int
    turn: int
    category: str
    source: str
    holdout: bool


@dataclass(frozen=True)
class GenerationPlan:
    """All wanted answers in nested order, and those to be made now."""

    build_id: str
    recipes: dict[str, Recipe]
    wanted: tuple[Answer, ...]
    conversations: tuple[tuple[Answer, ...], ...]
    """Of each prompt with something to do, the answers still to be made, in turn order."""
    accepted: int
    rejected: int
    reused: dict[str, int] = field(default_factory=dict)
    """Accepted answers that are not generated, by the imported corpus that they come from."""

    @property
    def to_make(self) -> int:
        """Answers still to be made."""
        return sum(len(answers) for answers in self.conversations)

    def lines(self) -> list[str]:
        """For a person."""
        counts: dict[str, int] = {}
        for answers in self.conversations:
            counts[answers[0].category] = counts.get(answers[0].category, 0) + len(answers)
        lines = [
            f"{len(self.wanted):,} answers wanted: {self.accepted:,} accepted, {self.rejected:,} rejected, "
            f"{self.to_make:,} to make"
        ]
        lines += [f"  {rows:,} of the accepted are from the import {name}" for name, rows in self.reused.items()]
        return lines + [f"  {category:<14}{rows:>10,}" for category, rows in sorted(counts.items())]


def plan_generation(
    manifest: Manifest,
    target: dict[str, Any],
    build_id: str,
    prompts: pl.DataFrame,
    done: Mapping[str, str],
    limit: int | None = None,
    imported: Mapping[str, Sequence[ImportedConversation]] | None = None,
) -> GenerationPlan:
    """Wanted answers of a build's prompts less those that are done.

    Args:
        target: the resolved target's identity.
        prompts: prompt_id, replica, category, source, holdout, source_rank, turns.
        done: response_id to its state, accepted or rejected.
        limit: most prompts with something to do, category shares kept.
        imported: by prompt_id, conversations that replicas take in their order; not where a prompt is held out.
    """
    recipes: dict[tuple[str, bool], Recipe] = {}
    for category in manifest.mix.shares:
        for thinking in (False, True):
            recipes[category, thinking] = make_recipe(manifest, target, category, thinking)
    wanted: list[Answer] = []
    conversations = []
    accepted = rejected = 0
    reused: dict[str, int] = {}
    thinks = _thinking(manifest, prompts)
    columns = ("prompt_id", "replica", "category", "source", "holdout", "turns")
    for row, thinking in zip(prompts.select(columns).iter_rows(), thinks, strict=True):
        prompt_id, replica, category, source, holdout, turns = row
        recipe = recipes[category, thinking]
        adopted = conversation_for(imported, prompt_id, replica, holdout)
        if adopted is not None:
            wanted += (
                Answer(response_id, prompt_id, adopted.recipe_id, replica, turn, category, source, holdout)
                for turn, response_id in enumerate(adopted.response_ids)
            )
            accepted += len(adopted.response_ids)
            reused[adopted.imported_from] = reused.get(adopted.imported_from, 0) + len(adopted.response_ids)
            continue
        answers = tuple(
            Answer(
                identity.response_id(prompt_id, recipe.recipe_id, replica, turn),
                prompt_id, recipe.recipe_id, replica, turn, category, source, holdout,
            )
            for turn in range(turns)
        )  # fmt: skip
        wanted += answers
        states = [done.get(answer.response_id) for answer in answers]
        left = tuple(answer for answer, state in zip(answers, states, strict=True) if state is None)
        accepted += states.count("accepted")
        if "rejected" in states:
            rejected += len(left) + states.count("rejected")  # what follows a rejected turn is never asked
        elif left:
            conversations.append(left)
    kept = conversations if limit is None else _limited(conversations, limit)
    return GenerationPlan(
        build_id,
        {recipe.recipe_id: recipe for recipe in recipes.values()},
        tuple(wanted),
        tuple(kept),
        accepted,
        rejected,
        reused,
    )


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
        own.truncated or manifest.generation.truncated,
    )


def _thinking(manifest: Manifest, prompts: pl.DataFrame) -> list[bool]:
    ids, categories = prompts["prompt_id"].to_list(), prompts["category"].to_list()
    shares = {c: manifest.generation.for_category(c).thinking_share or 0.0 for c in manifest.mix.shares}
    position: Any = selection.spread(ids, selection.THINKING_SALT) / 2.0**64 if ids else []
    return [bool(at < shares[category]) for at, category in zip(position, categories, strict=True)]


def _limited(conversations: list[tuple[Answer, ...]], limit: int) -> list[tuple[Answer, ...]]:
    """The first `limit` conversations when categories take turns in proportion to what each has to do."""
    totals: dict[str, int] = {}
    ranks = []
    for answers in conversations:
        category = answers[0].category
        ranks.append(totals.get(category, 0))
        totals[category] = ranks[-1] + 1
    order = sorted(
        range(len(conversations)),
        key=lambda i: ((ranks[i] + 0.5) / totals[conversations[i][0].category], conversations[i][0].category),
    )
    return [conversations[i] for i in sorted(order[:limit])]
