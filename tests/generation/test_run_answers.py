"""What a run asks and what it keeps of each answer: turns, thinking, notes, spans, log-probabilities; and what a later
manifest makes of it. Over the fake engine in real worker processes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import polars as pl
import pytest

from corpus.building import commit_build
from corpus.ledger.query import query
from corpus.ledger.rebuild import rebuild_workspace
from corpus.ledger.writer import open_ledger
from corpus.records import decode_prompt
from corpus.responses import read_rows_at
from generation import feed as feeding
from generation import run as running
from generation.fake import WORDS
from tests.conftest import Words

World = Any
EOS = 2
OPEN, CLOSE = 5, 6
ANSWERS = (
    "SELECT prompt_id, replica, turn, state, reason, finish_reason, notes, reasoning_tokens, extends_turn, attempt, "
    "recipe_id, response_id, shard, shard_row, engine, device, started_at FROM responses ORDER BY ALL"
)


class Exact(Words):
    """A tokenizer that reads the fake engine's words as the tokens that they were, and a template that keeps them.

    A conversation that says "changing" is shown with its number of messages in front: no prompt begins with the one
    before.
    """

    def text(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]], thinking: bool) -> str:
        shown = [f"{m['role']} {m['content']}" + (" <eos>" if m["role"] == "assistant" else "") for m in messages]
        changing = any("changing" in line for line in shown)
        return " ".join([*([f"n{len(shown)}"] if changing else []), *shown, "assistant"])

    def encode(self, texts: list[str]) -> list[list[int]]:
        known = {word: number for number, word in enumerate(WORDS)} | {"<eos>": EOS}
        return [[known.get(word, self.token(word)) for word in text.split()] for text in texts]

    def get_vocab(self) -> dict[str, int]:
        return {"<think>": OPEN, "</think>": CLOSE}

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        return " ".join(WORDS[one] for one in ids if one not in (EOS, OPEN, CLOSE))


def story(world: World, chats: list[Any], *, extra: dict[str, Any] | None = None, **generation: Any) -> Any:
    """A manifest that takes all chats; a text is a prompt, a list its turns, ["user", "assistant", …] if recorded."""
    history = generation.pop("history", "regenerated")

    def role(i: int) -> str:
        return "assistant" if history == "recorded" and i % 2 else "user"

    rows = [
        {"messages": [{"role": role(i), "content": text} for i, text in enumerate([c] if isinstance(c, str) else c)]}
        for c in chats
    ]
    world.jsonl("all.jsonl", rows)
    mix = {"total": len(chats), "shares": {"coding": 1}, "holdout": 0.0} | generation.pop("mix", {})
    return world.manifest(
        sources=[{"name": "all", "path": "all.jsonl", "category": "coding", "history": history}],
        mix=mix,
        generation={"max_tokens": 64, **generation},
        engine={"extra": {"mean_tokens": 6, **(extra or {})}},
    )


def answers(world: World) -> pl.DataFrame:
    """Every attempt, with its text and token ids."""
    rows = query(world.workspace, ANSWERS)
    places = list(rows.select("shard", "shard_row").iter_rows())
    columns = ["prompt_token_ids", "token_ids", "token_logprobs", "text"]
    return rows.join(read_rows_at(world.workspace.responses, places, columns), on=["shard", "shard_row"])


def count(world: World, sql: str) -> Any:
    return query(world.workspace, sql).item()


def test_turns_spans_and_what_a_turn_extends(world: World) -> None:
    world.words = Exact()
    chats = [["first", "second", "third"]] + [[f"q{i}", "and", "then"] for i in range(8)]
    chats += [[f"changing {i}", "and"] for i in range(4)]
    manifest = story(world, chats, extra={"vocabulary": len(WORDS), "mean_tokens": 14}, max_tokens=20, reject=[])
    world.tell(manifest)
    rows = answers(world)
    assert rows.height == 9 * 3 + 4 * 2
    tokens = {
        (prompt_id, turn): list(prompt) + list(answer)
        for prompt_id, turn, prompt, answer in rows.select(
            "prompt_id", "turn", "prompt_token_ids", "token_ids"
        ).iter_rows()
    }
    found: Counter[bool] = Counter()
    for row in rows.filter(pl.col("turn") > 0).iter_rows(named=True):
        before = tokens[row["prompt_id"], row["turn"] - 1]
        begins = list(row["prompt_token_ids"])[: len(before)] == before
        assert row["extends_turn"] == (row["turn"] - 1 if begins else None)
        found[begins] += 1
    assert found == {True: 9 * 2, False: 4}
    assert rows.filter(turn=0)["extends_turn"].null_count() == 13
    assert rows["token_logprobs"].null_count() == rows.height  # not unless asked for
    thought: Counter[str] = Counter()
    for token_ids, reasoning in rows.select("token_ids", "reasoning_tokens").iter_rows():
        ids = list(token_ids)
        closed = len(ids) - ids[::-1].index(CLOSE) if CLOSE in ids else 0
        expected = len(ids) if OPEN in ids[closed:] else closed
        assert reasoning == expected
        thought["none" if not expected else "all" if expected == len(ids) else "some"] += 1
    assert thought.keys() == {"none", "all", "some"}


def test_recorded_turns_are_each_asked_over_the_recorded_ones_and_none_waits_for_another(world: World) -> None:
    chats = [[f"u{i}a", f"r{i}a", f"u{i}b", f"r{i}b", f"u{i}c"] for i in range(20)]
    manifest = story(world, chats, history="recorded", max_tokens=6, truncated="drop")
    summary = world.tell(manifest)
    rows = answers(world)
    assert rows.height == 60 == summary.accepted + summary.rejected
    assert set(rows["reason"].drop_nulls()) <= {"truncated", "empty"}
    texts = dict(query(world.workspace, "SELECT prompt_id, messages FROM prompt_text").iter_rows())
    for prompt_id, turn, prompt in rows.select("prompt_id", "turn", "prompt_token_ids").iter_rows():
        shown = json.loads(texts[prompt_id])[: 2 * turn + 1]
        assert list(prompt) == world.words.encode([world.words.text(shown, (), False)])[0]
        assert decode_prompt(texts[prompt_id], None).recorded
    states = rows.sort("turn").group_by("prompt_id").agg("state")["state"].to_list()
    assert ["rejected", "accepted"] in [list(one[:2]) for one in states]
    assert world.tell(manifest) is None
    milder = story(world, chats, history="recorded", max_tokens=6, truncated="keep")
    cut = rows.filter(reason="truncated").height
    again = world.tell(milder)
    assert again.accepted == cut > 0
    assert world.tell(milder) is None


def test_thinking_is_chosen_for_each_prompt_shown_to_the_template_and_in_the_recipe(world: World) -> None:
    world.tell(story(world, [f"question {i}" for i in range(40)], thinking={"share": 0.5}, token_logprobs=True))
    rows = answers(world)
    thinking = dict(query(world.workspace, "SELECT response_id, thinking FROM provenance").iter_rows())
    said = {Words.token("think"): True, Words.token("answer"): False}
    for response_id, prompt in rows.select("response_id", "prompt_token_ids").iter_rows():
        assert said[list(prompt)[-1]] == thinking[response_id]
    assert 8 < sum(thinking.values()) < 32
    recipes = query(world.workspace, "SELECT thinking, temperature FROM recipes ORDER BY 1")
    assert recipes.rows() == [(False, pytest.approx(0.7)), (True, pytest.approx(0.6))]
    for token_ids, logprobs in rows.select("token_ids", "token_logprobs").iter_rows():
        assert list(logprobs) == [-1.0] * len(token_ids)


def test_findings_are_stored_and_reject_only_where_the_policy_says_so(world: World) -> None:
    prompts = [f"question {i}" for i in range(30)]
    strict = story(world, prompts, extra={"mean_tokens": 2})
    world.tell(strict)
    rows = answers(world)
    empty = rows.filter(pl.col("token_ids").list.len() == 1)
    assert 3 < empty.height < 20
    assert empty.select("state", "reason").unique().rows() == [("rejected", "empty")]
    assert empty["notes"].to_list() == [["empty"]] * empty.height
    assert rows.filter(state="accepted")["notes"].to_list() == [[]] * (30 - empty.height)
    lenient = story(world, prompts, extra={"mean_tokens": 2}, reject=[])
    summary = world.tell(lenient)
    assert (summary.accepted, summary.rejected) == (empty.height, 0)
    assert world.tell(lenient) is None
    # stricter again: they are left out, and nothing is asked
    assert world.tell(strict) is None
    left_out = query(world.workspace, "SELECT DISTINCT state, reason FROM provenance ORDER BY 1").rows()
    assert left_out == [("accepted", None), ("left_out", "empty")]
    assert count(world, "SELECT sum(rows) FROM composition WHERE stage = 'accepted'") == 30 - empty.height
    assert count(world, "SELECT count(*) FROM unfinished WHERE why = 'empty'") == empty.height


def test_turns_that_are_asked_again_and_rejected_for_another_reason_are_not_asked_for_ever(world: World) -> None:
    """Of an answer's several rejections the latest says why: an earlier one may be of a policy that is no more."""
    chats = [[f"question {i}", "and"] for i in range(40)]
    settings: dict[str, Any] = {"extra": {"mean_tokens": 2}, "max_tokens": 2}
    world.tell(story(world, chats, truncated="drop", **settings))
    reasons = Counter(answers(world)["reason"])
    assert reasons["truncated"] > 5
    assert reasons["earlier_turn_rejected"] > 5
    milder = story(world, chats, truncated="keep", **settings)
    assert world.tell(milder) is not None
    twice = "SELECT count(*) FROM (SELECT response_id FROM responses WHERE state = 'rejected' GROUP BY 1 HAVING count(DISTINCT reason) > 1)"  # noqa: E501
    assert count(world, twice) > 0
    assert world.tell(milder) is None


def test_a_turn_whose_shard_was_lost_is_asked_again_and_those_behind_it_leave(world: World) -> None:
    manifest = story(world, [["a", "b", "c", "d"]], extra={"mean_tokens": 20}, reject=[])
    with open_ledger(world.workspace, "run") as ledger:
        plan = world.plan(manifest)
        commit_build(plan, world.workspace, ledger)
        world.generate(manifest, plan, ledger)
        texts = {row["turn"]: row["text"] for row in _texts(world, ledger)}
        ledger.call(lambda c: c.execute("DELETE FROM responses WHERE turn IN (1, 3)"))
        assert world.generation(manifest, plan, ledger).left["turn"].to_list() == [1]
        world.generate(manifest, plan, ledger)
        assert world.generate(manifest, plan, ledger) is None
        states = ledger.rows("SELECT turn, state, reason FROM provenance ORDER BY turn")
        behind = "earlier_turn_rejected"  # turn 2 was an answer to the turn that is gone
        assert states == [
            (0, "accepted", None), (1, "accepted", None), (2, "left_out", behind), (3, "unfinished", behind),
        ]  # fmt: skip
        now = {row["turn"]: row for row in _texts(world, ledger)}
    assert (now[0]["text"], now[2]["text"]) == (texts[0], texts[2])
    shown: list[dict[str, str]] = []
    for turn, asked in enumerate("ab"):
        shown.append({"role": "user", "content": asked})
        if turn == 1:
            assert list(now[turn]["prompt_token_ids"]) == world.words.encode([world.words.text(shown, (), False)])[0]
        shown.append({"role": "assistant", "content": now[turn]["text"]})


def _texts(world: World, ledger: Any) -> list[dict[str, Any]]:
    places = ledger.rows("SELECT shard, shard_row FROM responses")
    frame = read_rows_at(world.workspace.responses, places, ["turn", "text", "prompt_token_ids"])
    return list(frame.iter_rows(named=True))


def test_what_cannot_be_asked_never_reaches_an_engine(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    submitted: list[str] = []

    class Watched(running.Pool):
        def submit(self, item_id: str, payload: bytes, weight: float = 0.0) -> None:
            submitted.append(item_id)
            super().submit(item_id, payload, weight)

    monkeypatch.setattr(running, "Pool", Watched)
    monkeypatch.setattr(feeding, "WINDOW", 4)  # read in several windows: each conversation is asked once all the same
    long = " ".join(f"w{i}" for i in range(600))
    world.tell(story(world, [*(f"question {i}" for i in range(20)), long, f"{long} more", "unrenderable"]))
    rows = answers(world)
    never = rows.filter(pl.col("reason").is_in(["prompt_too_long", "template_error"]))
    assert Counter(never["reason"]) == {"prompt_too_long": 2, "template_error": 1}
    assert len(submitted) == len(set(submitted)) == 20
    assert set(submitted).isdisjoint(never["response_id"])
    assert never.select(pl.col("engine", "device", "started_at").is_null().all()).row(0) == (True, True, True)
    assert rows.height == 23


def test_two_categories_of_one_recipe_are_judged_by_their_own_policies(world: World) -> None:
    generation = {"max_tokens": 4, "truncated": "keep", "by_category": {"coding": {"truncated": "drop"}}}
    manifest = world.manifest(
        generation=generation,
        engine={"extra": {"mean_tokens": 6}},
        mix={"total": 40, "shares": {"coding": 1, "general": 1}, "holdout": 0.0},
    )
    world.tell(manifest)
    assert count(world, "SELECT count(DISTINCT recipe_id) FROM build_responses") == 1
    cut = query(
        world.workspace,
        "SELECT DISTINCT category, r.state FROM build_responses JOIN responses r USING (response_id) "
        "WHERE finish_reason = 'length' ORDER BY 1",
    )
    assert cut.rows() == [("coding", "rejected"), ("general", "accepted")]


def test_a_larger_budget_takes_over_what_stopped_by_itself_and_makes_the_rest_again(world: World) -> None:
    chats = [[f"question {i}", "and"] if i % 2 else f"question {i}" for i in range(40)]
    short = story(world, chats, max_tokens=6, reject=[])
    world.tell(short)
    before = answers(world)
    talks = before.sort("turn").group_by("prompt_id").agg("finish_reason")["finish_reason"].to_list()
    kept = sum(len(talk) for talk in talks if set(talk) == {"stop"})  # a conversation is taken whole
    assert 0 < kept < sum(talk[0] == "stop" for talk in talks) + sum(talk[1:] == ["stop"] for talk in talks)
    long = story(world, chats, max_tokens=12, reject=[], reuse="finished")
    with open_ledger(world.workspace, "run") as ledger:
        plan = world.plan(long)
        commit_build(plan, world.workspace, ledger)
        made = world.generation(long, plan, ledger)
    assert (made.accepted, made.finished_elsewhere, made.to_make) == (kept, kept, before.height - kept)
    assert f"  {kept} of the accepted stopped by themselves under another max_tokens" in made.lines()
    assert world.tell(long).accepted == before.height - kept
    linked = query(world.workspace, "SELECT max_tokens, state FROM provenance JOIN recipes USING (recipe_id)")
    assert Counter(linked["max_tokens"]) == {6: kept, 12: before.height - kept}
    assert set(linked["state"]) == {"accepted"}
    # a second turn is shown the first one as it is linked, whichever recipe made it
    rows = answers(world).join(query(world.workspace, "SELECT response_id FROM provenance"), on="response_id")
    said = dict(rows.filter(turn=0).select("prompt_id", "text").iter_rows())
    asked = dict(query(world.workspace, "SELECT prompt_id, messages FROM prompt_text").iter_rows())
    for prompt_id, prompt in rows.filter(turn=1).select("prompt_id", "prompt_token_ids").iter_rows():
        first, second = json.loads(asked[prompt_id])
        shown = [first, {"role": "assistant", "content": said[prompt_id]}, second]
        assert list(prompt) == world.words.encode([world.words.text(shown, (), False)])[0]
    assert world.tell(long) is None
    views = ("provenance", "recipes", "unfinished")
    written = {name: query(world.workspace, f"SELECT * FROM {name} ORDER BY ALL") for name in views}
    rebuild_workspace(world.workspace)
    for name, frame in written.items():
        assert query(world.workspace, f"SELECT * FROM {name} ORDER BY ALL").equals(frame), name
