"""How long prompts and answers of each category are, as `draftmill plan` reckons with them.

A mean is measured where the answers were made under the manifest's own recipe. Whatever else the ledger has, and what
is assumed where it has nothing, is an assumption with its range (answer_lengths).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from corpus.ledger.query import LedgerReader
from corpus.manifest import Manifest
from draftmill.amounts import Amount, total
from draftmill.answer_lengths import FEW, RESPONSE_TOKENS, Asked, Length, expected_length, read_told
from generation.plan import make_recipe

__all__ = ["PROMPT_TOKENS", "RESPONSE_TOKENS", "TURNS", "Lengths", "read_lengths"]

TURNS = Amount.of(1.0, 1.0, 2.0, "assumed", "one answer a prompt (nothing built yet)")
PROMPT_TOKENS = Amount.of(250.0, 100.0, 600.0, "assumed", "250 prompt tokens an answer (100 to 600)")


@dataclass(frozen=True)
class Lengths:
    """Of one category."""

    turns: Amount
    """Answers of a prompt."""
    prompt_tokens: Amount
    """Of an answer's prompt."""
    answers: Mapping[bool, Length]
    """With thinking and without."""
    thinking_share: float

    def response_tokens_at(self, thinking_share: float) -> Amount:
        """Of a mean answer, where so large a part of them thinks."""
        parts = {True: thinking_share, False: 1.0 - thinking_share}
        return total(self.answers[thinking].tokens.times(part) for thinking, part in parts.items() if part > 0)

    @property
    def response_tokens(self) -> Amount:
        """Of a mean answer."""
        return self.response_tokens_at(self.thinking_share)

    @property
    def counted(self) -> int:
        """Answers under the same recipe that response_tokens are of; 0: all of them are assumed."""
        in_use = {True: self.thinking_share > 0, False: self.thinking_share < 1}
        return sum(self.answers[thinking].counted for thinking, used in in_use.items() if used)


def read_lengths(
    manifest: Manifest, ledger: LedgerReader, target: Mapping[str, Any] | None = None
) -> dict[str, Lengths]:
    """By category of the mix. `target`: its identity, where its files are at hand."""
    model = manifest.target.model
    told = read_told(ledger)
    recipes = ledger.rows("SELECT recipe_id, body FROM recipes WHERE model = ?", model)
    known = {recipe_id: json.loads(body) for recipe_id, body in recipes}
    prompts = _prompts(ledger, list(manifest.mix.shares), model)
    found = {}
    for category in manifest.mix.shares:
        turns, prompt_tokens = prompts.get(category, (TURNS, PROMPT_TOKENS))
        own = manifest.generation.for_category(category)
        brought = manifest.mix.mean_response_tokens.get(category)
        declared = None if brought is None else brought / turns.value
        answers = {}
        for thinking in (False, True):
            recipe = make_recipe(manifest, dict(target or {"model": model}), category, thinking)
            body = json.loads(json.dumps(recipe.body))
            same = frozenset(recipe_id for recipe_id, made in known.items() if _is_of(made, body))
            asked = Asked(category, thinking, recipe.max_tokens, model, same, declared)
            answers[thinking] = expected_length(told, asked)
        found[category] = Lengths(turns, prompt_tokens, answers, own.thinking_share or 0.0)
    return found


def _is_of(made: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """True if an answer's recipe is this one, as far as this one knows its target."""
    told = {key: made["target"].get(key) for key in wanted["target"]}
    return {**made, "target": told} == wanted


def _prompts(ledger: LedgerReader, categories: list[str], model: str) -> dict[str, tuple[Amount, Amount]]:
    """Answers of a prompt, and tokens of an answer's prompt, by category."""
    counted = ledger.rows(
        "SELECT category, count(*), avg(turns), avg(prompt_tokens), stddev_samp(prompt_tokens) FROM prompts "
        "WHERE list_contains(?, category) GROUP BY category",
        categories,
    )
    asked = ledger.rows(
        "SELECT b.category, count(*), avg(r.prompt_tokens), stddev_samp(r.prompt_tokens) FROM accepted_responses r "
        "JOIN (SELECT DISTINCT response_id, category FROM build_responses) b USING (response_id) "
        "JOIN recipes c USING (recipe_id) WHERE c.model = ? AND list_contains(?, b.category) "
        "AND r.prompt_tokens IS NOT NULL GROUP BY b.category",
        model,
        categories,
    )
    found = {}
    for category, count, mean, tokens, deviation in counted:
        turns = TURNS if mean is None else Amount.of(mean, mean, mean, "measured", "prompts of this ledger")
        found[category] = (turns, PROMPT_TOKENS if tokens is None else _mean(tokens, deviation, count, "prompts"))
    for category, count, tokens, deviation in asked:
        turns, _ = found.get(category, (TURNS, PROMPT_TOKENS))
        found[category] = (turns, _mean(tokens, deviation, count, "answers"))
    return found


def _mean(mean: float, deviation: float | None, count: int, rows: str) -> Amount:
    """A mean with its 95% range over the rows; of a few rows wider."""
    half = 1.96 * (deviation or mean * 0.5) / count**0.5 * (1.5 if count < FEW else 1.0)
    low = max(1.0, mean - half)
    return Amount.of(float(mean), low, float(mean + half), "measured", f"{rows} of this ledger")
