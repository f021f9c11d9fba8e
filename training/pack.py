"""The order of training and what goes into each step: integers in, integers out.

An epoch's order is a shuffle by (seed, epoch); documents are packed in that order until the next one would
pass the token budget. Both follow from the arguments alone, so a resumed run takes the very same steps. A
document longer than the budget is a pack of its own.
"""

from __future__ import annotations

import random
from collections.abc import Sequence


def epoch_order(documents: int, *, seed: int, epoch: int) -> list[int]:
    """A permutation of range(documents)."""
    order = list(range(documents))
    random.Random(f"order:{seed}:{epoch}").shuffle(order)
    return order


def pack(lengths: Sequence[int], order: Sequence[int], tokens_per_batch: int) -> list[list[int]]:
    """Packs of document indices in `order`; disjoint, covering, each within the budget or of one document."""
    packs: list[list[int]] = []
    used = 0
    for document in order:
        if not packs or used + lengths[document] > tokens_per_batch:
            packs.append([])
            used = 0
        packs[-1].append(document)
        used += lengths[document]
    return packs


def epoch_packs(lengths: Sequence[int], tokens_per_batch: int, *, seed: int, epoch: int) -> list[list[int]]:
    """The steps of one epoch."""
    return pack(lengths, epoch_order(len(lengths), seed=seed, epoch=epoch), tokens_per_batch)


def all_packs(lengths: Sequence[int], tokens_per_batch: int, *, epochs: int, seed: int) -> list[tuple[int, list[int]]]:
    """(epoch, indices of documents) of every pack of a run; a pack's number is its place here."""
    return [
        (epoch, own)
        for epoch in range(epochs)
        for own in epoch_packs(lengths, tokens_per_batch, seed=seed, epoch=epoch)
    ]


def position_ids(lengths: Sequence[int]) -> list[int]:
    """Positions of documents laid end to end: they restart with each."""
    return [position for length in lengths for position in range(length)]
