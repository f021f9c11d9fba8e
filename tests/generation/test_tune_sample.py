"""The sample that engines are measured on: a build's own prompts, as generation would ask them."""

from __future__ import annotations

from typing import Any

from corpus.building import commit_build
from corpus.ledger.query import LedgerReader
from corpus.ledger.writer import open_ledger
from corpus.token_ids import pack_ids
from generation.tune_sample import Sample, load_sample

World = Any  # tests/conftest.py makes it


def sample(world: World, manifest: Any, count: int = 1000, max_tokens: int = 1000) -> Sample:
    build = world.plan(manifest)
    return load_sample(
        manifest, world.target(), world.words, build, LedgerReader(world.workspace), count, max_tokens
    )  # fmt: skip


def test_it_is_the_build_as_it_would_be_asked(world: World) -> None:
    made = sample(world, world.manifest(generation={"max_tokens": 64, "thinking": {"off": {"temperature": 0.3}}}))
    possible = {
        pack_ids(world.words.encode([f"user {source} question {i} assistant answer"])[0])
        for source in ("code", "talk")
        for i in range(40)
    }
    ids = [ask.prompt_token_ids for ask in made.asks]
    assert len(ids) == len(set(ids)) >= 20
    assert set(ids) <= possible
    assert {ask.max_tokens for ask in made.asks} == {64}
    assert {ask.sampling["temperature"] for ask in made.asks} == {0.3}
    assert made.left_out == 0


def test_answers_are_cut_and_what_is_asked_for_is_the_most(world: World) -> None:
    made = sample(world, world.manifest(), count=7, max_tokens=5)
    assert len(made.asks) == 7
    assert {ask.max_tokens for ask in made.asks} == {5}


def test_a_larger_sample_begins_with_the_smaller_one(world: World) -> None:
    manifest = world.manifest()
    whole = sample(world, manifest)
    assert [sample(world, manifest, count).asks == whole.asks[:count] for count in (2, 4, 8)] == [True] * 3


def test_categories_keep_their_shares_in_every_beginning(world: World) -> None:
    manifest = world.manifest(mix={"total": 24, "shares": {"coding": 3, "general": 1}, "holdout": 0.0})
    coding = {pack_ids(world.words.encode([f"user code question {i} assistant answer"])[0]) for i in range(40)}
    asks = sample(world, manifest).asks
    for cut in (4, 8, 16, 24):
        assert abs(sum(ask.prompt_token_ids in coding for ask in asks[:cut]) - 0.75 * cut) <= 1


def test_what_is_answered_already_is_asked_all_the_same(world: World) -> None:
    manifest = world.manifest()
    before = sample(world, manifest)
    with open_ledger(world.workspace, "test") as ledger:
        build = world.plan(manifest)
        commit_build(build, world.workspace, ledger)
        assert world.generate(manifest, build, ledger).accepted > 0
    assert {ask.prompt_token_ids for ask in sample(world, manifest).asks} == {
        ask.prompt_token_ids for ask in before.asks
    }


def test_prompts_that_cannot_be_asked_are_counted(world: World) -> None:
    rows = [{"prompt": f"unrenderable {i}" if i % 4 == 0 else f"fine {i}"} for i in range(20)]
    source = {"name": "s", "path": world.jsonl("s.jsonl", rows), "category": "coding", "license": "mit"}
    mix = {"total": 20, "shares": {"coding": 1}, "holdout": 0.0}
    made = sample(world, world.manifest(sources=[source], mix=mix))
    assert (len(made.asks), made.left_out) == (15, 5)


def test_of_a_conversation_the_first_answer_is_asked(world: World) -> None:
    turns = ("user", "first", "assistant", "gone", "user", "second")
    messages = [{"role": role, "content": content} for role, content in zip(turns[::2], turns[1::2], strict=True)]
    source = {"name": "s", "path": world.jsonl("s.jsonl", [{"messages": messages}]), "category": "coding"}
    mix = {"total": 1, "shares": {"coding": 1}, "holdout": 0.0}
    made = sample(world, world.manifest(sources=[source | {"license": "mit"}], mix=mix))
    assert [ask.prompt_token_ids for ask in made.asks] == [
        pack_ids(world.words.encode(["user first assistant answer"])[0])
    ]
