"""What a terminal shows of training: one line, and a table by category; at the end every measure. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from corpus.columns import table
from draftmill.terminal import clock
from fleet.gang import Account, Depth
from training.messages import AcceptanceRow, SlotSums, TrainProgress

SLOTS = (1, 2, 4, 8)
"""Whose accuracies the block shows, as far as a block has them."""
MEASURES = ("walk", "anchors", "ddtree_8", "ddtree_16", "ddtree_32")


def training_line(progress: TrainProgress, tokens_per_s: float, left_s: float | None, queue: Depth | None) -> str:
    """Where the run is, in one line.

    Args:
        tokens_per_s: of all drafters together.
        left_s: None: not known yet.
        queue: of a run that is fed live.
    """
    if progress.step >= progress.steps:
        return f"step {progress.step:,}, loss {progress.loss:.3f}, measuring held-out rows"
    parts = [f"step {progress.step:,} of {progress.steps:,}", f"loss {progress.loss:.3f}", f"{tokens_per_s:,.0f} tok/s"]
    if queue:
        parts.append(f"queue {queue.queued_bytes / queue.queue_bytes:.0%}")
    if left_s is not None:
        parts.append(f"{clock(left_s)} left")
    return ", ".join(parts)


def category_lines(sums: Mapping[str, SlotSums], walked: Mapping[str, tuple[int, int]]) -> list[str]:
    """A table: loss, accuracy of some slots, streak, and the newest held-out walk.

    Args:
        sums: since the last report, by category.
        walked: (drafts, accepted) of the newest checkpoint.
    """
    if not sums:
        return []
    most = max(len(own.total_by_slot) for own in sums.values())
    slots = [slot for slot in SLOTS if slot <= most]
    heads = ("", "loss", *(f"slot {slot}" for slot in slots), "streak", "τ")
    rows = []
    for category in sorted(sums.keys() | walked.keys()):
        own, walk = sums.get(category), walked.get(category)
        rows.append(
            (
                category,
                f"{own.loss / own.slots:.3f}" if own and own.slots else "-",
                *(_accuracy(own, slot) for slot in slots),
                f"{own.streak / own.blocks:.2f}" if own and own.blocks else "-",
                f"{1 + walk[1] / walk[0]:.2f}" if walk and walk[0] else "-",
            )
        )
    return table(heads, rows)


def idle_lines(account: Account | Depth) -> list[str]:
    """Each worker's idle share, of a run that is fed live."""
    return [
        f"{what} idle " + ", ".join(f"{one.idle_share:.0%}" for one in account.members if one.role == role)
        for role, what in (("producer", "targets"), ("consumer", "drafters"))
    ]


def measured_lines(acceptance: Sequence[AcceptanceRow]) -> list[str]:
    """A table of acceptance lengths: categories by measures."""
    by = {(one.measured_by, one.category): one for one in acceptance}
    measures = [name for name in MEASURES if any(name == own for own, _ in by)]
    rows = []
    for category in sorted({category for _, category in by}):
        lengths = (by.get((name, category)) for name in measures)
        walk = by.get(("walk", category))
        rows.append((category, *(_length(one) for one in lengths), f"{walk.rows:,}" if walk else "-"))
    return table(("τ", *(name.replace("_", " ") for name in measures), "rows"), rows) if rows else []


def _accuracy(own: SlotSums | None, slot: int) -> str:
    if own is None or slot > len(own.total_by_slot) or not own.total_by_slot[slot - 1]:
        return "-"
    return f"{own.correct_by_slot[slot - 1] / own.total_by_slot[slot - 1]:.0%}"


def _length(one: AcceptanceRow | None) -> str:
    return f"{1 + one.accepted_tokens / one.drafts:.2f}" if one and one.drafts else "-"
