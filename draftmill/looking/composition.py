"""What a build is made of at each stage: counts, shares of the stage, and how far each is from its target.

Counts are prompts, or response tokens where the build's shares are of those. A stage is off its target where a
category misses its share by more than the mix's tolerance, one prompt at least. Pure, but for `read_composition`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from corpus.ledger.query import LedgerReader
from draftmill.looking.chosen import Build

if TYPE_CHECKING:
    import polars as pl

TARGET = "target"
SELECTED = "selected"
STAGES = (TARGET, SELECTED, "generated", "accepted", "captured", "trained")
JUDGED = STAGES[2:]
NO_NAME = "-"
"""The category of rows that have none: a damaged ledger's."""


@dataclass(frozen=True)
class Cell:
    """One category, or one source of it, at one stage. None is unknown or not counted there."""

    rows: int
    """Answers: one a turn; of target and selected, prompts."""
    prompts: int
    prompt_tokens: int | None
    response_tokens: int | None

    def __add__(self, other: Cell) -> Cell:
        return Cell(
            self.rows + other.rows, self.prompts + other.prompts,
            _plus(self.prompt_tokens, other.prompt_tokens), _plus(self.response_tokens, other.response_tokens),
        )  # fmt: skip


def _plus(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else one + other


@dataclass(frozen=True)
class Composition:
    """All of a build's cells, and what they are counted in."""

    build: Build
    cells: dict[tuple[str, str, str | None], Cell]
    """By stage, category and source; the target has no source."""
    licenses: dict[str, str | None]
    """By source."""
    in_tokens: bool
    """Counted in response tokens, not in prompts."""
    wanted: int
    """Answers that the build wants, the holdout left out; 0 before the first `generate`."""

    @cached_property
    def _sums(self) -> dict[tuple[str, str | None, str | None], Cell]:
        """By stage, category and source, None for all of them: a page asks for each of some thousand sums often."""
        found: dict[tuple[str, str | None, str | None], Cell] = {}
        for (stage, name, source), one in self.cells.items():
            keys = {(stage, at, of) for at in (name, None) for of in (source, None)}
            for key in keys:
                found[key] = found[key] + one if key in found else one
        return found

    @cached_property
    def stages(self) -> list[str]:
        """Those that have something, in order."""
        have = {stage for stage, _, _ in self.cells}
        return [stage for stage in STAGES if stage in have]

    @cached_property
    def categories(self) -> list[str]:
        """Largest target first; what has none, by what it has."""
        names = {category for _, category, _ in self.cells}

        def order(name: str) -> tuple[int, int, str]:
            most = max((self.amount(stage, name) or 0 for stage in self.stages), default=0)
            return -(self.amount(TARGET, name) or 0), -most, name

        return sorted(names, key=order)

    @cached_property
    def _sources(self) -> dict[str, list[str]]:
        found: dict[str, set[str]] = {}
        for _, name, source in self.cells:
            if source is not None:
                found.setdefault(name, set()).add(source)
        return {name: sorted(sources) for name, sources in found.items()}

    def sources(self, category: str) -> list[str]:
        """Sources of a category, by name."""
        return self._sources.get(category, [])

    def cell(self, stage: str, category: str | None = None, source: str | None = None) -> Cell | None:
        """The sum over what is not named; None where there is nothing."""
        return self._sums.get((stage, category, source))

    def amount(self, stage: str, category: str | None = None, source: str | None = None) -> int | None:
        """Prompts or response tokens."""
        one = self.cell(stage, category, source)
        if one is None:
            return None
        return one.response_tokens if self.in_tokens else one.prompts

    def share(self, stage: str, category: str, source: str | None = None) -> float | None:
        """The part of the stage; of a target that is counted in something else, of what that is counted in."""
        if stage == TARGET and self.amount(TARGET) is None:
            one, whole = self.cell(TARGET, category), self.cell(TARGET)
            return one.prompts / whole.prompts if one and whole and whole.prompts else None
        whole_amount, amount = self.amount(stage), self.amount(stage, category, source)
        if not whole_amount:
            return None
        return (amount or 0) / whole_amount

    @property
    def is_judged(self) -> bool:
        """Whether shares are held to a target: it must be there, and counted in the same."""
        return self.in_tokens == self.build.in_tokens and bool(self.amount(TARGET))

    def off(self, stage: str, category: str) -> float | None:
        """Percentage points above (below: negative) the target, where they are more than the tolerance."""
        if not self.is_judged or stage == TARGET:
            return None
        target, got = self.share(TARGET, category), self.share(stage, category)
        whole, cell = self.amount(stage), self.cell(stage)
        if target is None or got is None or not whole or cell is None:
            return None
        one_prompt = 100 * (whole / cell.prompts if self.in_tokens and cell.prompts else 1) / whole
        points = 100 * (got - target)
        return points if abs(points) > max(self.build.tolerance or 0.0, one_prompt) + 1e-9 else None


def read_composition(reader: LedgerReader, build: Build, in_tokens: bool | None = None) -> Composition:
    """The composition of one build.

    Args:
        in_tokens: count response tokens (True) or prompts (False); None is what the build's shares are of.
    """
    cells: dict[tuple[str, str, str | None], Cell] = {}
    licenses: dict[str, str | None] = {}
    for stage, category, source, rows, prompts, prompt_tokens, response_tokens, license_ in reader.rows(
        "SELECT stage, category, source, rows, prompts, prompt_tokens, response_tokens, license FROM composition "
        "WHERE build_id = ?",
        build.build_id,
    ):
        key = (stage, NO_NAME if category is None else category, source)
        one = Cell(_whole(rows) or 0, _whole(prompts) or 0, _whole(prompt_tokens), _whole(response_tokens))
        cells[key] = cells[key] + one if key in cells else one
        if source is not None:
            licenses[source] = license_
    ((wanted,),) = reader.rows(
        "SELECT count(*) FROM build_responses WHERE build_id = ? AND NOT holdout", build.build_id
    )
    chosen = build.in_tokens if in_tokens is None else in_tokens
    return Composition(build, cells, licenses, chosen, int(wanted))


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)


def composition_frame(made: Composition, stages: Sequence[str], by_source: bool) -> pl.DataFrame:
    """The same for programs: a row a stage and category, or source; shares are parts of the stage."""
    import polars as pl

    rows: list[tuple[Any, ...]] = []
    for stage in stages:
        for category in made.categories:
            sources: list[str | None] = []
            if by_source:
                sources = [one for one in made.sources(category) if made.cell(stage, category, one)]
            for source in sources or [None]:
                one = made.cell(stage, category, source)
                if one is not None:
                    rows.append(
                        (
                            made.build.build_id, stage, category, source, one.rows, one.prompts, one.prompt_tokens,
                            one.response_tokens, made.share(stage, category, source),
                            made.share(TARGET, category), made.off(stage, category) if source is None else None,
                        )
                    )  # fmt: skip
    counts = dict.fromkeys(("rows", "prompts", "prompt_tokens", "response_tokens"), pl.Int64())
    shares = dict.fromkeys(("share", "target_share", "points_off"), pl.Float64())
    names = dict.fromkeys(("build_id", "stage", "category", "source"), pl.String())
    return pl.DataFrame(rows, schema={**names, **counts, **shares}, orient="row")
