"""Whether the target's chat template hears that a prompt is to be answered with thinking.

A template that ignores enable_thinking shows the target the same prompt either way, and answers would be recorded as
thinking that nothing asked for. Looked at on the build's own prompts, the first of each category that thinks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from corpus.manifest import Manifest
from corpus.records import Message, Prompt, decode_prompt
from generation.plan import ROW, GenerationPlan

if TYPE_CHECKING:
    import polars as pl

ANY_PROMPT = Prompt(({"role": "user", "content": "What is a prime number?"},), ())
"""Where no prompt of a build is at hand."""


class Renders(Protocol):
    """What is asked of corpus.target.Renderer."""

    def text_or_none(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]], thinking: bool) -> str | None:
        """The prompt as text; None where the template refuses it."""


def thinking_categories(manifest: Manifest) -> list[str]:
    """Categories of which some prompts are to be answered with thinking."""
    return [category for category in manifest.mix.shares if manifest.generation.for_category(category).thinking_share]


def first_thinking(plan: GenerationPlan, prompts: pl.DataFrame, path: Path) -> dict[str, Prompt]:
    """The first wanted prompt with thinking of each category; `path` is the candidates' prompts.parquet."""
    import polars as pl

    thinking = [recipe.recipe_id for recipe in plan.recipes.values() if recipe.thinking]
    asked = plan.answers.filter(pl.col("recipe_id").is_in(thinking) & pl.col("imported_from").is_null())
    first = asked.unique("category", keep="first", maintain_order=True).select(*ROW, "category")
    places = first.join(prompts.select(*ROW, "row"), on=ROW, how="left", maintain_order="left")
    texts = pl.scan_parquet(path, glob=False).select("messages", "tools")
    return {
        category: decode_prompt(*texts.slice(row, 1).collect().row(0))
        for category, row in places.select("category", "row").iter_rows()
    }


def unheard_thinking(renderer: Renders, prompts: Mapping[str, Prompt]) -> list[str]:
    """Categories whose prompt is rendered the same with thinking on and off."""
    return [category for category, prompt in prompts.items() if _is_same(renderer, prompt)]


def thinking_warning(manifest: Manifest, unheard: Sequence[str]) -> list[str]:
    """A sentence for a person; nothing where every template hears."""
    if not unheard:
        return []
    asked = thinking_categories(manifest)
    where = "" if sorted(unheard) == sorted(asked) else f" of {', '.join(sorted(unheard))}"
    return [
        f"thinking is asked for (generation.thinking.share), but the target's chat template renders prompts{where} the "
        "same with and without it: answers would be recorded as thinking that nothing asked for. Name a template that "
        "heeds enable_thinking in target.chat_template, or set the share to 0."
    ]


def _is_same(renderer: Renders, prompt: Prompt) -> bool:
    messages = _first_turn(prompt.messages)
    off, on = (renderer.text_or_none(messages, prompt.tools, thinking) for thinking in (False, True))
    return off is not None and off == on


def _first_turn(messages: Sequence[Message]) -> Sequence[Message]:
    """Up to the first user message."""
    ends = [at for at, message in enumerate(messages, 1) if message["role"] == "user"]
    return messages[: ends[0]] if ends else messages
