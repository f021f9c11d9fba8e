"""DDTree: what a drafter's slots would be worth if a tree of drafts were verified at once.

The tree holds the B most probable prefixes under the product of the slots' own marginals, the root (the anchor) not
counted; a step accepts the longest path that the answer takes, and the target adds one token (arXiv 2604.12989).
Slots are independent of one another given the context, so the prefixes come best first from a heap: a node's
children take the next slot's most probable token, its sibling the next token of its own slot. Pure: numbers in,
depths out.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

TREE_SIZES = (8, 16, 32)
"""B of the figures that are kept."""


def best_prefixes(log_probs: Sequence[Sequence[float]], size: int) -> list[tuple[int, ...]]:
    """The `size` most probable prefixes, best first, as ranks by slot.

    Args:
        log_probs: by slot, log-probabilities of its most probable tokens, descending. Slots with fewer tokens than
            `size` may cut the tree short.
        size: B, nodes without the root.
    """
    found: list[tuple[int, ...]] = []
    # (minus the log-probability, ranks): ties go to the smaller ranks, so equal input gives an equal tree
    heap: list[tuple[float, tuple[int, ...]]] = []
    if log_probs and log_probs[0]:
        heap.append((-log_probs[0][0], (0,)))
    while heap and len(found) < size:
        cost, ranks = heapq.heappop(heap)
        found.append(ranks)
        slot, rank = len(ranks) - 1, ranks[-1]
        if rank + 1 < len(log_probs[slot]):
            sibling = cost + log_probs[slot][rank] - log_probs[slot][rank + 1]
            heapq.heappush(heap, (sibling, (*ranks[:-1], rank + 1)))
        if slot + 1 < len(log_probs) and log_probs[slot + 1]:
            heapq.heappush(heap, (cost - log_probs[slot + 1][0], (*ranks, 0)))
    return found


def accepted_depth(
    log_probs: Sequence[Sequence[float]], tokens: Sequence[Sequence[int]], known: Sequence[int], size: int
) -> tuple[int, bool]:
    """(nodes on the answer's path, whether it left the known tokens before it left the tree).

    Args:
        log_probs, tokens: by slot, the most probable tokens, descending.
        known: the answer behind the anchor, as far as it is known.
        size: B.
    """
    path: list[int] = []
    for slot, wanted in zip(tokens, known, strict=False):
        if wanted not in slot:
            break
        path.append(list(slot).index(wanted))
    if not path:
        return 0, not known
    inside = set(best_prefixes(log_probs, size))
    depth = 0
    while depth < len(path) and tuple(path[: depth + 1]) in inside:
        depth += 1
    return depth, depth == len(known) < len(tokens)
