"""Which rows of a corpus are looked at: random samples of parts whose length may not be known, how many of each.

A part is a file, or several where there are too many to show one by one. Every row of a part is as likely to be taken
as every other, however long it is; parts get rows in proportion to their own, each at least a few, so that an odd one
is seen (its rows then count for less: weights are population over sample). Pure: numbers in, numbers out; the same seed
gives the same rows. Nothing here knows files or prompts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Generic, NamedTuple, TypeVar

import numpy as np

T = TypeVar("T")


class Reservoir(Generic[T]):
    """A simple random sample of at most `size` items of a stream, in one pass.

    Algorithm L of K.-H. Li, "Reservoir-sampling algorithms of time complexity O(n(1+log(N/n)))", ACM TOMS 20 (1994):
    between two items that are taken the others are skipped unseen.
    """

    def __init__(self, size: int, rng: np.random.Generator) -> None:
        self.held: list[T] = []
        self.seen = 0
        """Items offered so far."""
        self._size, self._rng = size, rng
        self._next, self._log_w = 0, 0.0

    def offer(self, length: int, item: Callable[[int], T]) -> None:
        """The next `length` items of the stream; `item(i)`, i from 0, is asked of those alone that are taken."""
        stop = self.seen + length
        while self._next < stop and self._size:
            value = item(self._next - self.seen)
            if len(self.held) < self._size:
                self.held.append(value)
            else:
                self.held[int(self._rng.integers(self._size))] = value
            self._next += 1 if len(self.held) < self._size else 1 + self._skip()
        self.seen = stop

    def drawn(self, rows: int) -> list[T]:
        """A simple random sample of at most `rows` of the stream, in random order. Those held stay."""
        order = self._rng.permutation(len(self.held))[:rows]
        return [self.held[int(i)] for i in order]

    def trim(self, rows: int) -> None:
        """Hold no more than `rows` from now on; nothing more may be offered then."""
        if len(self.held) > rows:
            self.held = self.drawn(rows)

    def _skip(self) -> int:
        """How many items are passed over before the next one that is taken."""
        self._log_w += math.log(1 - self._rng.random()) / self._size
        below = math.log(-math.expm1(self._log_w)) if self._log_w < 0 else -math.inf  # log(1 - w)
        if below == 0:  # w is too small for a float: nobody has that many rows
            return 1 << 62
        return math.floor(math.log(1 - self._rng.random()) / below)


def allocate(populations: Sequence[int], rows: int, least: int) -> list[int]:
    """How many rows to take of each part: `rows` in all, in proportion, of each at least `least`.

    A part gets no more than it has. Where `least` of each would be more than half of `rows`, half is given evenly.
    """
    if sum(populations) <= rows:
        return list(populations)
    held = sum(1 for population in populations if population)
    least = min(least, rows // (2 * held)) if held else 0
    floors = [min(population, least) for population in populations]
    lifted = [False] * len(populations)
    while True:
        free = rows - sum(floor for floor, up in zip(floors, lifted, strict=True) if up)
        whole = sum(population for population, up in zip(populations, lifted, strict=True) if not up)
        exact = [
            float(floors[i]) if lifted[i] else free * population / whole for i, population in enumerate(populations)
        ]
        below = [not lifted[i] and exact[i] < floors[i] for i in range(len(populations))]
        if not any(below):
            break
        lifted = [up or now for up, now in zip(lifted, below, strict=True)]
    shares = [math.floor(one) for one in exact]
    # what rounding left over goes to the largest remainders that have room
    order = sorted(range(len(exact)), key=lambda i: (shares[i] - exact[i], i))
    for i in order:
        if sum(shares) == rows:
            break
        shares[i] += shares[i] < populations[i]
    return shares


class Group(NamedTuple):
    """Files that are one part: what to call them, and their places in the list of names."""

    label: str
    files: tuple[int, ...]


def group_files(names: Sequence[str], most: int) -> list[Group]:
    """At most `most` parts: each file alone, or folders, or runs of neighbouring names."""
    order = sorted(range(len(names)), key=lambda i: names[i])
    if len(names) <= most:
        return [Group(names[i], (i,)) for i in order]
    depths = max(len(PurePosixPath(name).parts) for name in names)
    for depth in range(depths - 1, 0, -1):
        folders: dict[str, list[int]] = {}
        for i in order:
            folders.setdefault("/".join(PurePosixPath(names[i]).parts[:-1][:depth]), []).append(i)
        if 1 < len(folders) <= most:
            return [Group(_label(names, files, f"{name or '.'}/"), tuple(files)) for name, files in folders.items()]
    bounds = [round(k * len(order) / most) for k in range(most + 1)]
    runs = [order[low:high] for low, high in pairwise(bounds)]
    return [Group(_label(names, run, f"{names[run[0]]} and next"), tuple(run)) for run in runs if run]


def _label(names: Sequence[str], files: Sequence[int], called: str) -> str:
    return names[files[0]] if len(files) == 1 else f"{called} ({len(files):,} files)"
