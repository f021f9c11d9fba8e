"""Shares are parts of their stage, a stage is off where it misses by more than is allowed, and the table fits."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from draftmill.looking.chosen import Build
from draftmill.looking.composition import STAGES, Cell, Composition, composition_frame
from draftmill.looking.composition_lines import composition_lines, stage_lines, verdict


def build(unit: str = "prompts", running: str | None = None, tolerance: float = 0.5) -> Build:
    made = datetime(2026, 11, 30, 9, 13, tzinfo=UTC)
    return Build("8b9031c2b33986d9d662296b", "demo", "c", unit, 100, 100, 2, tolerance, made, False, True, running)


def composition(
    stages: dict[str, dict[str, int]], unit: str = "prompts", in_tokens: bool = False, tolerance: float = 0.5
) -> Composition:
    """Counts by stage and category, tokens ten a prompt; sources are called like their category."""
    cells: dict[tuple[str, str, str | None], Cell] = {}
    for stage, counts in stages.items():
        for category, rows in counts.items():
            plain = stage in ("target", "selected")
            tokens = None if plain and not (stage == "target" and unit == "response_tokens") else 10 * rows
            source = None if stage == "target" else f"{category}-source"
            cells[stage, category, source] = Cell(rows, rows, rows, tokens)
    return Composition(build(unit, tolerance=tolerance), cells, {}, in_tokens, 100)


counts = st.dictionaries(st.sampled_from(["coding", "math", "agent", "general"]), st.integers(1, 10**9), min_size=1)


@given(st.fixed_dictionaries(dict.fromkeys(STAGES, counts)), st.booleans())
def test_shares_of_a_stage_sum_to_one_and_lines_fit(stages: dict[str, dict[str, int]], in_tokens: bool) -> None:
    made = composition(stages, in_tokens=in_tokens)
    for stage in STAGES:
        shares = [made.share(stage, category) for category in made.categories]
        if made.amount(stage) is not None:
            assert sum(share or 0 for share in shares) == pytest.approx(1)
    lines = composition_lines(made, by_source=True) + [
        line for stage in STAGES for line in stage_lines(made, stage, by_source=True)
    ]
    assert all(cell_len(line) <= 80 for line in lines)


class Counting(dict[tuple[str, str, str | None], Cell]):
    """Cells that know how often all of them were looked at."""

    looks = 0

    def items(self) -> Any:
        self.looks += 1
        return super().items()

    def __iter__(self) -> Any:
        self.looks += 1
        return super().__iter__()


def test_a_thousand_categories_are_looked_at_a_few_times_and_not_once_each() -> None:
    counts = {f"category {i}": i + 1 for i in range(1000)}
    small = composition(dict.fromkeys(STAGES, counts))
    made = Composition(small.build, Counting(small.cells), {}, False, 100)
    assert len(composition_lines(made, by_source=True)) > 2000
    assert len(stage_lines(made, "accepted", by_source=True)) > 2000
    assert composition_frame(made, made.stages, by_source=True).height == 6000
    assert isinstance(made.cells, Counting)
    assert made.cells.looks <= 10


@given(
    st.dictionaries(
        st.tuples(st.sampled_from(STAGES), st.sampled_from("abc"), st.sampled_from(["x", "y", None])),
        st.builds(Cell, st.integers(0, 9), st.integers(0, 9), st.none() | st.integers(0, 9), st.none()),
    )
)
def test_a_sum_is_over_what_is_not_named(cells: dict[tuple[str, str, str | None], Cell]) -> None:
    made = Composition(build(), cells, {}, False, 0)
    for stage in STAGES:
        for name in (None, *"abc"):
            for source in (None, "x", "y"):
                parts = [
                    one for (at, of, by), one in cells.items()
                    if at == stage and name in (None, of) and source in (None, by)
                ]  # fmt: skip
                found = made.cell(stage, name, source)
                assert (found is None) == (not parts)
                if found is not None:
                    assert found.rows == sum(one.rows for one in parts)
                    tokens = [one.prompt_tokens for one in parts if one.prompt_tokens is not None]
                    assert found.prompt_tokens == (sum(tokens) if tokens else None)


@given(st.integers(0, 1000), st.floats(0, 20))
def test_a_category_is_off_where_it_misses_by_more_than_the_tolerance(rows: int, tolerance: float) -> None:
    made = composition({"target": {"a": 500, "b": 500}, "accepted": {"a": rows, "b": 1000 - rows}}, tolerance=tolerance)
    points = abs(rows - 500) / 10
    assert (made.off("accepted", "a") is not None) == (points > max(tolerance, 0.1) + 1e-9)


def test_where_it_is_off_it_says_so_in_words() -> None:
    made = composition({"target": {"coding": 46, "math": 54}, "accepted": {"coding": 77, "math": 23}})
    lines = composition_lines(made)
    assert "31.0 high" in "\n".join(lines)
    assert "31.0 low" in "\n".join(lines)
    assert verdict(made) == [
        "accepted: off target: coding is 31.0 points above, math is 31.0 points below (tolerance 0.5 points)."
    ]
    assert verdict(composition({"target": {"a": 2, "b": 2}, "accepted": {"a": 2, "b": 1}}))[0].endswith(
        "within 0.5 points, or one prompt, of its target."
    )


def test_a_build_in_tokens_is_held_to_its_tokens() -> None:
    stages = {"target": {"a": 10, "b": 30}, "selected": {"a": 10, "b": 30}, "accepted": {"a": 20, "b": 20}}
    made = composition(stages, unit="response_tokens", in_tokens=True)
    assert made.off("accepted", "a") == pytest.approx(25)
    assert made.amount("selected") is None
    assert "counted in response tokens" in " ".join(composition_lines(made))
    other = composition(stages, in_tokens=True)
    assert other.off("accepted", "a") is None
    assert verdict(other) == ["Its target counts prompts; these shares are not held to it."]


def test_before_answers_there_are_target_and_selection() -> None:
    made = composition({"target": {"a": 10}, "selected": {"a": 10}})
    lines = composition_lines(made)
    header = next(line for line in lines if line.startswith("category"))
    assert header.split() == ["category", "target", "selected"]
    assert composition_frame(made, made.stages, by_source=False).height == 2


def test_a_name_as_long_as_it_likes_keeps_its_line() -> None:
    made = composition({"target": {"漢字" * 40: 10}, "accepted": {"漢字" * 40: 10}})
    lines = composition_lines(made, by_source=True)
    assert all(cell_len(line) <= 80 for line in lines)
    assert sum("100.0%" in line for line in lines) == 2
