"""Which prompts a build asks beside its first round, so that its shares hold among what was accepted. Pure.

A category whose accepted prompts (or tokens) will be short of its target by more than the tolerance is topped up by
the next prompts of the nested order, as many as its acceptance rate says. Where it has no more, the shortage rule
holds: fail, or rescale, which leaves a surplus of the others out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from corpus.selection import split_quota

MIN_RATE = 0.05
"""Of a category that accepts less, twenty prompts are asked for one: something else is wrong."""
FEW = 20
"""Ended prompts from which on a category's acceptance rate is believed."""


@dataclass(frozen=True)
class Standing:
    """One category of a build, the holdout left out."""

    target: float
    """What was declared, in the mix's unit."""
    asked: int
    """Prompts, replicas included."""
    accepted: int
    """Prompts with an accepted answer."""
    pending: int
    """Prompts that have no end yet."""
    got: float
    """What the accepted prompts bring, in the mix's unit."""
    room: int
    """Prompts that the candidates have beyond those, replicas that the shortage rule allows included."""
    planned_mean: float = 1.0
    """What a prompt was planned to bring, in the mix's unit."""

    @property
    def mean(self) -> float:
        """What an accepted prompt brings, as measured, else as planned."""
        return self.got / self.accepted if self.accepted >= FEW else self.planned_mean

    @property
    def rate(self) -> float:
        """Accepted prompts among those that have an end."""
        ended = self.asked - self.pending
        return max(self.accepted / ended, MIN_RATE) if ended >= FEW else 1.0

    @property
    def short(self) -> float:
        """What will be missing, in the mix's unit, when the pending ones end as the others did."""
        return self.target - self.got - self.pending * self.rate * self.mean


def allowed(standings: Mapping[str, Standing], category: str, tolerance: float) -> float:
    """How far a category may be from its target, in the mix's unit: at least one prompt.

    Args:
        tolerance: percentage points of the whole.
    """
    return max(tolerance / 100 * sum(one.target for one in standings.values()), standings[category].mean)


def top_ups(standings: Mapping[str, Standing], tolerance: float) -> dict[str, int]:
    """Prompts to ask beyond those that are asked, by category; a category that will do is left out."""
    more = {}
    for name, one in sorted(standings.items()):
        if one.short > allowed(standings, name, tolerance) and one.room > 0:
            more[name] = min(one.room, math.ceil(one.short / one.mean / one.rate))
    return more


def still_short(standings: Mapping[str, Standing], tolerance: float) -> dict[str, float]:
    """Categories that miss their target for good, and by how much: nothing is pending, and there is no more to ask."""
    return {
        name: one.short
        for name, one in sorted(standings.items())
        if one.short > allowed(standings, name, tolerance) and not one.room and not one.pending
    }


def rescaled(standings: Mapping[str, Standing]) -> dict[str, Standing]:
    """The same with smaller targets, in the declared proportions, where a category has no more to give."""
    given = [one.got / one.target for one in standings.values() if one.target > 0 and not one.room and not one.pending]
    factor = min([1.0, *given])
    return {name: replace(one, target=one.target * factor) for name, one in standings.items()}


def surplus(standings: Mapping[str, Standing], tolerance: float) -> dict[str, float]:
    """Categories with more than their target by more than the tolerance, and what they should keep."""
    return {
        name: one.target
        for name, one in sorted(standings.items())
        if one.got - one.target > allowed(standings, name, tolerance)
    }


def shortest_quota(
    brings: Mapping[str, npt.NDArray[np.float64]],
    weights: Mapping[str, float],
    available: Mapping[str, int],
    wanted: float,
) -> int:
    """The smallest quota of a category whose rows bring so much; all that there is, if that is less.

    Args:
        brings: of each source, what each of its rows brings in nested order (0 where it was not accepted).
        weights, available: as split_quota takes them.
    """
    sums = {source: np.concatenate([[0.0], np.cumsum(rows)]) for source, rows in brings.items()}
    low, high = 0, sum(len(rows) for rows in brings.values())

    def brought(quota: int) -> float:
        taken = split_quota(quota, available, weights)
        return float(sum(sums[name][min(rows, len(sums[name]) - 1)] for name, rows in taken.items() if name in sums))

    while low < high:  # a larger quota takes a superset
        middle = (low + high) // 2
        if brought(middle) >= wanted:
            high = middle
        else:
            low = middle + 1
    return low
