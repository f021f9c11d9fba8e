"""Are served answers the recorded ones, token for token? Speculative decoding changes no greedy answer.

Only rows that were sampled at temperature 0 are compared; the serve check decodes so. In float32 all are the same;
in half precision a batch of another shape rounds otherwise, and answers part at near ties. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class SameTokens:
    """Of one category: how many greedy rows were served as they were recorded."""

    category: str
    same: int
    rows: int

    def line(self) -> str:
        """For a person, and the ledger's events."""
        return f"{self.category}: {self.same:,} of {self.rows:,} greedy answers are the recorded ones, token for token"


def compare(
    category: str,
    served: Sequence[Sequence[int]],
    recorded: Sequence[Sequence[int] | None],
    max_tokens: Sequence[int],
) -> SameTokens:
    """Row by row; an answer that had room for fewer tokens must be the beginning of the recorded one.

    Args:
        recorded: None where the row was not sampled greedily.
        max_tokens: what each row was served with; 0 where it was skipped.
    """
    pairs = [
        (list(own), list(known[:limit]))
        for own, known, limit in zip(served, recorded, max_tokens, strict=True)
        if known is not None and limit
    ]
    return SameTokens(category, sum(own == known for own, known in pairs), len(pairs))
