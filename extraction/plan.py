"""How rows are cut into forwards: integers in, integers out.

Rows are sorted by length and cut by a budget of padded tokens, which each length band has its own of
(`extraction.budget`), so that a batch holds rows of like length and little is padded. Lengths are padded up to a
multiple that the kernels like. Out of memory is a reaction, pure too: `halve` cuts the failed batch, and what is
still to come of its band, by half its tokens. Nothing here knows of tensors, models or files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from extraction.budget import Budgets, band_of

WASTE = 0.05
"""Padding of a batch above which it is split: of few rows, or of very unlike ones, a full batch would be a poor one."""
MIN_SAVED_TOKENS = 64
"""What a split must save: about what one more forward costs beside its tokens."""
MAX_ROWS = 256
"""Of one forward: more rows than this make no matrix larger that is not large enough, and short rows come in many."""


@dataclass(frozen=True)
class Batch:
    """Rows of one forward, by index; all are padded to `length`, the longest row's, aligned."""

    rows: tuple[int, ...]
    length: int

    @property
    def padded_tokens(self) -> int:
        """What the forward computes, padding included."""
        return len(self.rows) * self.length


@dataclass(frozen=True)
class Cut:
    """How a batch plan came out, over all of its batches; sums of several add up."""

    batches: int = 0
    smallest: int = 0
    largest: int = 0
    rows: int = 0
    tokens: int = 0
    padded_tokens: int = 0

    def __add__(self, other: Cut) -> Cut:
        if not (self.batches and other.batches):
            return self if self.batches else other
        return Cut(
            self.batches + other.batches,
            min(self.smallest, other.smallest),
            max(self.largest, other.largest),
            self.rows + other.rows,
            self.tokens + other.tokens,
            self.padded_tokens + other.padded_tokens,
        )

    @property
    def padding(self) -> float:
        """Part of the computed tokens that is padding."""
        return 1 - self.tokens / self.padded_tokens if self.padded_tokens else 0.0

    def __str__(self) -> str:
        """For a person: "32 batches, sizes 2 to 226, mean 31, padding 1.1%"."""
        if not self.batches:
            return "0 batches"
        sizes = f"sizes {self.smallest} to {self.largest}, mean {self.rows / self.batches:.0f}"
        if self.smallest == self.largest:
            sizes = f"{self.largest} row{'s' if self.largest != 1 else ''}{' each' if self.batches != 1 else ''}"
        batches = f"{self.batches:,} batch{'es' if self.batches != 1 else ''}"
        return f"{batches}, {sizes}, padding {100 * self.padding:.1f}%"


def plan_batches(lengths: Sequence[int], budgets: Budgets, max_rows: int = MAX_ROWS, align: int = 1) -> list[Batch]:
    """Batches of like length, longest first (what does not fit shows at once).

    They are disjoint, cover every row, and hold at most `max_rows` rows and the padded tokens that the budget of
    their longest row's band allows; a row that is longer alone is a batch of its own. Equal input gives equal batches.

    Raises:
        ValueError: a length, max_rows or align is below 1.
    """
    if max_rows < 1 or align < 1 or any(length < 1 for length in lengths):
        raise ValueError("lengths, max_rows and align must be at least 1")
    order = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
    return _cut(order, lengths, budgets, max_rows, align)


def halve(
    pending: Sequence[Batch], failed: Batch, lengths: Sequence[int], budgets: Budgets, align: int = 1
) -> tuple[list[Batch], tuple[int, ...], Budgets]:
    """What to do after `failed` ran out of memory: (batches to come, rows that cannot fit, budgets from now on).

    A batch of one row cannot be cut: its row is given up, and its band goes on one row at a time. Otherwise the
    failed batch, and every pending one of its band that is larger than half of it, are cut again by half its padded
    tokens, which is the band's budget from now on.
    """
    budgets = budgets.lowered(failed.length, max(failed.padded_tokens // 2, 1))
    if len(failed.rows) == 1:
        return list(pending), failed.rows, budgets
    again = _cut(failed.rows, lengths, budgets, max((len(failed.rows) + 1) // 2, 1), align)
    band = band_of(failed.length)
    for batch in pending:
        too_large = band_of(batch.length) == band and batch.padded_tokens > budgets.of(batch.length)
        again.extend(_cut(batch.rows, lengths, budgets, len(batch.rows), align) if too_large else [batch])
    return again, (), budgets


def cut_of(batches: Sequence[Batch], lengths: Sequence[int]) -> Cut:
    """What the batches come to."""
    if not batches:
        return Cut()
    sizes = [len(batch.rows) for batch in batches]
    return Cut(
        len(batches), min(sizes), max(sizes), sum(sizes),
        sum(lengths[row] for batch in batches for row in batch.rows),
        sum(batch.padded_tokens for batch in batches),
    )  # fmt: skip


def _cut(rows: Sequence[int], lengths: Sequence[int], budgets: Budgets, max_rows: int, align: int) -> list[Batch]:
    """Cut rows, longest first, wherever one more would pass the budget, or be padded too much."""
    batches: list[Batch] = []
    start = 0
    while start < len(rows):
        longest = _aligned(lengths[rows[start]], align)
        fits = max(1, min(max_rows, budgets.of(longest) // longest))
        chosen = rows[start : start + fits]
        while (fewer := _split(chosen, longest, lengths, align)) < len(chosen):
            chosen = chosen[:fewer]  # the others begin the next batch, with those that come after them
        batches.append(Batch(tuple(chosen), longest))
        start += len(chosen)
    return batches


def _split(rows: Sequence[int], longest: int, lengths: Sequence[int], align: int) -> int:
    """How many of a batch's rows, which all would be padded to `longest`, should stay in it."""
    waste = sum(longest - lengths[row] for row in rows)
    if waste > WASTE * longest * len(rows):
        saved, at = max(((len(rows) - i) * (longest - _aligned(lengths[row], align)), i) for i, row in enumerate(rows))
        if saved > MIN_SAVED_TOKENS:
            return at
    return len(rows)


def _aligned(length: int, align: int) -> int:
    return -(-length // align) * align
