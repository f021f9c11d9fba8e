"""What an audit was asked, and what it saw: counts by part and category, and figures of each prompt.

Plain values between the module that reads (audit) and those that judge and tell. Every row that was read is in exactly
one place: a category of its part, or a reason why it holds no prompt.
"""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field

from corpus.found_files import Place

SPEAKER = "audit"
"""Begins each line for a person."""


@dataclass(frozen=True)
class Asked:
    """What a person wants to know of which corpus."""

    place: Place
    rows: int | None
    """Rows to sample; None is all."""
    seed: int = 0
    shape: str = "auto"
    field: str | None = None
    """The column that holds the prompts, whatever the shape."""
    label: str | None = None
    """The column that holds the category: no row is classified."""
    by: str | None = None
    examples: int = 0
    why: bool = False
    skip_bad: bool = False


@dataclass
class Part:
    """A file, or a group of files: its rows, those that were read, and the prompts among them by category."""

    name: str
    files: int
    population: int = 0
    read: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def prompts(self) -> int:
        """Rows that were read and hold a prompt."""
        return self.counts.total()

    @property
    def weight(self) -> float:
        """How many rows of the corpus one row that was read stands for."""
        return self.population / self.read if self.read else 0.0


@dataclass(frozen=True)
class Example:
    """A row as an example of its category. The text is somebody else's."""

    file: str
    row: int
    asked: str
    why: tuple[tuple[str, str, float], ...]
    """(category, reason, weight) of the rules that spoke, the heaviest first."""


@dataclass
class Facts:
    """Figures of each prompt that was read, one entry a prompt. Answer -1: the row has none."""

    part: array[int] = field(default_factory=lambda: array("l"))
    prompt_chars: array[int] = field(default_factory=lambda: array("q"))
    answer_chars: array[int] = field(default_factory=lambda: array("q"))
    category: array[int] = field(default_factory=lambda: array("l"))
    tools: array[int] = field(default_factory=lambda: array("b"))
    several_turns: array[int] = field(default_factory=lambda: array("b"))
    likeness: array[int] = field(default_factory=lambda: array("Q"))


@dataclass
class Audit:
    """What was seen of a corpus."""

    asked: Asked
    parts: list[Part]
    facts: Facts = field(default_factory=Facts)
    categories: list[str] = field(default_factory=list)
    """The names of Facts.category's numbers."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Why rows that were read hold no prompt."""
    by: dict[str, dict[tuple[int, str], Counter[str]]] = field(default_factory=dict)
    """Column to (part, value) to counts by category; a column of many values is not here."""
    languages: list[tuple[int, str]] = field(default_factory=list)
    """(part, language) of some of the prompts."""
    examples: dict[str, list[Example]] = field(default_factory=dict)
    why: dict[str, Counter[str]] = field(default_factory=dict)
    """Category to how many of its prompts each reason spoke for it, where that was asked."""
    changed: list[str] = field(default_factory=list)
    """Files that changed meanwhile."""

    @property
    def population(self) -> int:
        """Rows of the corpus."""
        return sum(part.population for part in self.parts)

    @property
    def read(self) -> int:
        """Rows that were read."""
        return sum(part.read for part in self.parts)

    @property
    def prompts(self) -> int:
        """Rows that were read and hold a prompt."""
        return sum(part.prompts for part in self.parts)
