"""Which prompts are candidates, in what order, and how many of each: pure functions over frames and integers.

A source's prompts are ranked by (chunk, seeded hash of the id); reading more never reorders, and a quota takes a
prefix. A category's quota goes to its sources by Webster's method: the r-th prompt of a source with weight w has
the key (r + 1/2) / w, and the smallest keys are taken. A larger quota therefore takes a superset, a source that
runs dry leaves its part to the others, and no order of sources in the file can matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from corpus.language import UNDETERMINED
from corpus.manifest import CategoryByColumn, Filters, Source

if TYPE_CHECKING:
    import numpy.typing as npt
    import polars as pl

HOLDOUT_SALT = 0x686F6C646F7574
THINKING_SALT = 0x7468696E6B
MASK = (1 << 64) - 1
GROUP = ("category", "source", "holdout")
GroupKey = tuple[str, str, bool]
"""One group: a value for each of GROUP."""
"""What a group of candidates has in common: a build takes a prefix of each."""


def first_words(ids: list[str]) -> npt.NDArray[np.uint64]:
    """The first 64 bits of hex ids."""
    return np.frombuffer(bytes.fromhex("".join([i[:16] for i in ids])), dtype=">u8").astype(np.uint64)


def spread(ids: list[str], seed: int) -> npt.NDArray[np.uint64]:
    """A 64-bit number for each hex id, uniform, fixed by the seed (splitmix64 of its first 64 bits)."""
    return _spread(first_words(ids), seed)


def _spread(words: npt.NDArray[np.uint64], seed: int) -> npt.NDArray[np.uint64]:
    return _splitmix(words ^ _splitmix(np.array([seed & MASK], dtype=np.uint64)))


def chosen(ids: list[str], share: float, salt: int) -> npt.NDArray[np.bool_]:
    """True for `share` of all possible ids, the same ones whatever the build."""
    return spread(ids, salt).astype(np.float64) / 2.0**64 < share


def label_rows(pool: pl.DataFrame, source: Source, categories: list[str]) -> pl.DataFrame:
    """Add category, source and priority, and a reason to rows that no share wants (no_category, not_in_mix).

    Of a source that is classified, upstream_label is the classifier's category.
    """
    import polars as pl

    if isinstance(source.category, CategoryByColumn):
        rule = source.category
        category = pl.col("upstream_label").replace_strict(rule.map, default=rule.default, return_dtype=pl.String)
    elif source.category == "classify":
        category = pl.col("upstream_label")
    else:
        category = pl.lit(source.category, pl.String)
    named = pool.with_columns(category=category, source=pl.lit(source.name), priority=pl.lit(source.priority, pl.Int64))
    reason = (
        pl.when(pl.col("reason").is_not_null())
        .then(pl.col("reason"))
        .when(pl.col("category").is_null())
        .then(pl.lit("no_category"))
        .when(~pl.col("category").is_in(categories))
        .then(pl.lit("not_in_mix"))
    )
    label = pl.col("upstream_label")
    mapped = pl.concat_str([label, pl.col("category")], separator=" -> ", ignore_nulls=True)
    detail = pl.when(reason == "no_category").then(label).when(reason == "not_in_mix").then(mapped)
    return named.with_columns(reason=reason, detail=pl.coalesce("detail", detail))


def filter_rows(rows: pl.DataFrame, filters: Filters) -> pl.DataFrame:
    """Give a reason to rows that the filters leave out (each filter only where its column is there)."""
    import polars as pl

    for field in ("prompt_chars", "turns", "prompt_tokens"):
        low, high = filters.bounds(field)
        if field in rows.columns:
            value = pl.col(field)
            few = pl.lit(f"too_few_{field.removeprefix('prompt_')}")
            many = pl.lit(f"too_many_{field.removeprefix('prompt_')}")
            out = pl.when(value < low).then(few).when(value > (high if high is not None else value)).then(many)
            rows = _left_out(rows, out, value)
    if "letters" in rows.columns:
        letters = pl.col("letters")
        rows = _left_out(rows, pl.when(letters < filters.near_empty).then(pl.lit("near_empty")), letters)
    if filters.language and "language" in rows.columns:
        language = pl.col("language")
        other = ~language.is_in([*filters.language, UNDETERMINED])
        rows = _left_out(rows, pl.when(other).then(pl.lit("other_language")), language)
    return rows


def _left_out(rows: pl.DataFrame, reason: pl.Expr, value: pl.Expr) -> pl.DataFrame:
    """Rows with this reason where they have none, and the value that was judged."""
    import polars as pl

    found = pl.when(pl.col("reason").is_null()).then(reason)
    shown = pl.when(found.is_not_null()).then(value.cast(pl.String))
    return rows.with_columns(reason=pl.coalesce("reason", found), detail=pl.coalesce("detail", shown))


def rank_rows(rows: pl.DataFrame, seed: int, holdout: float) -> pl.DataFrame:
    """Add `order` (seeded hash of the id) and `holdout` to rows that hold a prompt.

    Held-out rows are ordered by the hash that holds them out: a larger holdout then holds out what a smaller one does,
    and more, and the seed does not move it.
    """
    import polars as pl

    words = first_words(rows["prompt_id"].to_list())
    place = _spread(words, HOLDOUT_SALT)
    held = place.astype(np.float64) / 2.0**64 < holdout
    order = np.where(held, place, _spread(words, seed))
    return rows.with_columns(order=pl.Series(order, dtype=pl.UInt64), holdout=pl.Series(held, dtype=pl.Boolean))


def best_first(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows in the order in which they win: by priority, source name, chunk, order, place in the chunk."""
    return rows.sort(["priority", "source", "chunk", "order", "at"], descending=[True, False, False, False, False])


def deduplicate(rows: pl.DataFrame, exact: bool) -> tuple[pl.DataFrame, pl.DataFrame]:
    """(kept, lost): of rows that are best first, the first of each likeness stays.

    Without `exact` only equal prompt_ids meet. Lost rows name the winner (same_prompt, duplicate).
    """
    import polars as pl

    key = "likeness" if exact else "prompt_id"
    first = pl.col(key).is_first_distinct()
    marked = rows.with_columns(__first=first)
    kept = marked.filter("__first").drop("__first")
    lost = marked.filter(~pl.col("__first")).drop("__first")
    winners = kept.select(key, winner_prompt_id="prompt_id", winner_source="source")
    named = lost.join(winners, on=key, how="left", maintain_order="left")
    same = pl.col("prompt_id") == pl.col("winner_prompt_id")
    reason = pl.when(same).then(pl.lit("same_prompt")).otherwise(pl.lit("duplicate"))
    return kept, named.with_columns(reason=reason, similarity=pl.lit(None, pl.Float64))


def nested_order(kept: pl.DataFrame) -> pl.DataFrame:
    """Candidates in their final order with source_rank, counted within category, source and holdout."""
    import polars as pl

    group = ["source", "category", "holdout"]
    ordered = kept.sort([*group, "chunk", "order", "prompt_id"])
    return ordered.with_columns(source_rank=pl.int_range(pl.len(), dtype=pl.Int64).over(group))


def numbered_replicas(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows with source_rank, prefix and available: those inside the prefix, once for each replica, numbered."""
    import polars as pl

    inside = rows.filter(pl.col("source_rank") < pl.col("prefix"))
    times = (inside["prefix"] - inside["source_rank"] + inside["available"] - 1) // inside["available"]
    return inside.with_columns(replica=pl.int_ranges(times).cast(pl.List(pl.Int32))).explode("replica")


@dataclass(frozen=True)
class Quotas:
    """How many rows each category gets, replicas included. `total` is what was asked, before rescaling."""

    total: int
    rows: dict[str, int]
    short: dict[str, int]

    @property
    def rescaled(self) -> bool:
        """True if shares hold at a smaller total."""
        return sum(self.rows.values()) < self.total


def largest_remainder(total: int, shares: Mapping[str, float | Fraction]) -> dict[str, int]:
    """Whole rows by category that sum to total exactly (Hamilton's method; ties by name)."""
    exact = {name: Fraction(weight) for name, weight in sorted(shares.items())}
    whole = sum(exact.values())
    quota = {name: total * weight / whole for name, weight in exact.items()}
    rows = {name: int(value) for name, value in quota.items()}
    left = total - sum(rows.values())
    by_remainder = sorted(rows, key=lambda name: (rows[name] - quota[name], name))
    for name in by_remainder[:left]:
        rows[name] += 1
    return rows


def plan_quotas(
    total: int,
    shares: Mapping[str, float | Fraction],
    available: Mapping[str, int],
    rescale: bool = False,
    repeats: int = 1,
) -> Quotas:
    """Rows by category, and what is missing by category (empty if nothing is).

    With `rescale` the total shrinks to the largest at which every category has enough; a prompt may be asked
    `repeats` times.
    """
    room = {name: count * repeats for name, count in available.items()}
    rows = largest_remainder(total, shares)
    short = {name: want - room.get(name, 0) for name, want in rows.items() if want > room.get(name, 0)}
    if not short or not rescale:
        return Quotas(total, rows, short)
    low, high = 0, total
    while low < high:  # feasibility is monotone up to rounding; the check below makes it exact
        middle = (low + high + 1) // 2
        tried = largest_remainder(middle, shares)
        if all(tried[name] <= room.get(name, 0) for name in tried):
            low = middle
        else:
            high = middle - 1
    return Quotas(total, largest_remainder(low, shares), {})


def split_quota(quota: int, available: Mapping[str, int], weights: Mapping[str, float]) -> dict[str, int]:
    """A category's quota over its sources: rows of each, that sum to the quota if there are any prompts at all.

    A quota beyond all that there is goes around again: every prompt is taken once more before one is taken thrice.
    """
    names = sorted(name for name in available if available[name] > 0)
    if not names:
        return {}
    rounds, rest = divmod(quota, sum(available[name] for name in names))
    ranks = [np.arange(min(available[name], rest), dtype=np.float64) for name in names]
    with np.errstate(over="ignore"):  # beyond all numbers is last, as it should be
        keys = np.concatenate([(rank + 0.5) / weights[name] for name, rank in zip(names, ranks, strict=True)])
    owner = np.repeat(np.arange(len(names)), [len(rank) for rank in ranks])
    taken = np.bincount(owner[np.lexsort((owner, keys))[:rest]], minlength=len(names))
    return {name: rounds * available[name] + int(count) for name, count in zip(names, taken, strict=True)}


def holdout_quota(rows: int, holdout: float) -> int:
    """Held-out rows beside `rows` of one category: at least one where there is a holdout at all."""
    return max(1, round(rows * holdout)) if holdout > 0 and rows > 0 else 0


def _splitmix(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        z = words + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        result: npt.NDArray[Any] = z ^ (z >> np.uint64(31))
    return result
