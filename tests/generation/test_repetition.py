"""Loops are found where they are, and legitimate repetition is left alone."""

from __future__ import annotations

import re
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from generation.repetition import (
    CUT_SHARE,
    FINISHED_SHARE,
    MIN_LONG_REPEATS,
    MIN_TOKENS,
    is_repetition_loop,
    needed,
)

DISTINCT = range(100_000, 200_000)
EOS = 2


def reference(ids: list[int], *, finished: bool) -> bool:
    """Every period and every stretch, token by token."""
    n = len(ids)
    for period in range(1, n // 2 + 1):
        length = 0
        for i in range(n):
            length = length + 1 if i >= period and ids[i] == ids[i - period] else 0
            at_end = finished or i == n - 1
            if length and at_end and length + period >= needed(n, period, finished=finished):
                return True
    return False


@st.composite
def answers(draw: st.DrawFn) -> list[int]:
    """Something, then a period some times over (once broken, perhaps), then something."""
    period = draw(st.lists(st.integers(0, 3), min_size=1, max_size=70))
    looped = (period * 700)[: draw(st.integers(1, 300) | st.integers(250, 700))]
    if draw(st.booleans()):
        looped[draw(st.integers(0, len(looped) - 1))] = 9
    before = list(DISTINCT[: draw(st.just(0) | st.integers(0, 200))])
    after = list(DISTINCT[1000 : 1000 + draw(st.integers(0, 130))])
    return before + looped + draw(st.sampled_from([[], after]))


@given(answers(), st.booleans())
def test_the_fast_way_is_the_reference(ids: list[int], finished: bool) -> None:
    assert is_repetition_loop(ids, finished=finished) == reference(ids, finished=finished)


@given(st.integers(1, 200), st.integers(0, 500), st.integers(0, 2**32 - 1))
def test_a_planted_loop_is_found(period: int, before: int, seed: int) -> None:
    """A cut answer that ends in a loop, wherever within the period it was cut."""
    unit = np.random.default_rng(seed).integers(0, 50_000, period)
    length = needed(before, period, finished=False) * 2 + seed % period
    ids = np.concatenate([np.array(DISTINCT[:before], dtype=np.int64), np.resize(unit, length)]).astype(np.int32)
    assert is_repetition_loop(ids, finished=False)
    assert is_repetition_loop(ids.tolist(), finished=False)


@given(st.lists(st.integers(0, 40), max_size=600), st.booleans())
def test_random_ids_are_none(ids: list[int], finished: bool) -> None:
    noise = np.random.default_rng(len(ids)).integers(0, 40, 400).tolist()
    assert not is_repetition_loop(ids + noise, finished=finished)


@given(st.integers(1, 300), st.integers(0, 5000), st.booleans())
def test_what_is_needed_grows(period: int, tokens: int, finished: bool) -> None:
    need = needed(tokens, period, finished=finished)
    assert need <= needed(tokens, period + 1, finished=finished)
    assert need >= max(MIN_TOKENS, MIN_LONG_REPEATS * period)
    assert need >= tokens * (FINISHED_SHARE if finished else CUT_SHARE)


def test_a_loop_that_was_left_again() -> None:
    """It ended by itself: a loop only if nearly nothing else is in it."""
    loop = [7, 8, 9] * 200
    assert is_repetition_loop([*DISTINCT[:99], *loop, *DISTINCT[200:300], EOS], finished=True)
    assert not is_repetition_loop([*DISTINCT[:400], *loop, EOS], finished=True)
    assert not is_repetition_loop([*DISTINCT[:100], *loop, *DISTINCT[200:300]], finished=False)


def rows(count: int, row: str) -> str:
    return "\n".join([row] * count)


LEGITIMATE = {
    "ruler": "Title\n" + "-" * 80 + "\nText\n" + "=" * 80,
    "zeros": "Here is the grid:\n" + str([[0] * 8 for _ in range(8)]),
    "table of equal rows": "| a | b |\n|---|---|\n" + rows(7, "| 1 | 2 | 3 | 4 |"),
    "objects": "[" + ", ".join(['{"name": "x", "value": null}'] * 7) + "]",
    "numbers": ", ".join(map(str, range(300))),
    "rows with numbers": "\n".join(f"| {i} | {i * i} | yes |" for i in range(80)),
    "unrolled": "\n".join(f"a[{i}] = 0;" for i in range(100)),
    "refrain": ("One verse about {} and the sea\nAnd so we sing, and so we sing, all day\n" * 3).format(*"abc"),
    "blank lines": "a" + "\n" * 50 + "b",
    "hello": "hello " * 60,
}


@pytest.mark.parametrize("name", LEGITIMATE)
@pytest.mark.parametrize("finished", [True, False])
def test_legitimate_repetition(name: str, finished: bool) -> None:
    assert not is_repetition_loop(tokens(LEGITIMATE[name]), finished=finished)


@pytest.mark.parametrize(
    "unit",
    [
        " I am sorry, but I cannot answer that question.",
        " the",
        "def f():\n    return 1\n\n",
        "\n",
        " A long paragraph that says that it says what it says, and goes on about it. Then again it says it.",
    ],
)
def test_what_small_models_do(unit: str) -> None:
    length = len(tokens(unit))
    ids = tokens("Sure! The answer is:\n" + unit * (2 * needed(0, length, finished=True) // length))
    assert is_repetition_loop(ids, finished=False)
    assert is_repetition_loop([*ids, EOS], finished=True)


def tokens(text: str) -> list[int]:
    """Words with their space, single digits, signs; runs of one sign by sixteen: about what tokenizers do."""
    pieces = (match.group() for match in re.finditer(r" ?[A-Za-z]+|\d|([^\w\s])\1{0,15}|\s", text))
    return [zlib.crc32(piece.encode()) >> 1 for piece in pieces]
