from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.tree import accepted_depth, best_prefixes

SLOTS = st.lists(
    st.lists(st.floats(0.01, 1.0), min_size=1, max_size=4).map(lambda ps: sorted(map(math.log, ps), reverse=True)),
    min_size=1,
    max_size=4,
)


def all_prefixes(log_probs: list[list[float]]) -> list[tuple[float, tuple[int, ...]]]:
    """Every prefix with its log-probability, best first: what a heap must find, written out."""
    found = []
    for depth in range(1, len(log_probs) + 1):
        for ranks in itertools.product(*(range(len(slot)) for slot in log_probs[:depth])):
            found.append((sum(log_probs[slot][rank] for slot, rank in enumerate(ranks)), ranks))
    return sorted(found, key=lambda one: -one[0])


@given(SLOTS, st.integers(1, 40))
def test_the_most_probable_prefixes_are_found_and_their_parents_with_them(
    log_probs: list[list[float]], size: int
) -> None:
    every = all_prefixes(log_probs)
    found = best_prefixes(log_probs, size)
    assert len(found) == len(set(found)) == min(size, len(every))
    sums = [sum(log_probs[slot][rank] for slot, rank in enumerate(ranks)) for ranks in found]
    assert sums == pytest.approx([one[0] for one in every[: len(found)]])
    for ranks in found:  # a tree: a prefix without its parent could not be verified
        assert len(ranks) == 1 or ranks[:-1] in found


@given(SLOTS, st.data())
def test_a_larger_tree_holds_the_smaller_one(log_probs: list[list[float]], data: st.DataObject) -> None:
    small, large = sorted(data.draw(st.lists(st.integers(1, 30), min_size=2, max_size=2)))
    assert best_prefixes(log_probs, large)[:small] == best_prefixes(log_probs, small)


def test_depth_is_the_answers_path_in_the_tree() -> None:
    logs = [[math.log(0.6), math.log(0.4)], [math.log(0.9), math.log(0.1)]]
    tokens = [[5, 7], [8, 9]]
    # by probability: 5 (.6), 5 8 (.54), 7 (.4), 7 8 (.36), 5 9 (.06), 7 9 (.04)
    assert accepted_depth(logs, tokens, [7, 8, 1], 3) == (1, False)
    assert accepted_depth(logs, tokens, [7, 8, 1], 4) == (2, False)
    assert accepted_depth(logs, tokens, [5, 9, 1], 4) == (1, False)
    assert accepted_depth(logs, tokens, [5], 4) == (1, True)  # all that is known matched, and there is a slot left
    assert accepted_depth(logs, tokens, [6], 4) == (0, False)
    assert accepted_depth(logs, tokens, [], 4) == (0, True)
