"""Laws of a build's plans over a history: manifests change, runs are interrupted, engines fail, shards are lost.

The ledger is a list of attempts, in the order in which they were written, each with the attempts that it was shown as
its earlier turns. Runs do what a plan says. Each plan is held to tests/generation/plain_plan.py besides.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from generation.judge import judge
from generation.plan import GenerationPlan, make_recipe
from tests.generation.plain_plan import EARLIER, Ended, Finished
from tests.generation.test_plan import ROW, TARGET, Row, manifest, planned

BUDGETS = (10, 20, 30)
GENEROUS: dict[str, Any] = {"truncated": "keep", "reject": []}


@dataclass(frozen=True)
class Attempt:
    """One try at one answer, and the accepted attempts that it was shown as its conversation's earlier turns."""

    place: int
    answer: tuple[str, int, int]
    recipe_id: str
    response_id: str
    reason: str | None
    finish_reason: str
    tokens: int
    notes: tuple[str, ...]
    over: tuple[int, ...]


@dataclass
class Workspace:
    """What builds of the same prompts share."""

    rows: list[Row]
    chance: random.Random
    attempts: list[Attempt] = field(default_factory=list)
    written: int = 0

    def accepted(self) -> dict[str, Attempt]:
        """Of each answer the first accepted attempt, as the ledger counts."""
        return {one.response_id: one for one in reversed(self.attempts) if one.reason is None}

    def plan(self, section: dict[str, Any], retry: bool = False) -> GenerationPlan:
        """The plan of a build under this manifest, of which the laws hold."""
        accepted = self.accepted()
        done = {one.response_id: Ended(False, one.reason, None) for one in self.attempts if one.reason is not None}
        done |= {name: Ended(True, None, one.finish_reason, one.notes, one.place) for name, one in accepted.items()}
        options = {"retry": ("engine_error",) if retry else ()}
        if section.get("reuse") == "finished":
            family = make_recipe(manifest(**section), TARGET, "coding", False).family_id
            options["finished"] = [
                Finished(one.answer[0], one.answer[1], one.answer[2], one.recipe_id, family, name, one.tokens)
                for name, one in accepted.items()
                if one.finish_reason == "stop"
            ]
        plan = planned(self.rows, done, **options, **section)
        stands_on_its_own_turns(plan, accepted)
        for state, why in plan.answers.select("state", "left_out").iter_rows():
            assert (state in ("left_out", "rejected")) == (why is not None)
        return plan

    def run(self, plan: GenerationPlan, section: dict[str, Any], conversations: int, failures: float) -> None:
        """Ask so many conversations; a part of the answers fails, and the last conversation may be broken off."""
        accepted = self.accepted()
        has = {
            (prompt_id, replica, turn): accepted[name].place
            for prompt_id, replica, turn, name, why in plan.answers.select(
                *ROW, "turn", "response_id", "left_out"
            ).iter_rows()
            if why is None and name in accepted
        }
        policy = next(iter(plan.policies.values()))
        parts = plan.left.with_columns(part=pl.when("recorded").then("turn").otherwise(0))
        asked = parts.partition_by(*ROW, "part", maintain_order=True)[:conversations]
        for talk, conversation in enumerate(asked):
            ended = False
            for row in conversation.iter_rows(named=True):
                prompt_id, replica, turn = answer = (row["prompt_id"], row["replica"], row["turn"])
                if not ended and talk == len(asked) - 1 and self.chance.random() < 0.3:
                    return
                # what it is shown is there, or it could not be asked
                earlier = () if row["recorded"] or ended else [has[prompt_id, replica, t] for t in range(turn)]
                tokens = self.chance.randint(1, row["max_tokens"] + 5)
                finish = "stop" if tokens <= row["max_tokens"] else "length"
                notes = ("repetition",) if self.chance.random() < 0.2 else ()
                verdict = judge(finish, notes, policy, 1, row["max_tokens"], 1000)
                reason = EARLIER if ended else "engine_error" if self.chance.random() < failures else verdict.reason
                self.attempts.append(
                    Attempt(self.written, answer, row["recipe_id"], row["response_id"], reason, finish,
                            min(tokens, row["max_tokens"]), notes, tuple(earlier))
                )  # fmt: skip
                if reason is None:
                    has[answer] = self.written
                elif not row["recorded"]:
                    ended = True
                self.written += 1

    def to_the_end(self, section: dict[str, Any], failures: float) -> GenerationPlan:
        """Runs until nothing is left to do, and the plan at the end of the last one."""
        for _ in range(50):  # one conversation a run is broken off
            plan = self.plan(section, retry=not failures)
            if not plan.to_make:
                return plan
            self.run(plan, section, 1000, failures)
        raise AssertionError(f"{plan.to_make} answers are asked for ever")

    def lose(self) -> None:
        """A shard is gone."""
        if self.attempts:
            first = self.chance.randrange(len(self.attempts))
            del self.attempts[first : first + self.chance.randint(1, 4)]


def stands_on_its_own_turns(plan: GenerationPlan, accepted: dict[str, Attempt]) -> None:
    """Each accepted later turn was shown the answers that the build has of the earlier turns, of the same recipe."""
    has: dict[tuple[str, int, int], int] = {}
    talks = plan.answers.filter(~pl.col("recorded"), state="accepted").group_by(ROW)
    assert set(talks.agg(pl.col("recipe_id").n_unique())["recipe_id"]) <= {1}
    for row in plan.answers.filter(state="accepted").iter_rows(named=True):
        attempt = accepted[row["response_id"]]
        prompt_id, replica, turn = row["prompt_id"], row["replica"], row["turn"]
        has[prompt_id, replica, turn] = attempt.place
        if not row["recorded"]:
            assert attempt.over == tuple(has.get((prompt_id, replica, t)) for t in range(turn))


def counted(plan: GenerationPlan, workspace: Workspace) -> set[str]:
    """The answers that the ledger counts for a build by its last plan, whatever was accepted since."""
    return set(plan.answers.filter(plan.answers["left_out"].is_null())["response_id"]) & set(workspace.accepted())


sections = st.fixed_dictionaries(
    {
        "max_tokens": st.sampled_from(BUDGETS),
        "reuse": st.sampled_from(["recipe", "finished"]),
        "truncated": st.sampled_from(["keep", "drop"]),
        "reject": st.sampled_from([[], ["repetition"]]),
    }
)
steps = st.tuples(sections, st.booleans(), st.integers(0, 12), st.sampled_from([0.0, 0.2]))
tables = st.lists(
    st.tuples(st.just("coding"), st.integers(1, 4), st.sampled_from([False, False, True])), min_size=1, max_size=6
)
histories = st.tuples(tables, st.lists(steps, min_size=1, max_size=7), st.integers(0, 2**32))


@settings(max_examples=40)
@given(histories, st.booleans())
def test_each_accepted_later_turn_stands_on_the_build_s_own_earlier_turns(drawn: Any, losing: bool) -> None:
    rows, history, seed = drawn
    workspace = Workspace(rows, random.Random(seed))
    for section, retry, conversations, failures in history:
        workspace.run(workspace.plan(section, retry), section, conversations, failures)
        if losing and workspace.chance.random() < 0.5:
            workspace.lose()
        workspace.plan(section)
    last = history[-1][0]
    workspace.to_the_end(last, 0.2)
    if not losing:
        generous = {**last, **GENEROUS}
        plan = workspace.to_the_end(generous, 0.0)
        assert plan.accepted == plan.answers.height  # no manifest of before has made an answer unreachable


@settings(max_examples=25)
@given(histories, sections)
def test_what_a_build_counts_stays_whatever_other_builds_do(drawn: Any, mine: dict[str, Any]) -> None:
    rows, history, seed = drawn
    workspace = Workspace(rows, random.Random(seed))
    plan = workspace.to_the_end(mine, 0.2)
    before = counted(plan, workspace)
    assert before == set(plan.answers.filter(state="accepted")["response_id"])
    for section, retry, conversations, failures in history:
        workspace.run(workspace.plan(section, retry), section, conversations, failures)
        assert counted(plan, workspace) == before
