"""Which rows go into which shard, which rows a disk has room for, which ones a self-test takes: integers alone.

A shard is whole batches, one after the other as they were cut, so that no batch is left half full at a shard's end.
There are several shards a device, where there are batches enough, so that none waits long for the last one.
"""

from __future__ import annotations

from collections.abc import Sequence

from extraction.plan import Batch

MAX_ROWS = 4_096
MAX_BYTES = 1 << 30
ITEMS_PER_DEVICE = 8
SAMPLE_ROWS = 4
SAMPLE_TOKENS = 512
"""The self-test's rows and how long they may be: it runs every layer twice."""


def plan_items(
    batches: Sequence[Batch], lengths: Sequence[int], devices: int, bytes_per_token: int
) -> list[tuple[int, ...]]:
    """Rows by shard: disjoint, covering, in the order of the batches.

    A shard holds at least one batch, and no further one past `MAX_ROWS` rows, `MAX_BYTES`, or a device's fair part.

    Args:
        lengths: tokens of each row.
        bytes_per_token: what a shard stores of one token.
    """
    total = sum(lengths[row] for batch in batches for row in batch.rows)
    fair = -(-total // (devices * ITEMS_PER_DEVICE))
    max_tokens = max(1, min(MAX_BYTES // bytes_per_token, fair))
    items: list[tuple[int, ...]] = []
    current: list[int] = []
    tokens = 0
    for batch in batches:
        more = sum(lengths[row] for row in batch.rows)
        if current and (len(current) + len(batch.rows) > MAX_ROWS or tokens + more > max_tokens):
            items.append(tuple(current))
            current, tokens = [], 0
        current.extend(batch.rows)
        tokens += more
    if current:
        items.append(tuple(current))
    return items


def rows_that_fit(categories: Sequence[str], tokens: Sequence[int], most_tokens: int) -> list[int]:
    """The rows that hold at most so many tokens together, every category cut at the same part of its rows.

    Args:
        categories: of each row, in the nested order: a category gives its first rows.
        tokens: of each row.

    Returns:
        The rows in their order. A larger `most_tokens` gives a superset, and the most rows that can be: one row more
        of the category that is due next would not fit.
    """
    kept, left = [], most_tokens
    for row in rows_in_turn(categories):
        if tokens[row] > left:
            break
        left -= tokens[row]
        kept.append(row)
    return sorted(kept)


def rows_in_turn(categories: Sequence[str]) -> list[int]:
    """All rows, in the order in which room is given to them.

    A row is due when its category has had its part of them all: the middle of its place, as a part of the whole.
    """
    counts: dict[str, int] = {}
    places = []
    for row, category in enumerate(categories):
        counts[category] = counts.get(category, 0) + 1
        places.append((counts[category], row, category))
    return [row for _, _, row in sorted(((place - 0.5) / counts[name], name, row) for place, row, name in places)]


def sample_rows(tokens: Sequence[int]) -> list[int]:
    """A few rows for the self-test: from the shortest to the longest that is short enough."""
    by_length = sorted((row for row, count in enumerate(tokens) if count), key=lambda row: tokens[row])
    short = [row for row in by_length if tokens[row] <= SAMPLE_TOKENS]
    if not short:
        return by_length[:1]
    step = (len(short) - 1) / max(1, SAMPLE_ROWS - 1)
    return sorted({short[round(n * step)] for n in range(SAMPLE_ROWS)})
