"""What a terminal shows of training: one line, and a table by category; at the end every measure. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from corpus.acceptance import FEW_ROWS
from corpus.columns import table
from draftmill.terminal import clock
from fleet.gang import Account, Depth
from training.headway import Headway
from training.messages import AcceptanceRow, SlotSums, TrainProgress

SLOTS = (1, 2, 4, 8)
"""Whose accuracies the block shows, as far as a block has them."""
LONG_PAST = 3
"""Checkpoints without a better one after which it is said."""
UNKNOWN = "-"
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


def checkpoint_line(progress: TrainProgress) -> str:
    """A checkpoint in one line, for a log."""
    measured = "" if progress.tau is None else f": walk τ {progress.tau:.2f}"
    if progress.best_tau is not None and progress.best_step != progress.step:
        measured += f", best {progress.best_tau:.2f} at {progress.best_step:,}"
    elif progress.tau is not None:
        measured += ", the best so far"
    return f"step {progress.step:,} of {progress.steps:,} saved{measured}"


def best_line(best: tuple[int, float], since_best: int) -> str:
    """The best checkpoint until now, and that it is long past if it is."""
    past = f", none better in {since_best} checkpoints" if since_best >= LONG_PAST else ""
    return f"best τ {best[1]:.2f} at step {best[0]:,}{past}"


def past_sentence(best_step: int, steps: int, checkpoint_every: int) -> str | None:
    """What a finished run's best step says of its length; None where it says nothing."""
    behind = steps - best_step
    if behind < LONG_PAST * checkpoint_every:
        return None
    return (
        f"the last {behind:,} steps did not raise τ on held-out rows: fewer epochs do, or more rows, or a lower "
        "training.learning_rate"
    )


def headway_line(headway: Headway, now: float) -> str:
    """Where a run of another shell is, in one line. `now`: UTC seconds since 1970."""
    parts = [f"step {headway.step:,} of {headway.steps:,}" if headway.steps else "starting"]
    if headway.stopping:
        parts.append("stopping at a checkpoint")
    elif headway.loss is not None and headway.step >= headway.steps:
        parts.append("measuring held-out rows")
    elif headway.loss is not None:
        parts += [f"loss {headway.loss:.3f}", f"{headway.tokens_per_s:,.0f} tok/s"]
        if headway.left_s is not None:
            parts.append(f"{clock(headway.left_s - (now - headway.updated_at))} left")
    if headway.best_tau is not None:
        parts.append(f"best τ {headway.best_tau:.2f} at {headway.best_step:,}")
    return ", ".join(parts)


def category_lines(
    sums: Mapping[str, SlotSums], walked: Mapping[str, tuple[int, int]], *, young: bool = False
) -> list[str]:
    """A table: loss, accuracy of some slots, streak, and the newest held-out walk.

    Args:
        sums: since the last report, by category.
        walked: (drafts, accepted) of the newest checkpoint.
        young: the sums are of so few steps that they are not shown.
    """
    if not sums:
        return []
    most = max(len(own.total_by_slot) for own in sums.values())
    slots = [slot for slot in SLOTS if slot <= most]
    heads = ("", "loss", *(f"slot {slot}" for slot in slots), "streak", "τ")
    rows = []
    for category in sorted(sums.keys() | walked.keys()):
        own, walk = None if young else sums.get(category), walked.get(category)
        rows.append(
            (
                category,
                f"{own.loss / own.slots:.3f}" if own and own.slots else UNKNOWN,
                *(_accuracy(own, slot) for slot in slots),
                f"{own.streak / own.blocks:.2f}" if own and own.blocks else UNKNOWN,
                f"{1 + walk[1] / walk[0]:.2f}" if walk and walk[0] else UNKNOWN,
            )
        )
    return [*table(heads, rows), *([f"{UNKNOWN}: figures follow after some steps"] if young else [])]


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
        rows.append((category, *(_length(one) for one in lengths), _rows(walk) if walk else UNKNOWN))
    return table(("τ", *(name.replace("_", " ") for name in measures), "rows"), rows) if rows else []


def _accuracy(own: SlotSums | None, slot: int) -> str:
    if own is None or slot > len(own.total_by_slot) or not own.total_by_slot[slot - 1]:
        return UNKNOWN
    return f"{own.correct_by_slot[slot - 1] / own.total_by_slot[slot - 1]:.0%}"


def _rows(one: AcceptanceRow) -> str:
    return f"{one.rows:,} (few)" if one.rows < FEW_ROWS else f"{one.rows:,}"


def _length(one: AcceptanceRow | None) -> str:
    return f"{1 + one.accepted_tokens / one.drafts:.2f}" if one and one.drafts else UNKNOWN
