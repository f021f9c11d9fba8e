"""Spans cover every token once, and fall where templates cut."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from generation.spans import Spans, ThinkMarkers, answer_span, answer_text, prompt_opens, think_markers

O, C, END = 90, 91, 2  # noqa: E741
SINGLE = ThinkMarkers("<think>", "</think>", (O,), (C,))
SEVERAL = ThinkMarkers("<think>", "</think>", (5, 6, 7), (5, 8, 7))


@pytest.mark.parametrize(
    ("ids", "opened", "reasoning", "answer"),
    [
        ([1, 1, END], False, None, (0, 3)),
        ([O, 1, C, 3, END], False, (0, 3), (3, 5)),
        ([1, C, 3, END], True, (0, 2), (2, 4)),
        ([1, C, 3, END], False, (0, 2), (2, 4)),  # the template would cut there too
        ([O, 1, 1], False, (0, 3), (3, 3)),
        ([1, 1, END], True, (0, 3), (3, 3)),
        ([O, 1, C, 3, O, 1, C, 4, END], False, (0, 7), (7, 9)),
        ([O, 1, C, 3, O, 1], False, (0, 6), (6, 6)),
        ([O, C], False, (0, 2), (2, 2)),
        ([], False, None, (0, 0)),
        ([], True, (0, 0), (0, 0)),
    ],
)
def test_spans(ids: list[int], opened: bool, reasoning: tuple[int, int] | None, answer: tuple[int, int]) -> None:
    assert answer_span(ids, SINGLE, opened=opened) == Spans(reasoning, answer)


@given(
    st.lists(st.sampled_from([1, 5, 6, 7, 8, O, C, END]), max_size=30),
    st.booleans(),
    st.sampled_from([None, SINGLE, SEVERAL]),
)
def test_spans_cover_every_token_once(ids: list[int], opened: bool, markers: ThinkMarkers | None) -> None:
    spans = answer_span(ids, markers, opened=opened)
    start, end = spans.reasoning or (0, 0)
    assert (start, end, spans.answer[1]) == (0, spans.answer[0], len(ids))
    if markers:
        width = len(markers.close)
        said = ids[slice(*spans.answer)]
        for marker in (markers.open, markers.close):
            assert all(tuple(said[i : i + len(marker)]) != marker for i in range(len(said)))
        if spans.reasoning and end < len(ids):
            assert tuple(ids[end - width : end]) == markers.close
    else:
        assert spans.reasoning is None


@given(st.lists(st.sampled_from([1, O, C, END]), max_size=20), st.booleans())
def test_markers_of_several_tokens_cut_where_single_ones_do(ids: list[int], opened: bool) -> None:
    written = [(SEVERAL.open if i == O else SEVERAL.close if i == C else (i,)) for i in ids]
    spans = answer_span([i for piece in written for i in piece], SEVERAL, opened=opened)
    at = answer_span(ids, SINGLE, opened=opened).answer[0]
    assert spans.answer[0] == sum(map(len, written[:at]))


@pytest.mark.parametrize(
    ("prompt", "opened"),
    [
        ([10, 11, O, 12], True),
        ([10, 11, O], True),
        ([10, 11, O, 12, C, 12], False),  # thinking is off
        ([10, O, 20, 21, 22, 23, 24], False),  # a user wrote it
        ([10, 11], False),
        ([], False),
    ],
)
def test_whether_a_prompt_has_opened(prompt: list[int], opened: bool) -> None:
    assert prompt_opens(prompt, SINGLE) is opened
    assert prompt_opens(prompt, None) is False
    several = [i for j in prompt for i in (SEVERAL.open if j == O else SEVERAL.close if j == C else (j,))]
    assert prompt_opens(several, SEVERAL) is opened


class Tokenizer:
    """A character a token, and tokens of its own."""

    def __init__(self, *own: str) -> None:
        self.own = {token: 1000 + i for i, token in enumerate(own)}

    def get_vocab(self) -> dict[str, int]:
        return self.own

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        return [ord(c) for c in text]


def test_markers_of_a_tokenizer() -> None:
    assert think_markers(Tokenizer("<think>", "</think>"), "") == ThinkMarkers("<think>", "</think>", (1000,), (1001,))
    mistral = think_markers(Tokenizer("[THINK]", "[/THINK]"), "content.split('</think>')")
    assert mistral == ThinkMarkers("[THINK]", "[/THINK]", (1000,), (1001,))
    assert think_markers(Tokenizer("<think>"), "{{ messages }}") is None
    written = think_markers(Tokenizer(), "content.split('</think>')")
    assert written is not None
    assert written.close == tuple(map(ord, "</think>"))


def decode(ids: Sequence[int]) -> str:
    return f"decoded {list(ids)}"


@pytest.mark.parametrize(
    ("text", "ids", "markers", "answer"),
    [
        ("all", [1, END], SINGLE, "all"),
        ("all", [1, END], None, "all"),
        ("<think>a</think>\n\nb", [O, 1, C, 3, END], SINGLE, "\n\nb"),
        ("a</think>b</think>c", [1, C, 1, C, 3], SINGLE, "c"),
        ("<think>a", [O, 1], SINGLE, ""),
        ("ab", [O, 1, C, 3, END], SINGLE, "decoded [3, 2]"),  # the markers are special tokens: not in the text
    ],
)
def test_the_text_of_the_answer(text: str, ids: list[int], markers: ThinkMarkers | None, answer: str) -> None:
    assert answer_text(text, ids, answer_span(ids, markers), markers, decode) == answer
