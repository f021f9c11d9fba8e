"""Which rows go into which shard: integers in, integers out.

Rows of like length share a shard, so that the batches inside it pad little; a shard holds at most so many rows and
so many tokens, and there are at least as many shards as devices, where there are rows enough.
"""

from __future__ import annotations

from collections.abc import Sequence

MAX_ROWS = 2_048
MAX_BYTES = 512 << 20
ITEMS_PER_DEVICE = 4
MIN_ROWS = 8


def plan_items(lengths: Sequence[int], devices: int, bytes_per_token: int) -> list[tuple[int, ...]]:
    """Rows by shard: disjoint, covering, longest first.

    Args:
        lengths: tokens of each row.
        bytes_per_token: what a shard stores of one token.
    """
    order = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
    fair = max(MIN_ROWS, -(-len(order) // (devices * ITEMS_PER_DEVICE)))
    max_rows = min(MAX_ROWS, fair)
    max_tokens = max(1, MAX_BYTES // bytes_per_token)
    items: list[tuple[int, ...]] = []
    current: list[int] = []
    tokens = 0
    for row in order:
        if current and (len(current) == max_rows or tokens + lengths[row] > max_tokens):
            items.append(tuple(current))
            current, tokens = [], 0
        current.append(row)
        tokens += lengths[row]
    if current:
        items.append(tuple(current))
    return items
