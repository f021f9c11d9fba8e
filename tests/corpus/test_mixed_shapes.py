"""A folder of several shapes, and what a build says of sources that give little or nothing."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from corpus.building import selected_rows
from corpus.errors import UserError
from corpus.ledger.query import query
from corpus.ledger.writer import open_ledger
from draftmill.selecting import build_stage
from draftmill.session import Session

World = Any
SHAPES = {
    "chat": lambda i: {"id": i, "messages": [{"role": "user", "content": f"chat {i}"}]},
    "gpt": lambda i: {
        "id": i,
        "conversations": [{"from": "human", "value": f"gpt {i}"}, {"from": "gpt", "value": "a"}],
    },
    "alpaca": lambda i: {"id": i, "instruction": f"alpaca {i}", "input": "", "output": "a"},
    "ask": lambda i: {"id": i, "question": f"ask {i}", "answer": "a"},
    "pref": lambda i: {
        "chosen": [{"role": "user", "content": f"pref {i}"}, {"role": "assistant", "content": "a"}],
        "rejected": [{"role": "user", "content": f"pref {i}"}, {"role": "assistant", "content": "b"}],
    },
    "tools": lambda i: {
        "messages": [
            {"role": "user", "content": f"tools {i}"},
            {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": [i]}}]},
            {"role": "tool", "content": "r"},
        ]
    },
}
MIX = {"total": 60, "shares": {"coding": 1}, "holdout": 0.0}


@pytest.mark.parametrize("kind", ["files", "rows", "parquet"])
def test_a_folder_of_several_shapes_loses_no_row_and_says_what_it_found(world: World, kind: str) -> None:
    (world.root / "raw").mkdir()
    made = {name: [shape(i) for i in range(10)] for name, shape in SHAPES.items()}
    if kind == "rows":
        world.jsonl("raw/all.jsonl", [rows[i] for i in range(10) for rows in made.values()])
    for name, rows in made.items() if kind != "rows" else ():
        if kind == "parquet" and name != "tools":
            pl.DataFrame(rows).write_parquet(world.root / "raw" / f"{name}.parquet")
        else:
            world.jsonl(f"raw/{name}.jsonl", rows)
    source = {"name": "raw", "path": "raw", "category": "coding", "keep_original": True}
    path = world.write(sources=[source], mix=MIX)
    with open_ledger(world.workspace, "build") as ledger:
        plan = build_stage(Session(path, world.workspace), ledger)
    assert plan.selected == 60
    texts = selected_rows(world.workspace, plan)["messages"].str.extract(r'content":"(\w+) \d')
    assert texts.value_counts(sort=True)["count"].to_list() == [10] * 6
    found = query(world.workspace, "SELECT format FROM pools").item()
    assert {"messages", "sharegpt", "alpaca", "prompt: question", "preference", "trace"} == set(found.split(", "))
    answers = query(world.workspace, "SELECT answers FROM original_text")["answers"].to_list()
    assert answers.count(["a"]) == 40  # chat has none, and the call of a tool stands in the tools' rows


def test_a_format_that_is_named_holds_for_all_rows(world: World) -> None:
    world.jsonl("s.jsonl", [SHAPES["gpt"](i) for i in range(5)])
    source = {"name": "s", "path": "s.jsonl", "category": "coding", "format": "alpaca"}
    with pytest.raises(UserError) as caught:
        world.plan(world.manifest(sources=[source], mix=MIX | {"total": 3}))
    assert str(caught.value).splitlines()[-1] == "  s gives no prompt at all: 5 empty_prompt"


def test_a_source_that_gives_nothing_or_is_read_in_the_wrong_way_is_said_by_a_build_that_goes_on(world: World) -> None:
    world.jsonl("gpt.jsonl", [SHAPES["gpt"](i) for i in range(5)])
    world.jsonl("half.jsonl", [SHAPES["alpaca"](i) if i % 2 else {"instruction": None} for i in range(10)])
    good = {"name": "good", "path": world.prompts("good", 30), "category": "coding"}
    sources = [
        good,
        {"name": "wrong", "path": "gpt.jsonl", "category": "coding", "format": "alpaca"},
        {"name": "none", "path": "good.jsonl", "category": "coding", "where": "id > 99"},
        {"name": "half", "path": "half.jsonl", "category": "coding", "format": "alpaca"},
    ]
    plan = world.plan(world.manifest(sources=sources, mix=MIX | {"total": 20}))
    assert plan.notes[-4:] == (
        "Of 75 rows: 10 empty_prompt, 30 left out by where.",
        "wrong gives no prompt at all: 5 empty_prompt",
        "none gives no prompt at all: 30 left out by where",
        "half: 5 of 10 rows do not read as alpaca: 5 empty_prompt",
    )


def test_where_sees_lists_and_objects_of_json_rows_as_json_text(world: World) -> None:
    rows = [{"prompt": f"p{i}", "meta": {"kind": "x" if i % 2 else "y"}, "tags": [i]} for i in range(10)]
    world.jsonl("s.jsonl", rows)
    source = {"name": "s", "path": "s.jsonl", "category": "coding", "where": "meta LIKE '%\"x\"%'"}
    plan = world.plan(world.manifest(sources=[source], mix=MIX | {"total": 5}))
    assert plan.pools[0].rows == 5
    with pytest.raises(UserError, match=r"Columns are prompt, meta, tags\."):
        world.plan(world.manifest(sources=[{**source, "where": "nope = 1"}], mix=MIX | {"total": 5}))


def test_a_larger_holdout_holds_out_what_a_smaller_one_does_whatever_the_seed(world: World) -> None:
    def held(holdout: float, seed: int) -> set[str]:
        sources = [{"name": "s", "path": world.prompts("s", 400), "category": "coding"}]
        mix = {"total": 200, "shares": {"coding": 1}, "holdout": holdout}
        plan = world.plan(world.manifest(sources=sources, mix=mix, seed=seed))
        return set(selected_rows(world.workspace, plan).filter("holdout")["prompt_id"])

    small, large = held(0.02, 1), held(0.05, 2)
    assert small < large
    assert held(0.02, 9) == small
