"""The order of work: how long a conversation is expected to be, who shares its prefix, who is handed out first.

Pure and vectorised; knows no engine and no ledger. Longest expected first, so that what runs last is short and no
engine is left with a straggler. Rows that are shown the same long text first (system message and tools) stand next to
each other, so that an engine finds it in its prefix cache. Keys are for grouping within one process: never store
them, polars' hash differs between versions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

PRIOR_SHARE = 0.25
"""Part of a recipe's max_tokens that an answer is expected to have where nothing is measured. It places recipes among
each other only: in one recipe all rows have the same then, and run in their nested order."""
SHRINK = 32
"""Answers that the coarser estimate counts for. Answer lengths spread about as much as their mean (lognormal, sigma 1:
1.3 times it), so that a mean of 32 is known to a quarter."""
PREFIX_BYTES = 2_000
"""Least UTF-8 JSON of system message and tools that makes a group: about 500 tokens."""
GROUP_CAP = 1_024
"""Most rows that stand together. Eight engines share such a chunk in 128 rows each, for one prefill of the prefix
each, so that a longer one saves nothing more; and the cap bounds what a group does to the rest (`feed_order`)."""

_CONTENT = '[{"content":"'
_ROLE = '","role":"'
_SYSTEM = '","role":"system"'


def bucket_of(prompt_chars: pl.Series) -> pl.Series:
    """floor(log2(prompt_chars)) as Int32, 0 below 2 characters; SQL: floor(log2(greatest(prompt_chars, 1)))."""
    import numpy as np
    import polars as pl

    exponents = np.frexp(np.maximum(prompt_chars.to_numpy(), 1).astype(np.float64))[1]  # exact at powers of two
    return pl.Series("bucket", exponents.astype(np.int32) - 1, dtype=pl.Int32)


def expected_tokens(rows: pl.DataFrame, measured: pl.DataFrame, budgets: Mapping[str, int]) -> pl.Series:
    """Expected response tokens of what is left of each conversation, Float64, in the order of the rows.

    The mean of a turn, from the finest level to the coarsest: (category, recipe, bucket), (category, recipe),
    (recipe), PRIOR_SHARE of the recipe's budget. Each level with n answers of mean m is
    (n * m + SHRINK * coarser) / (n + SHRINK); the conversation's is that times its turns.

    Args:
        rows: category, recipe_id, prompt_chars, turns_left.
        measured: category, recipe_id, bucket (`bucket_of`), n, mean: accepted answers and their mean tokens.
        budgets: max_tokens by recipe_id.

    Raises:
        ValueError: a recipe without a budget, or a null in a column that is used.
    """
    import polars as pl

    rows = rows.select("category", "recipe_id", "prompt_chars", "turns_left")
    _refuse_nulls(rows)
    if missing := sorted(set(rows["recipe_id"].unique()) - set(budgets)):
        raise ValueError(f"recipe {missing[0]} has rows and no budget; budgets has {len(budgets)} recipes")
    known = measured.select(
        "category", "recipe_id", pl.col("bucket").cast(pl.Int32), "n", (pl.col("n") * pl.col("mean")).alias("sum")
    )
    levels = (["recipe_id"], ["category", "recipe_id"], ["category", "recipe_id", "bucket"])
    # one row a combination, not one a prompt: there are few
    kinds = rows.with_columns(bucket_of(rows["prompt_chars"])).select("category", "recipe_id", "bucket", "turns_left")
    turn = kinds.select(levels[-1]).unique()
    turn = turn.with_columns(
        turn["recipe_id"].replace_strict(dict(budgets), return_dtype=pl.Float64).alias("mean") * PRIOR_SHARE
    )
    for level in levels:
        sums = known.group_by(level).agg(pl.col("n").sum(), pl.col("sum").sum())
        turn = (
            turn.join(sums, on=level, how="left")
            .with_columns((pl.col("sum").fill_null(0) + SHRINK * pl.col("mean")) / (pl.col("n").fill_null(0) + SHRINK))
            .select(*levels[-1], pl.col("sum").alias("mean"))
        )
    found = kinds.join(turn, on=levels[-1], how="left", maintain_order="left")
    return (found["mean"] * found["turns_left"]).alias("expected_tokens")


def prefix_keys(messages: pl.Series, tools: pl.Series) -> pl.Series:
    """Which rows are shown the same long text first: UInt64, equal for those, null for a row with none.

    The text is the leading system message and the tools. It is cut out of the canonical JSON: keys are sorted, so
    content stands before role, and the first `","role":"` is the end of the first message's content, for a quotation
    mark inside a string has a backslash before it. What does not begin like that (a first message whose content is
    null or a list) has no key. A chat template may show a part of it later; then less is shared.

    Args:
        messages: canonical JSON, as prompts.parquet has it.
        tools: the same, null where there are none.
    """
    import polars as pl

    frame = pl.DataFrame({"messages": messages.cast(pl.String), "tools": tools.cast(pl.String)})
    role = pl.col("messages").str.find(_ROLE, literal=True)
    first_is_system = role == pl.col("messages").str.find(_SYSTEM, literal=True)
    system_bytes = pl.when(first_is_system).then(role - len(_CONTENT)).otherwise(0).fill_null(0).cast(pl.Int64)
    long = (
        frame.lazy()
        .with_row_index("position")
        .filter(pl.col("messages").str.starts_with(_CONTENT))
        .with_columns(system_bytes.alias("system_bytes"))
        .filter(pl.col("system_bytes") + pl.col("tools").str.len_bytes().fill_null(0) >= PREFIX_BYTES)
        .select(
            "position",
            # find counts bytes, str.slice characters
            pl.col("messages").cast(pl.Binary).bin.slice(len(_CONTENT), pl.col("system_bytes")).alias("system"),
            "tools",
        )
        .select("position", (pl.col("system").hash(1) ^ pl.col("tools").hash(2)).alias("key"))
        .filter(pl.len().over("key") > 1)
        .collect()
    )
    keys = pl.select(pl.int_range(frame.height, dtype=pl.UInt32).alias("position")).join(
        long.with_columns(pl.col("position").cast(pl.UInt32)), on="position", how="left", maintain_order="left"
    )
    return keys["key"].alias("prefix_key")


def feed_order(rows: pl.DataFrame) -> pl.Series:
    """Positions of the rows, UInt32, in the order in which they are handed out.

    Without keys: longest expected first, equal ones in the order of the rows. The rows of one prefix_key are cut, by
    that order, into as few chunks of nearly equal size as GROUP_CAP allows. A chunk stands where its longest row
    would, its rows together and longest first. So:

    - after any row, no chunk begins with a longer row than the chunk that it is in began with: what can end a run
      late, a long row handed out late, does not come about;
    - a row is at most (other groups) * (GROUP_CAP - 1) places later than it would be without groups. Before it come
      shorter rows of those chunks only that begin before it and end after it, and a group has one such at most.

    A group without a cap would take its shortest rows along to where its longest is, and the run would lack them where
    short rows are wanted: at its end. A key that every row has changes nothing.

    Args:
        rows: expected_tokens (a number) and prefix_key (any type, null: alone).

    Raises:
        ValueError: expected_tokens has a null or is not finite.
    """
    import polars as pl

    _refuse_nulls(rows.select("expected_tokens"))
    if not rows["expected_tokens"].cast(pl.Float64).is_finite().all():
        raise ValueError("expected_tokens is not finite somewhere; every row needs a number of tokens")
    place = pl.int_range(pl.len(), dtype=pl.UInt32)
    size = pl.len().over("prefix_key").cast(pl.Int64)
    rank = pl.col("place").cum_count().over("prefix_key").cast(pl.Int64) - 1
    chunks = (size + GROUP_CAP - 1) // GROUP_CAP
    by_length = (
        rows.select("expected_tokens", "prefix_key")
        .with_columns(place.alias("position"))
        .sort("expected_tokens", "position", descending=[True, False])
        .with_columns(place.alias("place"))
    )
    grouped = (
        by_length.filter(pl.col("prefix_key").is_not_null())
        .with_columns((rank * chunks // size).alias("chunk"))
        .select("place", pl.col("place").min().over("prefix_key", "chunk").alias("head"))
    )
    return (
        by_length.select("position", "place")
        .join(grouped, on="place", how="left")
        .with_columns(pl.col("head").fill_null(pl.col("place")))
        .sort("head", "place")["position"]
    )


def _refuse_nulls(rows: pl.DataFrame) -> None:
    for name, count in rows.null_count().row(0, named=True).items():
        if count:
            raise ValueError(f"{name} is null in {count} of {rows.height} rows; it must have a value in each")
