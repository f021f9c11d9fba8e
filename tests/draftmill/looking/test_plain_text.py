"""Text of anybody's in a terminal: no line is too wide, none steers it, and nothing is lost in silence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from draftmill.looking.plain_text import MARKS, MARKS_PER_CELL, clipped, folded, text_lines, unpiled

WIDTHS = st.integers(8, 90)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
odd = st.text(st.sampled_from("a \n\t\r\x1b\x00\u0301\u200d\u202e漢👩é\u2028"), max_size=300)


@given(texts | odd, WIDTHS, st.integers(0, 100))
def test_no_line_is_wider_than_asked_or_steers_the_terminal(text: str, width: int, chars: int) -> None:
    lines = list(text_lines(text, width, chars, "  "))
    body = lines[:-1] if chars and len(text) > chars else lines
    assert all(cell_len(line) <= width for line in body)
    assert all(line.isprintable() for line in lines)


@given(st.text(st.sampled_from("ab cd"), max_size=400), WIDTHS)
def test_folding_loses_nothing_but_the_space_at_a_break(line: str, width: int) -> None:
    assert "".join(folded(line, width)).replace(" ", "") == line.replace(" ", "")
    assert all(len(piece) <= width for piece in folded(line, width))


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc", "Zs"]), max_size=300), WIDTHS)
def test_one_long_word_is_all_there(word: str, width: int) -> None:
    assert "".join(folded(word, width)) == word


@given(texts, st.integers(0, 50))
def test_what_is_cut_is_counted(text: str, chars: int) -> None:
    shown, left = clipped(text, chars)
    assert len(shown) + left == len(text)
    assert chars == 0 or len(shown) <= chars


def test_words_stay_whole_and_code_keeps_its_indent() -> None:
    assert folded("    return the sum of all", 16) == ["    return the", "sum of all"]
    assert folded("é est là où", 6) == ["é est", "là où"]


def test_marks_do_not_pile_up() -> None:
    shown = unpiled("a" + "\u0301" * 50 + "b\u0301")
    assert shown.startswith("a" + "\u0301" * MARKS_PER_CELL + "\\u0301")
    assert shown.endswith("b\u0301")
    assert MARKS == ("Mn", "Me")


@pytest.mark.parametrize(("left", "said"), [(1, "… 1 more character"), (1234, "… 1,234 more characters")])
def test_how_much_is_left_is_said(left: int, said: str) -> None:
    assert list(text_lines("x" * (10 + left), 80, 10))[-1] == said
