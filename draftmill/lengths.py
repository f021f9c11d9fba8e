"""How long prompts and answers of each category are: as the ledger has them, else a stated assumption.

A mean is measured where the target itself wrote the answers, and hardly any was cut shorter than the manifest lets
them become; answers that were cut tell only that they are longer. What another model wrote is an assumption.
"""

from __future__ import annotations

from dataclasses import dataclass

from corpus.ledger.query import LedgerReader
from corpus.manifest import Manifest
from draftmill.amounts import Amount

TURNS = Amount.of(1.0, 1.0, 2.0, "assumed", "one answer a prompt (nothing built yet)")
PROMPT_TOKENS = Amount.of(250.0, 100.0, 600.0, "assumed", "250 prompt tokens an answer (100 to 600)")
RESPONSE_TOKENS = Amount.of(500.0, 250.0, 1200.0, "assumed", "500 response tokens an answer (250 to 1,200)")
FEW = 30
"""Answers of a category below which a mean is hardly one: its range is widened by half."""
FEW_CUT = 0.05
"""Part of the answers that may be cut shorter than the manifest allows, and their mean still tells."""


@dataclass(frozen=True)
class Lengths:
    """Of one category."""

    turns: Amount
    """Answers of a prompt."""
    prompt_tokens: Amount
    """Of an answer's prompt."""
    response_tokens: Amount
    counted: int
    """Answers that they are of; 0: response_tokens are assumed."""


def assumed(manifest: Manifest, category: str) -> Lengths:
    """Where nothing is known."""
    return Lengths(TURNS, PROMPT_TOKENS, _at_most(manifest, category, RESPONSE_TOKENS), 0)


def read_lengths(manifest: Manifest, ledger: LedgerReader) -> dict[str, Lengths]:
    """By category, those that the ledger knows something of."""
    most = {name: manifest.generation.for_category(name).max_tokens or 0 for name in manifest.mix.shares}
    answers = ledger.frame(
        """
        WITH allowed AS (
            SELECT unnest($1) AS category, unnest($2) AS most
        ), told AS (
            SELECT b.category, c.model = $3 AS own, c.model, r.prompt_tokens, least(r.response_tokens, most) AS short,
                   r.finish_reason = 'length' AND r.response_tokens < most AS cut, most
            FROM accepted_responses r
            JOIN (SELECT DISTINCT response_id, category FROM build_responses) b USING (response_id)
            JOIN recipes c USING (recipe_id) JOIN allowed USING (category)
            WHERE r.response_tokens IS NOT NULL
        ), used AS (  -- the target's own answers, or those of others where it has none
            SELECT * FROM told QUALIFY own = max(own) OVER (PARTITION BY category)
        )
        SELECT category, bool_and(own) AS own, min(model) AS model, count(*) AS n, avg(cut::INTEGER) AS cut,
               avg(prompt_tokens) AS prompt, stddev_samp(prompt_tokens) AS prompt_sd, avg(short) AS short,
               avg(CASE WHEN cut THEN most ELSE short END) AS long, stddev_samp(short) AS short_sd
        FROM used GROUP BY category
        """,
        list(most),
        list(most.values()),
        manifest.target.model,
    )
    prompts = ledger.frame(
        "SELECT category, count(*) AS n, avg(turns) AS turns, avg(prompt_tokens) AS prompt, "
        "stddev_samp(prompt_tokens) AS prompt_sd FROM prompts WHERE list_contains(?, category) GROUP BY category",
        list(most),
    )
    found: dict[str, Lengths] = {}
    for row in prompts.iter_rows(named=True):
        source = "prompts of this ledger, by category"
        mean = float(row["turns"] or 1.0)
        turns = TURNS if row["turns"] is None else Amount.of(mean, mean, mean, "measured", source)
        prompt = PROMPT_TOKENS if row["prompt"] is None else _mean(row["prompt"], row["prompt_sd"], row["n"], source)
        found[row["category"]] = Lengths(turns, prompt, _at_most(manifest, row["category"], RESPONSE_TOKENS), 0)
    for row in answers.iter_rows(named=True):
        category, source = row["category"], "answers of this ledger, by category"
        known = found.get(category, assumed(manifest, category))
        prompt = _mean(row["prompt"], row["prompt_sd"], row["n"], source) if row["prompt"] else known.prompt_tokens
        own = bool(row["own"])
        others = None if own else _others(row["short"], row["model"], row["cut"])
        response = _own(row["short"], row["long"], row["short_sd"], row["n"], row["cut"]) if own else others
        given = known.response_tokens if response is None else _at_most(manifest, category, response)
        found[category] = Lengths(known.turns, prompt, given, row["n"] if own else 0)
    return found


def _own(short: float, long: float, deviation: float | None, count: int, cut: float) -> Amount:
    """What the target's own answers say; `short` counts cut ones as they are, `long` as max_tokens."""
    if cut <= FEW_CUT:
        return _mean(long, deviation, count, "answers of this ledger, by category")
    said = f"{cut:.0%} of a category's answers here were cut shorter than max_tokens: from there up to it"
    return Amount.of((short * long) ** 0.5, short, long, "assumed", said)


def _others(short: float, model: str, cut: float) -> Amount | None:
    """What another model's answers say; nothing where they were cut."""
    if cut > FEW_CUT:
        return None
    return Amount.of(short, short / 2, short * 2, "assumed", f"as long as answers of {model} here, halved to doubled")


def _at_most(manifest: Manifest, category: str, tokens: Amount) -> Amount:
    """No answer is longer than max_tokens."""
    most = manifest.generation.for_category(category).max_tokens
    return tokens.within(0.0, float(most or tokens.high))


def _mean(mean: float, deviation: float | None, count: int, source: str) -> Amount:
    """A mean with its 95% range over the rows; of a few rows wider."""
    half = 1.96 * (deviation or mean * 0.5) / count**0.5 * (1.5 if count < FEW else 1.0)
    return Amount.of(float(mean), max(1.0, mean - half), float(mean + half), "measured", source)
