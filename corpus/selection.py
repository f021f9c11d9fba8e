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

from corpus.manifest import CategoryByColumn, Filters, Source

if TYPE_CHECKING:
    import numpy.typing as npt
    import polars as pl

HOLDOUT_SALT = 0x686F6C646F7574
THINKING_SALT = 0x7468696E6B
MASK = (1 << 64) - 1


def spread(ids: list[str], seed: int) -> npt.NDArray[np.uint64]:
    """A 64-bit number for each hex id, uniform, fixed by the seed (splitmix64 of its first 64 bits)."""
    words = np.array([int(i[:16], 16) for i in ids], dtype=np.uint64)
    return _splitmix(words ^ _splitmix(np.array([seed & MASK], dtype=np.uint64)))


def chosen(ids: list[str], share: float, salt: int) -> npt.NDArray[np.bool_]:
    """True for `share` of all possible ids, the same ones whatever the build."""
    return spread(ids, salt).astype(np.float64) / 2.0**64 < share


def label_rows(pool: pl.DataFrame, source: Source, categories: list[str]) -> pl.DataFrame:
    """Add category, and a reason to rows that no share wants (no_category, not_in_mix)."""
    import polars as pl

    if isinstance(source.category, CategoryByColumn):
        rule = source.category
        category = pl.col("upstream_label").replace_strict(rule.map, default=rule.default, return_dtype=pl.String)
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
    detail = pl.when(reason.is_in(["no_category", "not_in_mix"])).then(pl.col("upstream_label"))
    return named.with_columns(reason=reason, detail=pl.coalesce("detail", detail))


def filter_rows(rows: pl.DataFrame, filters: Filters) -> pl.DataFrame:
    """Give a reason to rows outside the filters' ranges (prompt_tokens only where the column is there)."""
    import polars as pl

    for field in ("prompt_chars", "turns", "prompt_tokens"):
        low, high = filters.bounds(field)
        if field not in rows.columns:
            continue
        value = pl.col(field)
        few = pl.lit(f"too_few_{field.removeprefix('prompt_')}")
        many = pl.lit(f"too_many_{field.removeprefix('prompt_')}")
        out = pl.when(value < low).then(few).when(value > (high if high is not None else value)).then(many)
        unjudged = pl.col("reason").is_null()
        found = pl.when(unjudged).then(out)
        rows = rows.with_columns(
            reason=pl.coalesce("reason", found),
            detail=pl.coalesce("detail", pl.when(found.is_not_null()).then(value.cast(pl.String))),
        )
    return rows


def rank_rows(rows: pl.DataFrame, seed: int, holdout: float) -> pl.DataFrame:
    """Add `order` (seeded hash of the id) and `holdout` to rows that hold a prompt."""
    import polars as pl

    ids = rows["prompt_id"].to_list()
    return rows.with_columns(
        order=pl.Series(spread(ids, seed), dtype=pl.UInt64),
        holdout=pl.Series(chosen(ids, holdout, HOLDOUT_SALT), dtype=pl.Boolean),
    )


def deduplicate(rows: pl.DataFrame, exact: bool) -> tuple[pl.DataFrame, pl.DataFrame]:
    """(kept, lost): one row of each likeness stays, by priority, source name, chunk and order.

    Without `exact` only equal prompt_ids meet. Lost rows name the winner (same_prompt, duplicate).
    """
    import polars as pl

    key = "likeness" if exact else "prompt_id"
    keys = ["priority", "source", "chunk", "order", "file", "row_index"]
    ordered = rows.sort(keys, descending=[True, False, False, False, False, False])
    first = ordered.unique(key, keep="first", maintain_order=True)
    winners = first.select(key, winner_prompt_id="prompt_id", winner_source="source")
    identity = ["pool_id", "source", "chunk", "row_index"]
    lost = ordered.join(first.select(identity), on=identity, how="anti", maintain_order="left").join(
        winners, on=key, how="left", maintain_order="left"
    )
    same = pl.col("prompt_id") == pl.col("winner_prompt_id")
    reason = pl.when(same).then(pl.lit("same_prompt")).otherwise(pl.lit("duplicate"))
    return first, lost.with_columns(reason=reason)


def nested_order(kept: pl.DataFrame) -> pl.DataFrame:
    """Candidates in their final order with source_rank, counted within category, source and holdout."""
    import polars as pl

    group = ["category", "source", "holdout"]
    ordered = kept.sort([*group, "chunk", "order", "prompt_id"])
    return ordered.with_columns(source_rank=pl.int_range(pl.len(), dtype=pl.Int64).over(group))


@dataclass(frozen=True)
class Quotas:
    """How many rows each category gets. `total` is what was asked, or what rescaling left of it."""

    total: int
    rows: dict[str, int]
    short: dict[str, int]

    @property
    def rescaled(self) -> bool:
        """True if shares hold at a smaller total."""
        return sum(self.rows.values()) < self.total


def largest_remainder(total: int, shares: Mapping[str, float]) -> dict[str, int]:
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


def plan_quotas(total: int, shares: Mapping[str, float], available: Mapping[str, int], rescale: bool) -> Quotas:
    """Rows by category, and what is missing by category (empty if nothing is).

    With `rescale` the total shrinks to the largest at which every category has enough.
    """
    rows = largest_remainder(total, shares)
    short = {name: want - available.get(name, 0) for name, want in rows.items() if want > available.get(name, 0)}
    if not short or not rescale:
        return Quotas(total, rows, short)
    low, high = 0, total
    while low < high:  # feasibility is monotone up to rounding; the check below makes it exact
        middle = (low + high + 1) // 2
        tried = largest_remainder(middle, shares)
        if all(tried[name] <= available.get(name, 0) for name in tried):
            low = middle
        else:
            high = middle - 1
    return Quotas(total, largest_remainder(low, shares), {})


def split_quota(quota: int, available: Mapping[str, int], weights: Mapping[str, float]) -> dict[str, int]:
    """A category's quota over its sources: prefix lengths that sum to min(quota, all that there is)."""
    names = sorted(name for name in available if available[name] > 0)
    if not names:
        return {}
    ranks = [np.arange(min(available[name], quota), dtype=np.float64) for name in names]
    with np.errstate(over="ignore"):  # beyond all numbers is last, as it should be
        keys = np.concatenate([(rank + 0.5) / weights[name] for name, rank in zip(names, ranks, strict=True)])
    owner = np.repeat(np.arange(len(names)), [len(rank) for rank in ranks])
    taken = owner[np.lexsort((owner, keys))[:quota]]
    return {name: int(count) for name, count in zip(names, np.bincount(taken, minlength=len(names)), strict=True)}


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
