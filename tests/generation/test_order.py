"""The order of work: estimates that fall back, keys cut out of JSON, and the laws of the order."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpus.canonical import canonical_json
from generation import order
from generation.order import (
    GROUP_CAP,
    PREFIX_BYTES,
    PRIOR_SHARE,
    SHRINK,
    bucket_of,
    expected_tokens,
    feed_order,
    prefix_keys,
)

MEASURED = {"category": pl.String, "recipe_id": pl.String, "bucket": pl.Int32, "n": pl.Int64, "mean": pl.Float64}
ROWS = {"category": pl.String, "recipe_id": pl.String, "prompt_chars": pl.Int64, "turns_left": pl.Int32}
FEED = {"expected_tokens": pl.Float64, "prefix_key": pl.String}

# expected tokens


def expected(rows: list[tuple[str, str, int, int]], measured: list[tuple[str, str, int, int, float]]) -> list[float]:
    budgets = {"r": 1000, "s": 400}
    found = expected_tokens(
        pl.DataFrame(rows, schema=ROWS, orient="row"), pl.DataFrame(measured, schema=MEASURED, orient="row"), budgets
    )
    assert found.dtype == pl.Float64
    return found.to_list()


def test_bucket_is_the_exponent() -> None:
    chars = [0, 1, 2, 3, 4, 1023, 1024, 2**40 - 1, 2**40]
    assert bucket_of(pl.Series(chars)).to_list() == [0, 0, 1, 1, 2, 9, 10, 39, 40]


def test_nothing_measured_is_the_prior() -> None:
    assert expected([("math", "r", 10, 1), ("math", "s", 10, 3)], []) == [1000 * PRIOR_SHARE, 3 * 400 * PRIOR_SHARE]


def test_levels_fall_back() -> None:
    measured = [("math", "r", 3, 96, 800.0), ("math", "r", 5, 32, 400.0), ("agent", "r", 3, 64, 100.0)]
    by_recipe = (96 * 800 + 32 * 400 + 64 * 100 + SHRINK * 250) / (192 + SHRINK)
    by_category = (96 * 800 + 32 * 400 + SHRINK * by_recipe) / (128 + SHRINK)
    in_bucket = (32 * 400 + SHRINK * by_category) / (32 + SHRINK)
    rows = [("math", "r", 40, 1), ("math", "r", 4000, 2), ("coding", "r", 40, 1), ("math", "s", 40, 1)]
    assert expected(rows, measured) == pytest.approx([in_bucket, 2 * by_category, by_recipe, 400 * PRIOR_SHARE])


def test_much_measured_is_its_mean() -> None:
    (found,) = expected([("math", "r", 8, 1)], [("math", "r", 3, 10**9, 77.0), ("math", "r", 3, 10**9, 79.0)])
    assert found == pytest.approx(78.0, rel=1e-6)


kinds = st.tuples(st.sampled_from("ab"), st.sampled_from("rs"), st.integers(0, 300), st.integers(1, 4))
means = st.tuples(
    st.sampled_from("ab"), st.sampled_from("rs"), st.integers(0, 9), st.integers(0, 500), st.floats(1, 5000)
)


@given(st.lists(kinds, max_size=30), st.lists(means, max_size=30), st.randoms(use_true_random=False))
def test_expected_laws(
    rows: list[tuple[str, str, int, int]], measured: list[tuple[str, str, int, int, float]], chance: Any
) -> None:
    found = expected(rows, measured)
    assert len(found) == len(rows)
    for (_, recipe, _, turns), tokens in zip(rows, found, strict=True):
        seen = [mean for _, r, _, n, mean in measured if r == recipe and n]
        seen.append(PRIOR_SHARE * {"r": 1000, "s": 400}[recipe])
        assert min(seen) * (1 - 1e-9) <= tokens / turns <= max(seen) * (1 + 1e-9)
    places = list(range(len(rows)))
    chance.shuffle(places)
    chance.shuffle(measured)
    shuffled = expected([rows[place] for place in places], measured)
    assert shuffled == pytest.approx([found[place] for place in places], rel=1e-9)


def test_expected_refusals() -> None:
    with pytest.raises(ValueError, match="recipe x has rows and no budget"):
        expected([("math", "x", 1, 1)], [])
    with pytest.raises(ValueError, match="prompt_chars is null in 1 of 1 rows"):
        expected([("math", "r", None, 1)], [])  # type: ignore[list-item]


# prefix keys

LONG = "x" * PREFIX_BYTES
Row = tuple[list[dict[str, Any]], list[dict[str, Any]]]


def keys(*rows: Row) -> list[int | None]:
    messages = pl.Series([canonical_json(shown) for shown, _ in rows], dtype=pl.String)
    tools = pl.Series([canonical_json(offered) if offered else None for _, offered in rows], dtype=pl.String)
    found = prefix_keys(messages, tools)
    assert found.dtype == pl.UInt64
    return found.to_list()


def chat(system: Any, user: str = "hi", tools: list[dict[str, Any]] | None = None) -> Row:
    leading = [] if system is None else [{"role": "system", "content": system}]
    return [*leading, {"role": "user", "content": user}], tools or []


def test_rows_that_share_a_long_prefix() -> None:
    tools = [{"name": LONG}]
    first, second, other, short, with_tools, only_tools, again = keys(
        chat(LONG, "a"),
        chat(LONG, "b"),
        chat(LONG + "y"),
        chat("short"),
        chat(LONG, "a", tools),
        chat(None, "a", tools),
        chat(None, "b", tools),
    )
    assert first == second is not None
    assert other is None, "nobody shares it"
    assert short is None
    assert with_tools is None, "the same system message, but other tools"
    assert only_tools == again is not None
    assert only_tools != first


def test_a_long_question_is_no_prefix() -> None:
    assert keys(chat(None, LONG), chat(None, LONG), chat("short", LONG), chat("short", LONG)) == [None] * 4


def test_system_and_tools_count_together() -> None:
    half = "x" * (PREFIX_BYTES // 2)
    assert keys(chat(half), chat(half)) == [None, None]
    one, two = keys(chat(half, "a", [{"name": half}]), chat(half, "b", [{"name": half}]))
    assert one == two is not None


def test_the_least_length() -> None:
    assert keys(chat(LONG[1:], "a"), chat(LONG[1:], "b")) == [None, None]
    assert None not in keys(chat(LONG, "a"), chat(LONG, "b"))
    wide = "é" * (PREFIX_BYTES // 2)  # bytes count, and the cut is at bytes
    first, second, other = keys(chat(wide, "a"), chat(wide, "b"), chat(wide[1:] + "ee", "b"))
    assert first == second is not None
    assert other is None
    assert None not in keys(chat(None, "a", [{"name": wide}]), chat(None, "b", [{"name": wide}]))


def test_what_is_not_recognised_has_no_key() -> None:
    parts = [{"type": "text", "text": LONG}]
    rows = [chat(parts, "a", [{"name": LONG}]), chat(parts, "b", [{"name": LONG}])]
    assert keys(*rows) == [None, None]
    null = {"role": "assistant", "content": None, "tool_calls": [{"id": LONG}]}
    assert keys(([null, {"role": "user", "content": "a"}], []), ([null, {"role": "user", "content": "b"}], [])) == [
        None,
        None,
    ]


def test_a_later_system_message_is_no_prefix() -> None:
    later = [{"role": "user", "content": "a"}, {"role": "system", "content": LONG}]
    assert keys((later, []), (later, [])) == [None, None]


text = st.text(alphabet=st.sampled_from('"\\,:{}[]rolesyt \né'), max_size=30) | st.sampled_from(
    ['","role":"system"}', '\\","role":"system"', '"', "\\", '","role":"user"},{"content":"']
)
messages_of = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user"]), "content": text}), min_size=1, max_size=3
)
tools_of = st.sampled_from([[], [{"name": "f"}], [{"name": "g", "description": '","role":"system"'}]])


@given(st.lists(st.tuples(messages_of, tools_of), max_size=12))
def test_keys_are_those_of_parsed_json(rows: list[Row]) -> None:
    """Whatever texts hold, the cut is where a JSON parser has it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order, "PREFIX_BYTES", 1)
        found = keys(*rows)

    def prefix(row: Row) -> tuple[str, str] | None:
        shown, offered = row
        system = shown[0]["content"] if shown[0]["role"] == "system" else ""
        return (system, canonical_json(offered)) if system or offered else None

    wanted = [prefix(row) for row in rows]
    alike: dict[Any, set[int]] = defaultdict(set)
    for place, key in enumerate(wanted):
        if key is not None and wanted.count(key) > 1:
            alike[key].add(place)
    by_key: dict[int, set[int]] = defaultdict(set)
    for place, number in enumerate(found):
        if number is not None:
            by_key[number].add(place)
    assert sorted(map(sorted, by_key.values())) == sorted(map(sorted, alike.values()))


# feed order

feeds = st.lists(st.tuples(st.integers(0, 12).map(float), st.none() | st.sampled_from("abcd")), min_size=1, max_size=60)


def feed(rows: list[tuple[float, str | None]], cap: int = GROUP_CAP) -> list[int]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order, "GROUP_CAP", cap)
        return feed_order(pl.DataFrame(rows, schema=FEED, orient="row")).to_list()


def longest_first(rows: list[tuple[float, str | None]]) -> list[int]:
    return sorted(range(len(rows)), key=lambda place: (-rows[place][0], place))


def chunks_of(rows: list[tuple[float, str | None]], cap: int) -> list[list[int]]:
    """Of each group, its rows by length in as few parts as the cap allows, sizes differing by one at most."""
    groups: dict[Any, list[int]] = {}
    for place in longest_first(rows):
        groups.setdefault(("alone", place) if rows[place][1] is None else rows[place][1], []).append(place)
    made = []
    for group in groups.values():
        parts = -(-len(group) // cap)
        bounds = [-(-part * len(group) // parts) for part in range(parts + 1)]
        made += [group[a:b] for a, b in pairwise(bounds)]
    return made


@given(feeds, st.integers(1, 9))
def test_feed_is_the_chunks_by_their_longest(rows: list[tuple[float, str | None]], cap: int) -> None:
    found = feed(rows, cap)
    assert sorted(found) == list(range(len(rows)))
    plain = longest_first(rows)
    chunks = sorted(chunks_of(rows, cap), key=lambda chunk: plain.index(chunk[0]))
    assert found == [place for chunk in chunks for place in chunk]
    assert all(len(chunk) <= cap for chunk in chunks)
    heads = [rows[chunk[0]][0] for chunk in chunks]
    assert heads == sorted(heads, reverse=True), "after any row, no chunk begins with a longer one"


@given(feeds, st.integers(1, 9))
def test_how_late_a_row_can_be(rows: list[tuple[float, str | None]], cap: int) -> None:
    found, plain = feed(rows, cap), longest_first(rows)
    groups = {key for _, key in rows if key is not None}
    for place, (_, key) in enumerate(rows):
        assert found.index(place) - plain.index(place) <= len(groups - {key}) * (cap - 1)


@given(feeds)
def test_without_groups_or_with_one_for_all(rows: list[tuple[float, str | None]]) -> None:
    plain = longest_first(rows)
    assert feed([(tokens, None) for tokens, _ in rows]) == plain
    assert feed([(tokens, "all") for tokens, _ in rows]) == plain
    assert feed(rows, cap=1) == plain
    assert feed([(tokens, str(place)) for place, (tokens, _) in enumerate(rows)]) == plain


def test_a_group_stands_where_its_longest_row_does() -> None:
    rows = [(5.0, None), (1.0, "a"), (9.0, "b"), (7.0, "a"), (1.0, "a"), (6.0, None), (7.0, None)]
    assert feed(rows) == [2, 3, 1, 4, 6, 5, 0]


def test_a_group_over_the_cap_is_cut() -> None:
    rows = [(float(1000 - place), "a" if place % 2 else None) for place in range(20)]
    found = feed(rows, cap=4)
    together = [place for place in found if place % 2]
    assert together == sorted(together)
    assert [found.index(place) for place in (1, 3, 5, 7)] == [1, 2, 3, 4]
    assert found.index(9) > found.index(8), "the next chunk waits for its own place"


def test_feed_refusals() -> None:
    with pytest.raises(ValueError, match="expected_tokens is null in 1 of 1 rows"):
        feed([(None, "a")])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="not finite"):
        feed([(float("nan"), "a")])


def test_nothing_to_do() -> None:
    assert feed([]) == []
    assert keys() == []
    assert expected([], []) == []
