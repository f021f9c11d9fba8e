"""How rows are cut into forwards: integers in, integers out.

Rows are sorted by length and cut by a budget of padded tokens, so that a batch holds rows of like length and
little is padded. Out of memory is a reaction, pure too: `halve` cuts the failed batch, and what is still to
come of its length band, by half the budget. Nothing here knows of tensors, models or files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Batch:
    """Rows of one forward, by index; `length` is the longest, to which the others are padded."""

    rows: tuple[int, ...]
    length: int

    @property
    def padded_tokens(self) -> int:
        """What the forward computes, padding included."""
        return len(self.rows) * self.length


def plan_batches(lengths: Sequence[int], max_tokens_per_batch: int, max_rows: int = 256) -> list[Batch]:
    """Batches of like length, longest first (what does not fit shows at once).

    They are disjoint, cover every row, and hold at most `max_tokens_per_batch` padded tokens and `max_rows`
    rows; a row that is longer alone is a batch of its own. Equal input gives equal batches.

    Raises:
        ValueError: a length, the budget or max_rows is below 1.
    """
    if max_tokens_per_batch < 1 or max_rows < 1 or any(length < 1 for length in lengths):
        raise ValueError("lengths, max_tokens_per_batch and max_rows must be at least 1")
    order = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
    return _cut(order, lengths, max_tokens_per_batch, max_rows)


def halve(pending: Sequence[Batch], failed: Batch, lengths: Sequence[int]) -> tuple[list[Batch], tuple[int, ...]]:
    """What to do after `failed` ran out of memory: (batches to come, rows that cannot fit).

    A batch of one row cannot be cut: its row is given up. Otherwise the failed batch, and every pending one
    of its length band (lengths of the same power of two) that is larger than half of it, are cut again by
    half its padded tokens.
    """
    if len(failed.rows) == 1:
        return list(pending), failed.rows
    budget = max(failed.padded_tokens // 2, 1)
    again = _cut(failed.rows, lengths, budget, max((len(failed.rows) + 1) // 2, 1))
    band = _band(failed.length)
    for batch in pending:
        too_large = _band(batch.length) == band and batch.padded_tokens > budget
        again.extend(_cut(batch.rows, lengths, budget, len(batch.rows)) if too_large else [batch])
    return again, ()


def summary(batches: Sequence[Batch], lengths: Sequence[int]) -> str:
    """One line for a person: "32 batches, sizes 2 to 226, mean 31, padding 1.1%"."""
    if not batches:
        return "0 batches"
    sizes = [len(batch.rows) for batch in batches]
    padded = sum(batch.padded_tokens for batch in batches)
    real = sum(lengths[row] for batch in batches for row in batch.rows)
    return (
        f"{len(batches)} batch{'es' if len(batches) != 1 else ''}, sizes {min(sizes)} to {max(sizes)}, "
        f"mean {sum(sizes) / len(sizes):.0f}, padding {100 * (padded - real) / padded:.1f}%"
    )


def _cut(rows: Sequence[int], lengths: Sequence[int], budget: int, max_rows: int) -> list[Batch]:
    """Cut rows, longest first, wherever one more would pass the budget."""
    batches: list[Batch] = []
    current: list[int] = []
    for row in rows:
        longest = lengths[current[0]] if current else lengths[row]
        if current and ((len(current) + 1) * longest > budget or len(current) == max_rows):
            batches.append(Batch(tuple(current), longest))
            current = []
        current.append(row)
    if current:
        batches.append(Batch(tuple(current), lengths[current[0]]))
    return batches


def _band(length: int) -> int:
    return length.bit_length()
