"""How long an answer will be: as the answers that the ledger has, else by a stated assumption. Pure.

`plan` and `diff` both ask here, so the same work has the same number in both. Best first: answers under the very
recipe, the manifest's own word, answers of the target under another recipe, those of another model, an assumption.
Answers with thinking and without are counted apart; where the ledger has the plain ones alone, the thought is assumed.
An answer that was cut under another recipe tells only that it is longer: it counts as max_tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from draftmill.amounts import Amount

if TYPE_CHECKING:
    import polars as pl

    from corpus.ledger.query import LedgerReader

BASES = ("none", "measured", "category", "assumed", "max_tokens")
"""What expected tokens rest on, best first: nothing to make, answers under the recipe itself, answers of the category
under others, an assumption, no measurement at all (an upper bound)."""
RESPONSE_TOKENS = Amount.of(500.0, 250.0, 1200.0, "assumed", "500 response tokens an answer (250 to 1,200)")
THOUGHT_TOKENS = Amount.of(2200.0, 1000.0, 5600.0, "assumed", "2,200 tokens of thought before it (1,000 to 5,600)")
"""Means of reasoning models on problems from easy to hard: docs/hardware.md says whose."""
FEW = 30
"""Answers below which a mean is hardly one: its range is widened by half."""
FEW_CUT = 0.05
"""Part of another model's answers that may have been cut, and they still tell."""
TOLD = ("category", "recipe_id", "model", "thinking", "tokens", "cut", "answers")
"""Accepted answers: how many there are of each length; thinking is null where an import does not tell."""


@dataclass(frozen=True)
class Asked:
    """Answers of one category that one recipe makes."""

    category: str
    thinking: bool
    max_tokens: int
    model: str
    recipe_ids: frozenset[str]
    """The recipe; all that it may be where the target's files are not at hand."""
    declared: float | None = None
    """Tokens of an answer by mix.mean_response_tokens."""


@dataclass(frozen=True)
class Length:
    """Of one such answer."""

    tokens: Amount
    basis: str
    """One of BASES."""
    counted: int = 0
    """Answers under the recipe itself."""


def read_told(ledger: LedgerReader) -> pl.DataFrame:
    """Accepted answers over all builds, counted: columns as TOLD."""
    return ledger.frame(
        "SELECT b.category, r.recipe_id, c.model, c.thinking, r.response_tokens AS tokens, "
        "coalesce(r.finish_reason = 'length', false) AS cut, count(*) AS answers "
        "FROM accepted_responses r JOIN (SELECT DISTINCT response_id, category FROM build_responses) b "
        "USING (response_id) LEFT JOIN recipes c ON c.recipe_id = r.recipe_id "
        "WHERE r.response_tokens IS NOT NULL GROUP BY ALL"  # of an import they may not be known
    )


def expected_length(told: pl.DataFrame, asked: Asked) -> Length:
    """Tokens of a mean answer, never more than max_tokens. `told`: columns as TOLD."""
    import polars as pl

    of = told.filter(pl.col("category") == asked.category)
    same = _mean(of.filter(pl.col("recipe_id").is_in(list(asked.recipe_ids))), None)
    if same is not None:
        return Length(_at_most(same.measured(), asked), "measured", same.answers)
    if asked.declared is not None:
        known = Amount.of(1.0, 0.7, 1.4, "assumed", "mix.mean_response_tokens").times(asked.declared)
        return Length(_at_most(known, asked), "assumed")
    alike = pl.col("thinking").fill_null(asked.thinking) == asked.thinking
    own = pl.col("model") == asked.model
    mean = _mean(of.filter(own & alike), asked.max_tokens)
    if mean is not None:
        return Length(_at_most(mean.spread(0.7, 1.4, "answers of this target here under another recipe"), asked),
                      "category")  # fmt: skip
    mean = _mean(of.filter(own.not_() & alike), asked.max_tokens)
    if mean is not None and mean.part_cut <= FEW_CUT:
        names = sorted(set(of.filter(own.not_() & alike)["model"].drop_nulls()))
        return Length(_at_most(mean.spread(0.5, 2.0, f"as answers of {names[0] if names else 'others'} here, halved to "
                                                     "doubled"), asked), "category")  # fmt: skip
    supposed = RESPONSE_TOKENS
    other = _mean(of.filter(own & alike.not_()), asked.max_tokens)
    if other is not None and asked.thinking:
        supposed = other.spread(0.7, 1.4, "answers of this target here without thinking")
    elif other is not None:
        supposed = supposed.within(0.0, other.long)
    supposed = _at_most(supposed + THOUGHT_TOKENS if asked.thinking else supposed, asked)
    return Length(supposed, "max_tokens" if supposed.low >= asked.max_tokens else "assumed")


def expected_lengths(told: pl.DataFrame, asked: Iterable[Asked]) -> pl.DataFrame:
    """Of many, each of one recipe: category, recipe_id, max_tokens, each (tokens), basis (a place in BASES), source."""
    import polars as pl

    rows = []
    for one in asked:
        (recipe_id,) = one.recipe_ids
        length = expected_length(told, one)
        said = "; ".join(source for sure, source in length.tokens.sources if sure == "assumed")
        rows.append((one.category, recipe_id, one.max_tokens, length.tokens.value, BASES.index(length.basis), said))
    schema: dict[str, Any] = {
        "category": pl.String, "recipe_id": pl.String, "max_tokens": pl.Int64, "each": pl.Float64, "basis": pl.Int32,
        "source": pl.String,
    }  # fmt: skip
    return pl.DataFrame(rows, schema=schema, orient="row")


@dataclass(frozen=True)
class _Mean:
    """Of some answers, all of them cut to max_tokens."""

    answers: int
    short: float
    """Cut ones as they are."""
    long: float
    """Cut ones as max_tokens."""
    deviation: float
    part_cut: float

    def measured(self) -> Amount:
        """With its 95% range over the answers; of a few answers wider."""
        spread = self.deviation if self.answers > 1 else self.long * 0.5
        half = 1.96 * spread / self.answers**0.5 * (1.5 if self.answers < FEW else 1.0)
        low = min(self.long, max(1.0, self.long - half))
        return Amount.of(self.long, low, self.long + half, "measured", "answers of this ledger under the same recipe")

    def spread(self, least: float, most: float, source: str) -> Amount:
        """As an assumption: cut ones anywhere from as they are to max_tokens."""
        told = f"{source}; those that were cut count as max_tokens" if self.part_cut else source
        return Amount.of(self.long, self.short * least, self.long * most, "assumed", told)


def _mean(told: pl.DataFrame, most: int | None) -> _Mean | None:
    """Without `most` cut answers count as they are."""
    import polars as pl

    if not told.height:
        return None
    tokens, weight = pl.col("tokens").cast(pl.Float64), pl.col("answers") / pl.col("answers").sum()
    limit = float("inf") if most is None else float(most)
    short = pl.min_horizontal(tokens, pl.lit(limit))
    cut = pl.col("cut") & (tokens < limit) & (most is not None)
    long = pl.when(cut).then(limit).otherwise(short)
    answers, low, high, square, part = told.select(
        pl.col("answers").sum(), (short * weight).sum().alias("low"), (long * weight).sum().alias("high"),
        (long * long * weight).sum().alias("square"), (cut * weight).sum().alias("part"),
    ).row(0)  # fmt: skip
    sample = answers / (answers - 1) if answers > 1 else 1.0
    return _Mean(answers, low, high, max(0.0, (square - high * high) * sample) ** 0.5, part)


def _at_most(tokens: Amount, asked: Asked) -> Amount:
    return tokens.within(0.0, float(asked.max_tokens))
