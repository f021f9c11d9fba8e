"""Laws of the generation plan: what is done is never made again, what is left is exactly the rest.

Every plan is held to tests/generation/plain_plan.py, the same as loops over prompts and turns.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from corpus.manifest import Manifest
from corpus.manifest_file import parse_manifest
from generation.plan import GenerationPlan, make_recipe, plan_generation, policy_of
from tests.generation.plain_plan import (
    CHECKS,
    EARLIER,
    Done,
    Ended,
    Finished,
    done_frame,
    finished_frame,
    plain_plan,
    same,
)

TARGET = {"model": "m", "revision": "r", "tokenizer": "t", "template": "p"}
CATEGORIES = ("coding", "math")
ROW = ["prompt_id", "replica"]
Row = tuple[str, int, bool]
"""category, turns, recorded"""
ACCEPTED, REJECTED = Ended(True), Ended(False, "ended_abort", None)


def manifest(**generation: Any) -> Manifest:
    body = {
        "name": "m",
        "mix": {"total": 10, "shares": dict.fromkeys(CATEGORIES, 1)},
        "sources": [{"name": name, "path": name, "category": name} for name in CATEGORIES],
        "target": {"model": "m"},
        "generation": generation,
    }
    return parse_manifest(json.dumps(body), "m")


def prompts(rows: list[Row]) -> pl.DataFrame:
    return pl.DataFrame(
        [
            {
                "prompt_id": hashlib.sha256(str(i).encode()).hexdigest()[:32], "category": category, "source": category,
                "replica": i % 2, "holdout": i % 7 == 0, "turns": turns, "recorded": recorded,
            }
            for i, (category, turns, recorded) in enumerate(rows)
        ],
        schema={
            "prompt_id": pl.String, "category": pl.String, "source": pl.String, "holdout": pl.Boolean,
            "replica": pl.Int32, "turns": pl.Int32, "recorded": pl.Boolean,
        },
    )  # fmt: skip


def planned(rows: list[Row], done: Done | None = None, **options: Any) -> GenerationPlan:
    """The plan, held to the plain one."""
    given_here = {name: options.pop(name) for name in ("finished", "retry") if name in options}
    limit = options.pop("limit", None)
    of = manifest(**options)
    finished = given_here.get("finished", [])
    retry = given_here.get("retry", ())
    plan = plan_generation(
        of, TARGET, "b", prompts(rows), done_frame(done or {}), limit,
        finished=finished_frame(finished) if "finished" in given_here else None, retry=retry,
    )  # fmt: skip
    plain = plain_plan(of, TARGET, prompts(rows), done or {}, finished=finished, retry=retry)
    assert same(plan.answers, plain)
    states = [one.state for one in plain]
    assert plan.accepted == states.count("accepted")
    assert plan.rejected == states.count("rejected") + states.count("left_out")
    if limit is None:
        assert plan.to_make == states.count("to_make")
        assert plan.left.equals(plan.answers.filter(pl.col("state") == "to_make"))
    return plan


def ids(plan: GenerationPlan) -> list[str]:
    return plan.answers["response_id"].to_list()


def conversations(plan: GenerationPlan) -> list[list[tuple[str, int, str]]]:
    """(prompt_id, turn, response_id) of what is left, by conversation, in the plan's order."""
    parts = plan.left.partition_by(ROW, maintain_order=True)
    return [part.select("prompt_id", "turn", "response_id").rows() for part in parts]


def states(plan: GenerationPlan) -> dict[str, str]:
    return dict(plan.answers.select("response_id", "state").iter_rows())


table_rows = st.tuples(st.sampled_from(CATEGORIES), st.integers(1, 4), st.booleans())
tables = st.lists(table_rows, min_size=1, max_size=20)
ends = st.one_of(
    st.builds(Ended, st.just(True), st.none(), st.sampled_from(["stop", "length"]),
              st.lists(st.sampled_from(CHECKS), max_size=2, unique=True).map(tuple), st.integers(0, 9)),
    st.builds(Ended, st.just(False), st.sampled_from([*CHECKS, "truncated", EARLIER, "ended_abort", "engine_error"]),
              st.none()),
)  # fmt: skip
policies = st.fixed_dictionaries(
    {
        "truncated": st.sampled_from(["keep", "drop", "retry"]),
        "reject": st.lists(st.sampled_from(CHECKS), max_size=3, unique=True),
    }
)
sections = st.builds(lambda general, math: {**general, "by_category": {"math": math}}, policies, policies)


@st.composite
def histories(draw: Any) -> tuple[list[Row], dict[str, Ended]]:
    """A build, and what an earlier run could have left of it: prefixes of turns, some of them rejected."""
    rows = draw(tables)
    done: dict[str, Ended] = {}
    for answers in conversations(planned(rows)):
        finished = draw(st.integers(0, len(answers)))
        done |= dict.fromkeys([response_id for _, _, response_id in answers[:finished]], ACCEPTED)
        if finished < len(answers) and draw(st.booleans()):
            done |= dict.fromkeys([response_id for _, _, response_id in answers[finished:]], REJECTED)
    return rows, done


@settings(max_examples=40)
@given(histories())
def test_what_is_done_and_what_is_left_are_the_plan(drawn: tuple[list[Row], dict[str, Ended]]) -> None:
    rows, done = drawn
    whole, rest = planned(rows), planned(rows, done)
    assert ids(rest) == ids(whole)
    left = set(rest.left["response_id"])
    assert left.isdisjoint(done)
    assert left | set(done) == set(ids(whole))
    assert rest.accepted + rest.rejected + rest.to_make == rest.answers.height
    assert rest.accepted == list(done.values()).count(ACCEPTED)
    assert planned(rows, done | dict.fromkeys(left, ACCEPTED)).to_make == 0


@given(tables, st.data())
def test_any_ledger_and_any_policy_give_the_plain_plan(rows: list[Row], data: Any) -> None:
    done = {one: end for one in ids(planned(rows)) if (end := data.draw(st.none() | ends)) is not None}
    retry = data.draw(st.sampled_from([(), ("engine_error", "engine_crashed")]))
    plan = planned(rows, done, retry=retry, **data.draw(sections))
    assert plan.accepted + plan.rejected + plan.to_make == plan.answers.height


@given(tables)
def test_a_prompt_wants_one_answer_a_turn_and_no_two_are_one(rows: list[Row]) -> None:
    plan = planned(rows)
    assert plan.answers.height == sum(turns for _, turns, _ in rows) == plan.to_make
    assert plan.answers["response_id"].n_unique() == plan.answers.height
    for answers in conversations(plan):
        assert [turn for _, turn, _ in answers] == list(range(len(answers)))
        assert len({prompt_id for prompt_id, _, _ in answers}) == 1


@given(tables)
def test_after_a_rejected_turn_nothing_is_asked_and_everything_is_counted(rows: list[Row]) -> None:
    rows = [(category, turns, False) for category, turns, _ in rows]
    done = {answers[0][2]: REJECTED for answers in conversations(planned(rows))}
    plan = planned(rows, done)
    assert plan.to_make == 0
    assert plan.rejected == plan.answers.height


@given(tables)
def test_a_rejected_turn_does_not_end_a_conversation_whose_history_is_recorded(rows: list[Row]) -> None:
    rows = [(category, turns, True) for category, turns, _ in rows]
    done = {answers[0][2]: REJECTED for answers in conversations(planned(rows))}
    plan = planned(rows, done)
    assert plan.rejected == len(rows)
    assert plan.to_make == plan.answers.height - len(rows)


def test_a_turn_that_was_lost_before_a_rejected_one_is_asked_and_what_follows_is_not() -> None:
    rows: list[Row] = [("coding", 3, False)]
    first, second, third = ids(planned(rows))
    plan = planned(rows, {second: REJECTED, third: Ended(False, EARLIER, None)})
    assert states(plan) == {first: "to_make", second: "rejected", third: "rejected"}


@settings(max_examples=40)
@given(tables, st.integers(1, 30))
def test_a_limit_keeps_the_shares_of_what_is_to_do(rows: list[Row], limit: int) -> None:
    whole, some = planned(rows), planned(rows, limit=limit)
    those = {tuple(map(tuple, one)) for one in conversations(some)}
    assert len(those) == min(limit, len(rows))
    assert some.answers.equals(whole.answers)
    assert those <= {tuple(map(tuple, one)) for one in conversations(whole)}
    for category in CATEGORIES:
        of = [plan.left.filter(category=category).select(ROW).unique().height for plan in (whole, some)]
        assert abs(of[1] - len(those) * of[0] / len(rows)) <= 1
    if limit > 1:
        fewer = {tuple(map(tuple, one)) for one in conversations(planned(rows, limit=limit - 1))}
        assert fewer <= those


def thinks(plan: GenerationPlan) -> pl.Series:
    flags = {recipe_id: recipe.thinking for recipe_id, recipe in plan.recipes.items()}
    return plan.answers["recipe_id"].replace_strict(flags, return_dtype=pl.Boolean)


@settings(max_examples=40)
@given(st.floats(0, 1), st.floats(0, 1))
def test_which_prompts_think_is_decided_by_the_prompt_and_a_larger_share_is_a_superset(a: float, b: float) -> None:
    rows: list[Row] = [("coding", 1, False)] * 80
    thinking = []
    for share in sorted((a, b)):
        plan = planned(rows, thinking={"share": share})
        thinking.append(set(plan.answers.filter(thinks(plan))["prompt_id"]))
    assert thinking[0] <= thinking[1]


def test_the_share_of_thinking_is_held_and_a_category_may_have_its_own() -> None:
    rows: list[Row] = [("coding", 1, False), ("math", 1, False)] * 2000
    of = manifest(thinking={"share": 0.25}, by_category={"math": {"thinking_share": 1.0}})
    plan = plan_generation(of, TARGET, "b", prompts(rows), done_frame({}))
    share = {category: plan.answers.filter(thinks(plan), category=category).height / 2000 for category in CATEGORIES}
    assert abs(share["coding"] - 0.25) < 0.03
    assert share["math"] == 1.0


def test_recipes_part_where_an_answer_would_be_made_differently_and_nowhere_else() -> None:
    same_recipe = [make_recipe(manifest(), TARGET, category, False) for category in CATEGORIES]
    assert same_recipe[0].recipe_id == same_recipe[1].recipe_id
    of = manifest(by_category={"math": {"max_tokens": 7, "temperature": 0.0, "truncated": "drop", "reject": []}})
    coding, math = (make_recipe(of, TARGET, category, False) for category in CATEGORIES)
    assert coding.recipe_id == same_recipe[0].recipe_id
    assert math.recipe_id != coding.recipe_id
    assert (math.max_tokens, math.sampling["temperature"]) == (7, 0.0)
    assert (policy_of(of, "math").truncated, policy_of(of, "math").reject) == ("drop", frozenset())
    assert (policy_of(of, "coding").truncated, policy_of(of, "coding").reject) == ("keep", {"empty", "repetition"})
    for only_policy in (manifest(truncated="drop"), manifest(reject=["no_answer"])):
        assert make_recipe(only_policy, TARGET, "coding", False).recipe_id == coding.recipe_id
    on = make_recipe(manifest(), TARGET, "coding", True)
    assert on.recipe_id != coding.recipe_id
    assert on.sampling["temperature"] == 0.6


def test_a_family_is_recipes_that_differ_in_max_tokens_alone() -> None:
    short, long = (make_recipe(manifest(max_tokens=n), TARGET, "coding", False) for n in (5, 50))
    assert short.recipe_id != long.recipe_id
    assert short.family_id == long.family_id
    assert make_recipe(manifest(max_tokens=5), TARGET, "coding", True).family_id != short.family_id


def test_another_category_policy_makes_only_its_own_answers_again() -> None:
    rows: list[Row] = [("coding", 1, False), ("math", 2, False)] * 5
    done = dict.fromkeys(ids(planned(rows)), ACCEPTED)
    after = planned(rows, done, by_category={"math": {"max_tokens": 5}})
    assert set(after.left["category"]) == {"math"}
    assert after.to_make == 10


# policies on answers


def test_a_cut_answer_is_left_out_once_the_policy_drops_it_and_taken_back_once_it_keeps() -> None:
    rows: list[Row] = [("coding", 1, False)] * 3
    cut, whole, missing = ids(planned(rows))
    done = {cut: Ended(True, None, "length"), whole: ACCEPTED}
    dropping = planned(rows, done, truncated="drop")
    assert dropping.answers.select("response_id", "state", "left_out").rows() == [
        (cut, "left_out", "truncated"), (whole, "accepted", None), (missing, "to_make", None),
    ]  # fmt: skip
    assert (dropping.accepted, dropping.rejected, dropping.to_make) == (1, 1, 1)
    assert "  1 accepted under an earlier policy are left out: truncated" in dropping.lines()
    for policy in ("keep", "retry"):  # retry is for answers that are made now
        assert states(planned(rows, done, truncated=policy)) == {cut: "accepted", whole: "accepted", missing: "to_make"}


def test_the_first_finding_that_a_category_rejects_says_why_an_answer_is_left_out() -> None:
    rows: list[Row] = [("coding", 1, False), ("math", 1, False)]
    done = dict.fromkeys(ids(planned(rows)), Ended(True, notes=("repetition", "no_answer", "broken_tool_call")))
    own = {"math": {"reject": ["broken_tool_call", "no_answer"]}}
    assert planned(rows, done, by_category=own).answers["left_out"].to_list() == ["repetition", "no_answer"]
    assert planned(rows, done, reject=[]).accepted == 2


@given(tables, sections, sections, st.data())
def test_a_milder_policy_asks_again_exactly_what_it_no_longer_rejects(
    rows: list[Row], strict: dict[str, Any], mild: dict[str, Any], data: Any
) -> None:
    rows = [(category, 1, recorded) for category, _, recorded in rows]
    reasons = {one: data.draw(st.sampled_from([*CHECKS, "truncated", "ended_abort"])) for one in ids(planned(rows))}
    done = {one: Ended(False, reason, None) for one, reason in reasons.items()}
    for section in (strict, mild):
        plan, of = planned(rows, done, **section), manifest(**section)
        for response_id, category, state in plan.answers.select("response_id", "category", "state").iter_rows():
            policy, reason = policy_of(of, category), reasons[response_id]
            still = reason in policy.reject or (reason == "truncated" and policy.truncated == "drop")
            assert state == ("rejected" if still or reason == "ended_abort" else "to_make")


def test_two_categories_of_one_recipe_keep_their_own_policies() -> None:
    rows: list[Row] = [("coding", 1, False), ("math", 1, False)]
    coding, math = ids(planned(rows))
    own = {"coding": {"truncated": "drop"}, "math": {"truncated": "keep"}}
    plan = planned(rows, dict.fromkeys((coding, math), Ended(True, None, "length")), by_category=own)
    assert plan.answers["recipe_id"].n_unique() == 1
    assert {category: policy.truncated for category, policy in plan.policies.items()} == {
        "coding": "drop", "math": "keep",
    }  # fmt: skip
    assert states(plan) == {coding: "left_out", math: "accepted"}


@given(tables)
def test_turns_behind_a_rejected_one_are_asked_again_when_it_is(rows: list[Row]) -> None:
    rows = [(category, turns, False) for category, turns, _ in rows]
    talks = conversations(planned(rows))
    done = {one: Ended(False, "truncated", None) for (_, _, one), *_ in talks}
    done |= {one: Ended(False, EARLIER, None) for _, *later in talks for _, _, one in later}
    assert planned(rows, done, truncated="drop").to_make == 0
    again = planned(rows, done, truncated="keep")
    assert again.to_make == again.answers.height
    error = {one: Ended(False, "engine_error" if one in {t[0][2] for t in talks} else EARLIER, None) for one in done}
    assert planned(rows, error).to_make == 0
    assert planned(rows, error, retry=("engine_error",)).to_make == again.answers.height


# reuse: finished


def families(max_tokens: int) -> tuple[str, str]:
    recipe = make_recipe(manifest(max_tokens=max_tokens), TARGET, "coding", False)
    return recipe.recipe_id, recipe.family_id


def elsewhere(rows: list[Row], max_tokens: int, tokens: Callable[[int, int], int | None]) -> list[Finished]:
    """What builds of other max_tokens have of these prompts: `tokens` of (row, turn), None where it is cut."""
    recipe_id, family_id = families(max_tokens)
    there = planned(rows, max_tokens=max_tokens).answers
    places = {prompt_id: i for i, prompt_id in enumerate(prompts(rows)["prompt_id"])}
    return [
        Finished(prompt_id, replica, turn, recipe_id, family_id, response_id, length)
        for prompt_id, replica, turn, response_id in there.select(*ROW, "turn", "response_id").iter_rows()
        if (length := tokens(places[prompt_id], turn)) is not None
    ]


def test_raising_max_tokens_takes_every_answer_that_stopped_and_makes_the_others() -> None:
    rows: list[Row] = [("coding", 1, False)] * 10
    finished = elsewhere(rows, 20, lambda row, _: 7 if row % 2 else None)
    plan = planned(rows, finished=finished, max_tokens=40, reuse="finished")
    assert plan.finished_elsewhere == 5
    # wanted_answers links them; that they are accepted the ledger says
    taken = {one.response_id: ACCEPTED for one in finished}
    plan = planned(rows, taken, finished=finished, max_tokens=40, reuse="finished")
    assert (plan.accepted, plan.to_make) == (5, 5)
    assert set(plan.left["recipe_id"]) == {families(40)[0]}
    assert "  5 of the accepted stopped by themselves under another max_tokens" in plan.lines()


def test_lowering_max_tokens_takes_what_fits() -> None:
    rows: list[Row] = [("coding", 1, False)] * 3
    finished = elsewhere(rows, 40, lambda row, _: (19, 20, 21)[row])
    taken = {one.response_id: ACCEPTED for one in finished}
    plan = planned(rows, taken, finished=finished, max_tokens=20, reuse="finished")
    assert plan.answers["state"].to_list() == ["accepted", "accepted", "to_make"]


@settings(max_examples=40)
@given(st.lists(st.tuples(st.just("coding"), st.integers(1, 4), st.booleans()), min_size=1, max_size=8), st.data())
def test_what_is_taken_from_other_budgets_is_what_the_plain_plan_takes(rows: list[Row], data: Any) -> None:
    lengths = st.none() | st.integers(1, 60)
    finished = [
        one for budget in (10, 30, 60) for one in elsewhere(rows, budget, lambda *_: data.draw(lengths))
    ]  # fmt: skip
    mine = ids(planned(rows, max_tokens=25))
    own = {one: ACCEPTED for one in mine if data.draw(st.booleans())}
    done = own | {one.response_id: ACCEPTED for one in finished}
    plan = planned(rows, done, finished=finished, max_tokens=25, reuse="finished")  # held to the plain plan there
    shuffled = data.draw(st.permutations(finished))
    again = planned(rows, done, finished=shuffled, max_tokens=25, reuse="finished")
    assert again.answers.equals(plan.answers)
    recipe_id = families(25)[0]
    fits = {one.response_id for one in finished if one.response_tokens <= 25}
    for part in plan.answers.partition_by(ROW, maintain_order=True):
        taken = part.filter(pl.col("recipe_id") != recipe_id)
        assert set(taken["response_id"]) <= fits
        if not part["recorded"].any():
            assert taken["recipe_id"].n_unique() <= 1
            assert taken.height in (0, part.height)  # a conversation is taken whole
            if part["state"][0] == "accepted" and part["recipe_id"][0] == recipe_id:
                assert taken.height == 0
    nothing = planned(rows, own, finished=[], max_tokens=25)
    assert plan.to_make <= nothing.to_make


@given(tables)
def test_without_anything_elsewhere_reuse_changes_nothing(rows: list[Row]) -> None:
    assert planned(rows, finished=[], reuse="finished").answers.equals(planned(rows).answers)


def test_a_plan_prints_what_it_will_do() -> None:
    plan = planned([("coding", 1, False), ("math", 2, False)])
    assert plan.lines()[0] == "3 answers wanted: 0 accepted, 0 rejected, 3 to make"
    assert [line.split() for line in plan.lines()[1:]] == [["coding", "1"], ["math", "2"]]
