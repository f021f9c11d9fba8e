"""A drafter's acceptance on held-out rows, by category: while it trains by the walk, at the end in every way.

walk: the sequential walk, as serving steps. anchors: every supervised position, another number. ddtree_B: the walk
of a decoder that verifies a tree of B drafts (see tree). All are raw sums, rows being clusters: an interval follows
from the sums over rows (see corpus.acceptance).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from training.data import TrainingData
from training.dflash import Drafter
from training.frozen import FrozenTarget
from training.tree import TREE_SIZES
from training.walk import Acceptance, over_anchors, pooled, walk

DOCUMENTS_AT_ONCE = 64
TREE_ROWS = 1024
"""Most rows that trees are grown on: 32 nodes a draft are planned on one core."""


@dataclass(frozen=True)
class EvaluationSettings:
    """How held-out rows are measured."""

    tokens_per_batch: int
    anchors_per_document: int
    seed: int
    device: str = "cpu"
    rows: int = 256
    """Rows that are walked at each checkpoint."""


def held_out(
    drafter: Drafter, target: FrozenTarget, data: TrainingData, rows: Sequence[int], settings: EvaluationSettings
) -> dict[str, Acceptance]:
    """The sequential walk over held-out rows, by category."""
    results: list[tuple[str, Acceptance]] = []
    for start in range(0, len(rows), DOCUMENTS_AT_ONCE):
        documents = [data.document(i, target) for i in rows[start : start + DOCUMENTS_AT_ONCE]]
        walked = walk(drafter, target, documents, tokens_per_batch=settings.tokens_per_batch, device=settings.device)
        results.extend(zip((d.category for d in documents), walked, strict=True))
    return pooled(results)


def measure(
    drafter: Drafter, target: FrozenTarget, data: TrainingData, settings: EvaluationSettings
) -> dict[str, dict[str, Acceptance]]:
    """Every measure over every held-out row (trees over TREE_ROWS of them), by measure and category."""
    results: dict[str, list[tuple[str, Acceptance]]] = defaultdict(list)
    trees = set(spread(data, TREE_ROWS))
    for start in range(0, len(data.holdout), DOCUMENTS_AT_ONCE):
        rows = data.holdout[start : start + DOCUMENTS_AT_ONCE]
        documents = [data.document(i, target) for i in rows]
        budget, device = settings.tokens_per_batch, settings.device

        def add(measure: str, own: Sequence[Acceptance], of: Sequence[str]) -> None:
            results[measure].extend(zip(of, own, strict=True))

        categories = [document.category for document in documents]
        add("walk", walk(drafter, target, documents, tokens_per_batch=budget, device=device), categories)
        every = over_anchors(
            drafter,
            target,
            documents,
            anchors_per_document=settings.anchors_per_document,
            seed=settings.seed,
            tokens_per_batch=budget,
            device=device,
        )
        add("anchors", every, categories)
        grown = [document for i, document in zip(rows, documents, strict=True) if i in trees]
        for size in TREE_SIZES:
            own = walk(drafter, target, grown, tokens_per_batch=budget, device=device, tree_size=size)
            add(f"ddtree_{size}", own, [document.category for document in grown])
    return {measure: pooled(own) for measure, own in results.items()}


def spread(data: TrainingData, limit: int) -> list[int]:
    """At most `limit` held-out rows, categories in turn, in the order of the data."""
    by_category: dict[str, list[int]] = defaultdict(list)
    for i in data.holdout:
        by_category[data.rows[i].category].append(i)
    chosen: list[int] = []
    turn = 0
    while len(chosen) < min(limit, len(data.holdout)):
        for own in by_category.values():
            if turn < len(own) and len(chosen) < limit:
                chosen.append(own[turn])
        turn += 1
    return sorted(chosen)


def mean_acceptance_length(taus: dict[str, Acceptance]) -> float | None:
    """Mean over categories (pooled sums would be ruled by the worst one, which drafts most); None: nothing."""
    lengths = [one.acceptance_length for one in taus.values() if one.drafts]
    return sum(lengths) / len(lengths) if lengths else None
