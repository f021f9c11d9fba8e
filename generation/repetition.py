"""Has an answer run into a loop? Told from its token ids alone, so it holds for every language and for code.

A loop is one stretch of tokens that repeats a period *exactly*, back to back. Loops whose copies differ (a counter
that goes up) are not told: a table and an unrolled list look the same. A stretch must be long for its period, and how
long depends on the end: an answer that was cut off inside one is judged by its tail; one that ended by itself left
the stretch again or meant it, and is a loop only if nearly nothing else is in it. Pure; knows no tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]

MIN_TOKENS = 96
"""No stretch is shorter: a ruler, a row of zeros or some blank lines stay below."""
MIN_REPEATS = 8
"""Copies of a short period (a line of code, a row of a table), up to MANY_TOKENS in all."""
MANY_TOKENS = 256
MIN_LONG_REPEATS = 4
"""Copies of any period. No text says a whole paragraph four times on end; a refrain has verses between."""
CUT_SHARE = 1 / 16
"""Of a cut answer, the least part that its tail must be: a long program may be cut in its table of zeros."""
FINISHED_TOKENS = 256
FINISHED_FACTOR = 2
"""An answer that ended by itself must repeat so many times as often as one that was cut."""
FINISHED_SHARE = 3 / 4
"""Of a finished answer, the least part. With so little else in it a drafter learns nothing, whoever asked for it."""

_KEY = 64
_STEPS = (1, 3, 7, 15, 31, 63)


def is_repetition_loop(token_ids: Sequence[int] | Ids, *, finished: bool) -> bool:
    """True if the answer is a repetition loop.

    With n tokens, a stretch of period p counts as a loop from `needed(n, p, finished=…)` tokens on. If the answer was
    cut, the stretch must reach its last token; if it finished, it may lie anywhere.

    Args:
        token_ids: every generated token of one answer, reasoning and end token included.
        finished: the model ended it; False where max_tokens or max_model_len cut it.
    """
    n = len(token_ids)
    if n < (FINISHED_TOKENS if finished else MIN_TOKENS):
        return False
    ids = np.asarray(token_ids, dtype=np.int32)
    # A stretch of 3/4 of n, its first copy left out, covers all of [7/16 n, 3/4 n); so the _KEY tokens before
    # 3/4 n, or before the end of a cut answer, stand once more a period earlier.
    at = n * 3 // 4 if finished else n
    return any(_stretch(ids, period, at) >= needed(n, period, finished=finished) for period in _periods(ids, at))


def needed(tokens: int, period: int, *, finished: bool) -> int:
    """Tokens that a stretch of this period needs in an answer of so many tokens; never shrinks as the period grows."""
    least = max(MIN_TOKENS, min(MIN_REPEATS * period, MANY_TOKENS), MIN_LONG_REPEATS * period)
    if finished:
        return max(FINISHED_TOKENS, FINISHED_FACTOR * least, int(np.ceil(FINISHED_SHARE * tokens)))
    return max(least, int(np.ceil(CUT_SHARE * tokens)))


def _periods(ids: Ids, at: int) -> Iterator[int]:
    """Every period up to a MIN_LONG_REPEATS-th of the answer with which the _KEY tokens before `at` stand once more."""
    first = max(_KEY, at - ids.size // MIN_LONG_REPEATS)
    ends = np.flatnonzero(ids[first - 1 : at - 1] == ids[at - 1]) + (first - 1)
    for step in _STEPS:
        if not ends.size:
            return
        ends = ends[ids[ends - step] == ids[at - 1 - step]]
    key = ids[at - _KEY : at]
    for end in ends[::-1].tolist():
        if np.array_equal(ids[end - _KEY + 1 : end + 1], key):
            yield at - 1 - end


def _stretch(ids: Ids, period: int, at: int) -> int:
    """Tokens of the longest stretch of this period that holds token at - 1; past `at` too."""
    breaks = np.flatnonzero(ids[period:] != ids[:-period])
    own = int(np.searchsorted(breaks, at - 1 - period))
    first = int(breaks[own - 1]) + 1 if own else 0
    last = int(breaks[own]) if own < breaks.size else ids.size - period
    return last - first + period
