from __future__ import annotations

from training.same_tokens import SameTokens, compare


def test_greedy_rows_are_compared_as_far_as_they_had_room() -> None:
    served = [[1, 2, 3], [1, 2], [], [9], [4, 5]]
    recorded = [[1, 2, 3], [1, 2, 7], [1], None, [4, 6]]
    assert compare("math", served, recorded, [3, 2, 0, 1, 2]) == SameTokens("math", same=2, rows=3)


def test_an_answer_that_goes_on_behind_the_recorded_one_is_another() -> None:
    assert compare("math", [[1, 2]], [[1]], [5]).same == 0


def test_it_says_so_in_one_line() -> None:
    line = SameTokens("code-other", 1_999, 2_000).line()
    assert line == "code-other: 1,999 of 2,000 greedy answers are the recorded ones, token for token"
