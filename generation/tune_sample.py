"""The prompts that engines are measured on: a build's own, in nested order, category shares kept.

Rendered and tokenised as generation does it, once, before any engine starts; which of them are answered already is not
looked at. Of a conversation the first answer is asked, over a recorded history each one. Budgets are capped, so that a
measurement ends soon. Reads the build's files and what lengths the ledger has measured; writes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from corpus.building import BuildPlan
from corpus.errors import RowError
from corpus.ledger.writer import Readable
from corpus.manifest import Manifest
from corpus.target import Renderer, ResolvedTarget
from corpus.token_ids import pack_ids
from generation.conversation import Conversation
from generation.judge import budget
from generation.plan import GenerationPlan, done_schema, plan_generation
from generation.stage import load_feed, load_prompts


@dataclass(frozen=True)
class Ask:
    """One answer to be asked for."""

    prompt_token_ids: bytes
    """pack_ids"""
    sampling: dict[str, float]
    max_tokens: int


@dataclass(frozen=True)
class Sample:
    """Distinct prompts, whose every beginning has about the build's shares."""

    asks: tuple[Ask, ...]
    left_out: int
    """Prompts that the template refuses, or that leave no room for an answer."""


def load_sample(
    manifest: Manifest,
    target: ResolvedTarget,
    renderer: Renderer,
    build: BuildPlan,
    ledger: Readable,
    count: int,
    max_tokens: int,
) -> Sample:
    """At most `count` prompts of a build, rendered; answers are cut at `max_tokens`."""
    import polars as pl

    prompts = load_prompts(build, ledger)
    nothing = pl.DataFrame(schema=done_schema())
    plan = plan_generation(manifest, target.identity(), build.build_id, prompts, nothing, count)
    feed = load_feed(plan, prompts, build, ledger)
    conversations: list[Conversation] = []
    while len(feed):
        feed.read()
        conversations += feed.take(len(feed))
    places = {response_id: place for place, response_id in enumerate(plan.left["response_id"])}
    conversations.sort(key=lambda one: places[one.answers[0].response_id])
    order = taking_turns([one.category for one in conversations])
    return rendered(
        [conversations[i] for i in order][:count], plan, manifest.target.max_model_len, renderer, max_tokens
    )


def rendered(
    conversations: Sequence[Conversation], plan: GenerationPlan, max_model_len: int, renderer: Renderer, max_tokens: int
) -> Sample:
    """The next answer of each conversation, as it would be asked for."""
    recipes = [plan.recipes[one.answers[0].recipe_id] for one in conversations]
    texts: list[str] = []
    whose = []
    for one, recipe in zip(conversations, recipes, strict=True):
        try:
            texts.append(renderer.text(one.context(), one.prompt.tools, recipe.thinking))
        except RowError:
            continue
        whose.append(recipe)
    asks = []
    for recipe, ids in zip(whose, renderer.encode(texts), strict=True):
        room = budget(len(ids), min(max_tokens, recipe.max_tokens), max_model_len)
        if ids and room > 0:
            asks.append(Ask(pack_ids(ids), recipe.sampling, room))
    return Sample(tuple(asks), len(conversations) - len(asks))


def taking_turns(categories: Sequence[str]) -> list[int]:
    """An order of rows in which categories take turns in proportion to their number, each in its own order."""
    totals, seen = Counter(categories), Counter[str]()
    ranked = []
    for i, category in enumerate(categories):
        ranked.append(((seen[category] + 0.5) / totals[category], category, i))
        seen[category] += 1
    return [i for _, _, i in sorted(ranked)]
