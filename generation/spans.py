"""Where in an answer the reasoning ends and the answer proper begins, by token ids.

Two half-open spans that cover every generated token: reasoning [0, k), its closing marker included, then the answer
[k, n), the token that ended the turn included. They are for people, checks and queries: the loss_mask covers both,
markers and end token too. k stands after the *last* closing marker, where chat templates cut an earlier turn when
they show it again. Pure; markers are taken from a tokenizer once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

PAIRS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<thinking>", "</thinking>"),
)
"""How models write where they think; the first pair that a model knows is its own."""

OPENED_WITHIN = 3
"""Tokens that may follow an opening marker at the end of a prompt: line breaks. After a user's own stands more."""


@dataclass(frozen=True)
class ThinkMarkers:
    """The markers of one model, as text and as token ids (one, or a sequence where it is no token of its own)."""

    open_text: str
    close_text: str
    open: tuple[int, ...]
    close: tuple[int, ...]


@dataclass(frozen=True)
class Spans:
    """Half-open spans of one answer's token ids. `reasoning` is None where it has none; else it starts at 0."""

    reasoning: tuple[int, int] | None
    answer: tuple[int, int]


def think_markers(tokenizer: Any, template: str) -> ThinkMarkers | None:
    """The markers of a model; None where it does not think.

    A model thinks if both markers of a pair are tokens of its own, or its chat template speaks of the closing one.
    Markers of several tokens are found where the model writes them as the tokenizer does when they stand alone.

    Args:
        tokenizer: a transformers tokenizer.
        template: the text of the chat template in use.
    """
    vocabulary = tokenizer.get_vocab()
    for pair in PAIRS:
        if all(marker in vocabulary for marker in pair):
            return ThinkMarkers(*pair, (vocabulary[pair[0]],), (vocabulary[pair[1]],))
    for pair in PAIRS:
        if pair[1] in template:
            opening, closing = (tuple(tokenizer.encode(marker, add_special_tokens=False)) for marker in pair)
            return ThinkMarkers(*pair, opening, closing)
    return None


def prompt_opens(prompt_token_ids: Sequence[int], markers: ThinkMarkers | None) -> bool:
    """True if the prompt ends inside a thinking block that its template opened.

    False after the empty block that templates write where thinking is off.
    """
    if markers is None:
        return False
    tail = list(prompt_token_ids[-(len(markers.open) + OPENED_WITHIN) :])
    opened = _last(tail, markers.open)
    return opened is not None and _last(tail[opened:], markers.close) is None


def answer_span(token_ids: Sequence[int], markers: ThinkMarkers | None, *, opened: bool = False) -> Spans:
    """Reasoning and answer of one answer.

    Several blocks, and the text between them, are all reasoning. A block that is never closed reaches to the end and
    leaves an empty answer. A closing marker without an opening one closes too: the prompt had opened, or the template
    would cut there all the same.

    Args:
        token_ids: every generated token.
        opened: the prompt ended inside a block (`prompt_opens`).
    """
    n = len(token_ids)
    if markers is None:
        return Spans(None, (0, n))
    ids = list(token_ids)
    closed = _last(ids, markers.close) or 0
    if (opened and not closed) or _last(ids[closed:] if closed else ids, markers.open) is not None:
        return Spans((0, n), (n, n))
    return Spans((0, closed) if closed else None, (closed, n))


def answer_text(
    text: str,
    token_ids: Sequence[int],
    spans: Spans,
    markers: ThinkMarkers | None,
    decode: Callable[[Sequence[int]], str],
) -> str:
    """The text of the answer span, without special tokens.

    Args:
        text: of all tokens, without special tokens.
        decode: token ids to text, without special tokens; asked only where the markers are special tokens themselves.
    """
    if markers is None or spans.reasoning is None:
        return text
    start, end = spans.answer
    if start == end:
        return ""
    _, found, after = text.rpartition(markers.close_text)
    return after if found else decode(token_ids[start:end])


def _last(ids: list[int], marker: tuple[int, ...]) -> int | None:
    """Where the last such marker ends."""
    at = len(ids)
    while marker[-1] in ids[:at]:
        at -= 1 + ids[:at][::-1].index(marker[-1])
        start = at + 1 - len(marker)
        if start >= 0 and tuple(ids[start : at + 1]) == marker:
            return at + 1
    return None
