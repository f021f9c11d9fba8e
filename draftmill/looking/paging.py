"""Pages of a long list: which rows one shows, and which pages to offer beside it. Pure.

Pages count from 1. A page that is not there is the nearest that is; an empty list has one empty page.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Paging:
    """One page of `total` rows, `size` at a time."""

    total: int
    size: int
    asked: int = 1

    @property
    def pages(self) -> int:
        """How many there are, one at least."""
        return max(-(-self.total // self.size), 1)

    @property
    def number(self) -> int:
        """This page."""
        return min(max(self.asked, 1), self.pages)

    @property
    def offset(self) -> int:
        """Rows before it."""
        return (self.number - 1) * self.size

    @property
    def first(self) -> int:
        """Its first row, counted from 1; 0 of an empty list."""
        return min(self.offset + 1, self.total)

    @property
    def last(self) -> int:
        """Its last row, counted from 1."""
        return min(self.offset + self.size, self.total)

    @property
    def offered(self) -> list[int]:
        """The first page, the last, and those around this one, in order."""
        near = range(self.number - 2, self.number + 3)
        return sorted({1, self.pages, *(page for page in near if 1 <= page <= self.pages)})
