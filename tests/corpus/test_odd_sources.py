"""Sources that are odd in what they hold or where they lie: built with counts that add up, or refused in one line."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from corpus.building import commit_build
from corpus.errors import UserError
from corpus.ledger.query import query
from corpus.ledger.writer import open_ledger

World = Any


def build(world: World, mix: dict[str, Any] | None = None, good: bool = True, **source: Any) -> None:
    sources = [{"name": "odd", "path": "odd.jsonl", "category": "coding", **source}]
    if good:
        sources.append({"name": "good", "path": world.prompts("good", 20), "category": "coding"})
    manifest = world.manifest(sources=sources, mix={"total": 5, "shares": {"coding": 1}, **(mix or {})})
    with open_ledger(world.workspace, "test") as ledger:
        commit_build(world.plan(manifest), world.workspace, ledger)


def funnel(world: World) -> dict[str, int]:
    rows = dict(query(world.workspace, "SELECT reason, rows FROM funnel WHERE source = 'odd'").rows())
    assert rows.get("read", 0) == sum(count for reason, count in rows.items() if reason != "read")
    return rows


def refused(world: World, said: str, **options: Any) -> None:
    with pytest.raises(UserError, match=said) as caught:
        build(world, **options)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000
    assert not list(world.workspace.root.glob("builds/*"))


ODD = {
    "a word of a megabyte": [{"prompt": "w" * 1_000_000}],
    "null bytes": [{"prompt": "a\0b"}, {"prompt": "\0"}],
    "escapes": [{"prompt": "\x1b[31mred\x1b]0;x\x07", "id": "\x1b[2J"}],
    "right to left": [{"prompt": "\u202eabc\u2066"}],
    "twenty thousand turns": [{"messages": [{"role": "user", "content": f"turn {i}"} for i in range(20_000)]}],
    "ten thousand tools": [{"prompt": "x", "tools": [{"name": f"t{i}"} for i in range(10_000)]}],
    "ids of every type": [
        {"id": v, "prompt": f"p{i}"} for i, v in enumerate([1, 1.5, True, None, [1], {"a": 1}, 10**30, "é\n"])
    ],
    "only bad rows": [{"prompt": 1}, {"prompt": None}, {"prompt": " "}],
    "nothing": [],
}


@pytest.mark.parametrize("rows", ODD.values(), ids=ODD)
def test_odd_rows_are_kept_or_dropped_and_counted(world: World, rows: list[dict[str, Any]]) -> None:
    world.jsonl("odd.jsonl", rows)
    build(world)
    assert funnel(world).get("read", 0) == len(rows)


@pytest.mark.parametrize(
    "where", ["CAST(prompt AS INT) > 1", "prompt ~ '['", "strptime(prompt, '%Y') > 1", "x" * 50_000, "(" * 2000]
)
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_condition_that_fails_on_a_row_is_one_line(world: World, where: str, kind: str) -> None:
    world.jsonl("odd.jsonl", [{"prompt": "a"}])
    pl.DataFrame({"prompt": ["a"]}).write_parquet(world.root / "odd.parquet")
    refused(world, "where", where=where, path=f"odd.{kind}")


def test_a_column_may_have_any_name(world: World) -> None:
    frame = pl.DataFrame({"prompt": ["a", "b", "c"], "__row": [7, 8, 9], "__kept": [False] * 3, "": [0, 1, 2]})
    data = io.BytesIO()
    frame.write_parquet(data)
    (world.root / "odd.parquet").write_bytes(data.getvalue())
    build(world, path="odd.parquet", where="__row <> 8")
    rows = query(world.workspace, "SELECT DISTINCT row_index FROM source_rows JOIN sources USING (pool_id) "
                                  "WHERE source = 'odd' ORDER BY ALL")  # fmt: skip
    assert rows["row_index"].to_list() == [0, 2]


def test_numbers_at_their_limits(world: World) -> None:
    world.jsonl("odd.jsonl", [{"prompt": "x", "kind": "a"}])
    build(world, priority=2**31 - 1, weight=5e-324, limit=10**15)
    assert funnel(world)["read"] == 1
    with pytest.raises(UserError, match="priority must fit into 32 bits"):
        build(world, priority=2**70)
    rule = {"column": "kind", "map": {"a": "math"}}
    build(world, mix={"total": 2, "shares": {"coding": 1.7e308, "math": 1.7e308}}, category=rule)


def test_a_pipe_a_name_too_long_and_no_name_are_one_line(world: World) -> None:
    os.mkfifo(world.root / "odd.jsonl")
    refused(world, "no file there")
    refused(world, "cannot be looked at", path="x" * 5000)
    with pytest.raises(UserError, match="exactly one of dataset and path"):
        build(world, path="")


def test_links_that_lead_nowhere_are_no_files(world: World) -> None:
    folder = world.root / "links"
    folder.mkdir()
    (folder / "a.jsonl").symlink_to(folder / "a.jsonl")
    (folder / "b.jsonl").symlink_to("/nowhere/b.jsonl")
    (folder / "again").symlink_to(folder)
    refused(world, "no file there", path="links")
    (folder / "c.jsonl").symlink_to(world.root / world.prompts("real", 3))
    build(world, path="links")
    assert funnel(world)["read"] == 3


def test_the_same_file_as_two_sources_is_one_set_of_prompts(world: World) -> None:
    build(world, path=world.prompts("good", 20))
    rows = query(world.workspace, "SELECT source, reason, rows FROM funnel").rows()
    assert ("odd", "same_prompt", 20) in rows
    assert Path(world.root / "good.jsonl").exists()
