"""Numbers that are not certain: a value, the range that it lies in, and what it rests on. Pure.

Arithmetic carries the range (ends are combined with ends, so it never becomes narrower than it is) and every source of
what went in. All amounts here are zero or more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

SURENESS = ("exact", "measured", "estimated", "assumed")
"""Best first: it follows from manifest and files; the ledger counted it; arithmetic on published figures; a guess."""

Source = tuple[str, str]
"""One of SURENESS, and the source in words."""


@dataclass(frozen=True)
class Amount:
    """A value between `low` and `high`, and each source that it rests on."""

    value: float
    low: float
    high: float
    sources: tuple[Source, ...] = ()

    @staticmethod
    def of(value: float, low: float, high: float, sure: str, source: str) -> Amount:
        """A number with a range and one source."""
        return Amount(value, low, high, ((sure, source),))

    @staticmethod
    def exact(value: float, source: str = "") -> Amount:
        """A number without a range."""
        return Amount(value, value, value, (("exact", source),) if source else ())

    @property
    def sure(self) -> str:
        """The weakest sureness of its sources."""
        return SURENESS[max((SURENESS.index(sure) for sure, _ in self.sources), default=0)]

    def times(self, factor: float) -> Amount:
        """Scaled by a plain number."""
        return replace(self, value=self.value * factor, low=self.low * factor, high=self.high * factor)

    def within(self, least: float, most: float) -> Amount:
        """Each of the three numbers cut to [least, most]."""
        value, low, high = (min(max(number, least), most) for number in (self.value, self.low, self.high))
        return replace(self, value=value, low=low, high=high)

    def less(self, number: float) -> Amount:
        """What is left when so much is there; never below zero."""
        left = [max(0.0, mine - number) for mine in (self.value, self.low, self.high)]
        return replace(self, value=left[0], low=left[1], high=left[2])

    def __mul__(self, other: Amount) -> Amount:
        return Amount(self.value * other.value, self.low * other.low, self.high * other.high, _joined((self, other)))

    def __truediv__(self, other: Amount) -> Amount:
        return Amount(self.value / other.value, self.low / other.high, self.high / other.low, _joined((self, other)))

    def __add__(self, other: Amount) -> Amount:
        return total((self, other))


def total(parts: Iterable[Amount]) -> Amount:
    """Their sum: all low together, all high together."""
    amounts = tuple(parts)
    return Amount(
        sum(part.value for part in amounts),
        sum(part.low for part in amounts),
        sum(part.high for part in amounts),
        _joined(amounts),
    )


def _joined(parts: Iterable[Amount]) -> tuple[Source, ...]:
    return tuple(dict.fromkeys(source for part in parts for source in part.sources))
