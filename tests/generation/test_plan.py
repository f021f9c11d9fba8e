"""Laws of the generation plan: what is done is never made again, what is left is exactly the rest."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from corpus.manifest import Manifest
from corpus.manifest_file import parse_manifest
from generation.plan import Answer, GenerationPlan, make_recipe, plan_generation

TARGET = {"model": "m", "revision": "r", "tokenizer": "t", "template": "p"}
CATEGORIES = ("coding", "math")


def manifest(**generation: Any) -> Manifest:
    body = {
        "name": "m",
        "mix": {"total": 10, "shares": dict.fromkeys(CATEGORIES, 1)},
        "sources": [{"name": name, "path": name, "category": name} for name in CATEGORIES],
        "target": {"model": "m"},
        "generation": generation,
    }
    return parse_manifest(json.dumps(body), "m")


def prompts(rows: list[tuple[str, int]]) -> pl.DataFrame:
    """(category, turns) of each prompt."""
    return pl.DataFrame(
        [
            {
                "prompt_id": hashlib.sha256(str(i).encode()).hexdigest()[:32], "category": category, "source": category,
                "replica": 0, "holdout": i % 7 == 0, "source_rank": i, "turns": turns,
            }
            for i, (category, turns) in enumerate(rows)
        ],
        schema={
            "prompt_id": pl.String, "category": pl.String, "source": pl.String, "holdout": pl.Boolean,
            "replica": pl.Int32, "source_rank": pl.Int64, "turns": pl.Int32,
        },
    )  # fmt: skip


def planned(rows: list[tuple[str, int]], done: dict[str, str] | None = None, **options: Any) -> GenerationPlan:
    limit = options.pop("limit", None)
    return plan_generation(manifest(**options), TARGET, "b", prompts(rows), done or {}, limit)


def left(plan: GenerationPlan) -> set[Answer]:
    return {answer for answers in plan.conversations for answer in answers}


tables = st.lists(st.tuples(st.sampled_from(CATEGORIES), st.integers(1, 4)), min_size=1, max_size=20)


@st.composite
def histories(draw: Any) -> tuple[list[tuple[str, int]], dict[str, str]]:
    """A build, and what an earlier run could have left of it: prefixes of turns, some of them rejected."""
    rows = draw(tables)
    done: dict[str, str] = {}
    for answers in planned(rows).conversations:
        finished = draw(st.integers(0, len(answers)))
        done |= {answer.response_id: "accepted" for answer in answers[:finished]}
        if finished < len(answers) and draw(st.booleans()):
            done |= {answer.response_id: "rejected" for answer in answers[finished:]}
    return rows, done


@given(histories())
def test_what_is_done_and_what_is_left_are_the_plan(drawn: tuple[list[tuple[str, int]], dict[str, str]]) -> None:
    rows, done = drawn
    whole, rest = planned(rows), planned(rows, done)
    assert rest.wanted == whole.wanted
    assert {answer.response_id for answer in left(rest)}.isdisjoint(done)
    assert {answer.response_id for answer in left(rest)} | set(done) == {a.response_id for a in whole.wanted}
    assert rest.accepted + rest.rejected + rest.to_make == len(rest.wanted)
    assert rest.accepted == list(done.values()).count("accepted")
    everything = planned(rows, done | {answer.response_id: "accepted" for answer in left(rest)})
    assert everything.conversations == ()


@given(tables)
def test_a_prompt_wants_one_answer_a_turn_and_no_two_are_one(rows: list[tuple[str, int]]) -> None:
    plan = planned(rows)
    assert len(plan.wanted) == sum(turns for _, turns in rows) == plan.to_make
    assert len({answer.response_id for answer in plan.wanted}) == len(plan.wanted)
    for answers in plan.conversations:
        assert [answer.turn for answer in answers] == list(range(len(answers)))
        assert len({answer.prompt_id for answer in answers}) == 1


@given(tables)
def test_after_a_rejected_turn_nothing_is_asked_and_everything_is_counted(rows: list[tuple[str, int]]) -> None:
    done = {answers[0].response_id: "rejected" for answers in planned(rows).conversations}
    plan = planned(rows, done)
    assert plan.conversations == ()
    assert plan.rejected == len(plan.wanted)


@given(tables, st.integers(1, 30))
def test_a_limit_keeps_the_shares_of_what_is_to_do(rows: list[tuple[str, int]], limit: int) -> None:
    whole, some = planned(rows), planned(rows, limit=limit)
    assert len(some.conversations) == min(limit, len(rows))
    assert some.wanted == whole.wanted
    assert set(some.conversations) <= set(whole.conversations)
    for category in CATEGORIES:
        of = [sum(a[0].category == category for a in plan.conversations) for plan in (whole, some)]
        assert abs(of[1] - len(some.conversations) * of[0] / len(whole.conversations)) <= 1
    if limit > 1:
        assert set(planned(rows, limit=limit - 1).conversations) <= set(some.conversations)


@given(st.floats(0, 1), st.floats(0, 1))
def test_which_prompts_think_is_decided_by_the_prompt_and_a_larger_share_is_a_superset(a: float, b: float) -> None:
    rows = [("coding", 1)] * 80
    thinking = []
    for share in sorted((a, b)):
        plan = planned(rows, thinking={"share": share})
        thinking.append({w.prompt_id for w in plan.wanted if plan.recipes[w.recipe_id].thinking})
    assert thinking[0] <= thinking[1]


def test_the_share_of_thinking_is_held_and_a_category_may_have_its_own() -> None:
    rows = [("coding", 1), ("math", 1)] * 2000
    plan = planned(rows, thinking={"share": 0.25}, by_category={"math": {"thinking_share": 1.0}})
    share = {
        category: sum(plan.recipes[w.recipe_id].thinking for w in plan.wanted if w.category == category) / 2000
        for category in CATEGORIES
    }
    assert abs(share["coding"] - 0.25) < 0.03
    assert share["math"] == 1.0


def test_recipes_part_where_an_answer_would_be_made_differently_and_nowhere_else() -> None:
    same = [make_recipe(manifest(), TARGET, category, False) for category in CATEGORIES]
    assert same[0].recipe_id == same[1].recipe_id
    own = manifest(by_category={"math": {"max_tokens": 7, "temperature": 0.0, "truncated": "drop"}})
    coding, math = (make_recipe(own, TARGET, category, False) for category in CATEGORIES)
    assert coding.recipe_id == same[0].recipe_id
    assert math.recipe_id != coding.recipe_id
    assert (math.max_tokens, math.sampling["temperature"], math.truncated) == (7, 0.0, "drop")
    only_policy = make_recipe(manifest(truncated="drop"), TARGET, "coding", False)
    assert only_policy.recipe_id == coding.recipe_id
    on = make_recipe(manifest(), TARGET, "coding", True)
    assert on.recipe_id != coding.recipe_id
    assert on.sampling["temperature"] == 0.6


def test_another_category_policy_makes_only_its_own_answers_again() -> None:
    rows = [("coding", 1), ("math", 2)] * 5
    before = planned(rows)
    done = {answer.response_id: "accepted" for answer in before.wanted}
    after = planned(rows, done, by_category={"math": {"max_tokens": 5}})
    assert {answer.category for answer in left(after)} == {"math"}
    assert len(left(after)) == 10


def test_a_plan_prints_what_it_will_do() -> None:
    plan = planned([("coding", 1), ("math", 2)])
    assert plan.lines()[0] == "3 answers wanted: 0 accepted, 0 rejected, 3 to make"
    assert [line.split() for line in plan.lines()[1:]] == [["coding", "1"], ["math", "2"]]
