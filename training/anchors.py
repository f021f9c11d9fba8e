"""Where blocks begin: random supervised positions of one document, and which of their labels count.

An anchor is a generated token whose successor is generated too (an engine drafts from there, never from the
last prompt token: that one's successor comes out of the prefill). Drawn anew each epoch from (seed, epoch,
response id) alone, per document: drawing per pack would starve short documents. A label counts while it is in
the anchor's own supervised span; the span's end masks the rest. Integers in, integers out.
"""

from __future__ import annotations

import random
from collections.abc import Sequence


def candidates(loss_mask: Sequence[int]) -> list[int]:
    """Positions that may be anchors: supervised, and so is the next one."""
    return [p for p in range(len(loss_mask) - 1) if loss_mask[p] and loss_mask[p + 1]]


def draw_anchors(
    loss_mask: Sequence[int], anchors_per_document: int, *, seed: int, epoch: int, response_id: str
) -> list[int]:
    """At most `anchors_per_document` candidates, ascending; all of them where there are fewer."""
    possible = candidates(loss_mask)
    if len(possible) <= anchors_per_document:
        return possible
    # the generator is seeded by a string: Python hashes it with SHA-512, the same on every machine
    generator = random.Random(f"anchors:{seed}:{epoch}:{response_id}")
    return sorted(generator.sample(possible, anchors_per_document))


def label_counts(loss_mask: Sequence[int], anchors: Sequence[int], block_size: int) -> list[int]:
    """Of each anchor, how many of its block_size - 1 labels lie in its supervised span (the first ones)."""
    run = [0] * (len(loss_mask) + 1)
    for p in range(len(loss_mask) - 1, -1, -1):
        run[p] = run[p + 1] + 1 if loss_mask[p] else 0
    return [min(run[anchor] - 1, block_size - 1) for anchor in anchors]
