"""The feed: every conversation once, in the order of its windows, with its own texts; conversations turn by turn."""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpus.records import Prompt
from corpus.token_ids import pack_ids
from generation import feed as feeding
from generation.conversation import Answer, Conversation
from generation.feed import Feed, conversations_of, turns_by_category
from generation.order import expected_tokens, feed_order

LEFT = {
    "prompt_id": pl.String, "replica": pl.Int32, "category": pl.String, "recipe_id": pl.String, "turn": pl.Int32,
    "response_id": pl.String, "recorded": pl.Boolean, "holdout": pl.Boolean,
}  # fmt: skip
BUDGETS = {"short": 8, "long": 4000}
NOTHING = pl.DataFrame(
    schema={"category": pl.String, "recipe_id": pl.String, "bucket": pl.Int32, "n": pl.Int64, "mean": pl.Float64}
)


class Left:
    """What a plan leaves: a drawn table of conversations, and the prompts that they are of."""

    def __init__(self, rows: list[tuple[int, int, str, bool, list[int], int | None]]) -> None:
        """(prompt, replica, recipe, recorded, turns, prefix_key) of each row of a build."""
        unique = {(prompt, replica): rest for prompt, replica, *rest in rows}
        answers = [
            (f"p{p}", r, f"c{p % 2}", recipe, turn, f"{p}/{r}/{turn}", recorded, p % 3 == 0)
            for (p, r), (recipe, recorded, turns, _) in unique.items()
            for turn in sorted(set(turns))
        ]
        self.left = pl.DataFrame(answers, schema=LEFT, orient="row")
        kept = [(f"p{p}", r, p, 1 + 97 * p % 500, key) for (p, r), (*_, key) in unique.items()]
        schema = {"prompt_id": pl.String, "replica": pl.Int32, "row": pl.UInt32, "prompt_chars": pl.Int64}
        self.prompts = pl.DataFrame(kept, schema={**schema, "prefix_key": pl.UInt64}, orient="row")
        self.conversations = conversations_of(self.left, self.prompts)


def texts(folder: Path, count: int) -> Path:
    """prompts.parquet of `count` prompts; each says its number."""
    path = folder / "prompts.parquet"
    messages = [json.dumps([{"content": f"question {i}", "role": "user"}] * 9) for i in range(count)]
    pl.DataFrame({"messages": messages, "tools": [None] * count}, schema_overrides={"tools": pl.String}).write_parquet(
        path
    )
    return path


rows = st.lists(
    st.tuples(
        st.integers(0, 15), st.integers(0, 2), st.sampled_from(["short", "long"]), st.booleans(),
        st.lists(st.integers(0, 4), min_size=1, max_size=3), st.sampled_from([None, None, 1, 2]),
    ),
    min_size=1, max_size=40,
)  # fmt: skip


@given(rows)
def test_a_conversation_is_the_missing_turns_of_a_prompt_or_one_turn_where_the_history_is_recorded(drawn: Any) -> None:
    made = Left(drawn)
    one = made.conversations
    answers = one.explode("response_ids", "recipe_ids", "turns")
    assert sorted(answers["response_ids"]) == sorted(made.left["response_id"])
    assert one["turns_left"].to_list() == [len(ids) for ids in one["response_ids"]]
    assert all(len(ids) == 1 for ids in one.filter("recorded")["response_ids"])
    whole = one.filter(~pl.col("recorded"))
    assert whole.select("prompt_id", "replica").n_unique() == whole.height
    assert all(list(turns) == sorted(turns) for turns in one["turns"])
    counts = made.left.group_by("category").len().sort("category")
    assert turns_by_category(one) == dict(counts.iter_rows())


def plain_order(conversations: pl.DataFrame, window: int) -> list[str]:
    """First answers in the order of the feed: the best of what is left, a window at a time."""
    order = []
    while conversations.height:
        expected = expected_tokens(conversations, NOTHING, BUDGETS)
        ranked = conversations[feed_order(conversations.select("prefix_key").with_columns(expected_tokens=expected))]
        order += [ids[0] for ids in ranked.head(window)["response_ids"]]
        conversations = ranked.slice(window)
    return order


@settings(max_examples=40)
@given(rows, st.sampled_from([4, 8, 1000]), st.integers(1, 9))
def test_every_conversation_comes_once_in_the_order_of_its_window_with_its_own_text(
    drawn: Any, window: int, most: int
) -> None:
    made = Left(drawn)
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setattr(feeding, "WINDOW", window)
        feed = Feed(texts(Path(folder), 16), BUDGETS, lambda: NOTHING, lambda _: {})
        feed.add(made.conversations)
        assert feed.turns == turns_by_category(made.conversations)
        assert len(feed) == made.conversations.height
        taken: list[Conversation] = []
        while len(feed):
            if feed.low:
                feed.read()
            assert len(feed) == made.conversations.height - len(taken)
            taken += feed.take(most)
    assert feed.take(1) == []
    assert feed.turns == {}
    assert sorted(a.response_id for one in taken for a in one.answers) == sorted(made.left["response_id"])
    weights = [one.weight for one in taken]
    assert weights == sorted(weights, reverse=True)
    assert len(set(weights)) == len(weights)
    for one in taken:
        first = one.answers[0]
        assert one.prompt.messages[0]["content"] == f"question {first.prompt_id[1:]}"
        assert one.category == first.category
        assert one.said == {}
    assert [one.answers[0].response_id for one in taken] == plain_order(made.conversations, window)


def test_the_next_window_is_ordered_by_what_was_measured_until_then(tmp_path: Path) -> None:
    drawn: Any = [(p, 0, "short" if p % 2 else "long", False, [0], None) for p in range(16)]
    measured = [NOTHING]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(feeding, "WINDOW", 4)
        feed = Feed(texts(tmp_path, 16), BUDGETS, lambda: measured[0], lambda _: {})
        feed.add(Left(drawn).conversations)
        feed.read()
        assert {one.answers[0].recipe_id for one in feed.take(4)} == {"long"}
        # it turns out that the recipe with the small budget has the long answers
        measured[0] = pl.DataFrame(
            [(category, recipe, 5, 10**6, mean) for category in ("c0", "c1") for recipe, mean in
             (("short", 7.0), ("long", 2.0))], schema=NOTHING.schema, orient="row",
        )  # fmt: skip
        feed.read()
        assert {one.answers[0].recipe_id for one in feed.take(4)} == {"short"}


def test_more_may_be_added_before_and_after_all_was_read(tmp_path: Path) -> None:
    parts: list[Any] = [[(p, 0, "short", False, [0, 1], None)] for p in range(3)]
    feed = Feed(texts(tmp_path, 3), BUDGETS, lambda: NOTHING, lambda _: {})
    feed.read()
    assert not len(feed)
    for number, part in enumerate(parts):
        feed.add(Left(part).conversations)
        if number:
            assert feed.low
            feed.read()
    assert [one.answers[0].prompt_id for one in feed.take(9)] == ["p0", "p1", "p2"]


# turn by turn


def conversation(turns: list[int], said: dict[int, str], recorded: bool = False) -> Conversation:
    users = [{"role": "user", "content": f"q{i}"} for i in range(4)]
    middle = [{"role": "assistant", "content": f"old {i}"} for i in range(3)]
    shown = [m for pair in zip(users, middle, strict=False) for m in pair] + users[3:]
    prompt = Prompt(tuple(shown if recorded else users))
    return Conversation(prompt, deque(Answer(f"r{t}", "p", "recipe", 0, t, "coding") for t in turns), dict(said))


def contents(one: Conversation) -> list[str]:
    return [message["content"] for message in one.context()]


def test_each_turn_is_shown_what_was_said_before() -> None:
    one = conversation([0, 1, 2, 3], {})
    for turn in range(4):
        assert contents(one) == [text for t in range(turn) for text in (f"q{t}", f"a{t}")] + [f"q{turn}"]
        one.rendered(pack_ids([turn]))
        one.accepted(f"a{turn}", pack_ids([9]))
    assert not one.answers


def test_a_recorded_turn_is_shown_what_the_source_says() -> None:
    one = conversation([2], {}, recorded=True)
    assert contents(one) == ["q0", "old 0", "q1", "old 1", "q2"]


def test_where_a_turn_in_the_middle_was_lost_it_is_asked_and_the_others_stay() -> None:
    one = conversation([1, 3], {0: "a0", 2: "a2"})
    assert contents(one) == ["q0", "a0", "q1"]
    one.rendered(pack_ids([1, 2]))
    assert one.extends_turn is None  # what turn 0 was asked with is not known here
    one.accepted("new", pack_ids([3]))
    assert contents(one) == ["q0", "a0", "q1", "new", "q2", "a2", "q3"]
    one.rendered(pack_ids([1, 2, 3, 4]))
    assert one.extends_turn == 1


@given(st.lists(st.integers(0, 9), min_size=1), st.lists(st.integers(0, 9), min_size=1), st.lists(st.integers(0, 9)))
def test_a_turn_extends_the_one_before_exactly_where_it_begins_with_its_tokens(
    prompt: list[int], answer: list[int], later: list[int]
) -> None:
    for following in (prompt + answer + later, prompt + later, later):
        one = conversation([0, 1], {})
        one.rendered(pack_ids(prompt))
        assert one.extends_turn is None
        one.accepted("a", pack_ids(answer))
        one.rendered(pack_ids(following))
        begins = following[: len(prompt) + len(answer)] == prompt + answer
        assert one.extends_turn == (0 if begins else None)
