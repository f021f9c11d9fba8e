"""What a check of the ledger found: a line of the proof, that holds or is breached.

Pure values. A finding says what was checked, how many of it, and how many break the rule; its examples are one line a
kind of breach, with the first few ids whole, so that they can be pasted into SQL. Ids and counts alone, nothing of a
row's text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MOST_EXAMPLES = 3


@dataclass(frozen=True)
class Problem:
    """One kind of breach: how many, and the first few."""

    kind: str
    count: int
    ids: tuple[str, ...]

    def line(self) -> str:
        """For a person."""
        more = ", …" if self.count > len(self.ids) else ""
        return f"{self.count:,} {self.kind}: {', '.join(self.ids)}{more}"


@dataclass(frozen=True)
class Finding:
    """A line of the proof. `checked` and `breaches` count the same things, unless a thing breaks two rules."""

    what: str
    checked: int
    breaches: int
    examples: tuple[str, ...] = ()
    """One line a kind of breach."""
    said: str = ""
    """What was counted."""
    notes: tuple[str, ...] = ()
    """What a person should know and is no breach."""
    next_step: str = ""
    build: str | None = None
    """The build that this is about; None for the workspace."""

    @property
    def holds(self) -> bool:
        """True if nothing breaks the rule."""
        return not self.breaches


class Problems:
    """Collects breaches by kind, in the order in which kinds come up."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, list[str]]] = {}

    def add(self, kind: str, ids: Sequence[str], count: int | None = None) -> None:
        """Note `count` breaches of a kind (default: as many as there are ids); nothing where that is none."""
        more = len(ids) if count is None else count
        if not more:
            return
        have, shown = self._found.get(kind, (0, []))
        self._found[kind] = have + more, [*shown, *ids][:MOST_EXAMPLES]

    @property
    def count(self) -> int:
        """Breaches of all kinds."""
        return sum(count for count, _ in self._found.values())

    def lines(self) -> tuple[str, ...]:
        """One a kind."""
        return tuple(Problem(kind, count, tuple(ids)).line() for kind, (count, ids) in self._found.items())

    def finding(
        self,
        what: str,
        checked: int,
        said: str,
        next_step: str,
        *,
        proven: str = "",
        notes: Sequence[str] = (),
        build: str | None = None,
    ) -> Finding:
        """The finding of what was collected: `proven` is said where nothing breaks the rule, else the next step."""
        whole = f"{said}: {proven}" if proven and not self.count else said
        step = next_step if self.count else ""
        return Finding(what, checked, self.count, self.lines(), whole, tuple(notes), step, build)
