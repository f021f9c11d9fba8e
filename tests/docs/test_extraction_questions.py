"""The questions that docs/extraction.md asks of a workspace are asked of one with states, and a row that has none."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from corpus.ledger import ingest
from corpus.ledger.query import query
from corpus.ledger.writer import open_ledger
from corpus.set_aside import SetAside, write_set_aside
from corpus.shard_writer import write_shard
from corpus.shards import CapturedRow, ShardMeta
from tests.conftest import World

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "extraction.md").read_text()
QUESTIONS = re.findall(r"^```sql\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
META = ShardMeta("capture", (1, 3), True, "org/model", "rev", "bfloat16")


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Rows of two categories in one shard; of each category one row is set aside."""
    world = World(tmp_path_factory.mktemp("states"))
    manifest = world.manifest(mix={"total": 20, "shares": {"coding": 1, "general": 1}, "holdout": 0.2})
    world.tell(manifest)
    rows = query(
        world.workspace,
        "SELECT b.category, response_id, prompt_tokens + response_tokens FROM build_responses b "
        "JOIN accepted_responses r USING (response_id) ORDER BY b.category, response_id",
    ).rows()
    first = {category: (response_id, tokens) for category, response_id, tokens in reversed(rows)}
    aside = {
        one: SetAside(tokens, f"out of memory with {tokens} tokens alone", "cpu:0") for one, tokens in first.values()
    }
    kept = [
        CapturedRow(one, torch.zeros(n), torch.ones(n), torch.ones(n, 3, 64)) for _, one, n in rows if one not in aside
    ]
    folder = world.workspace.hidden("capture")
    path = write_shard(folder / "a.safetensors", kept, META).path
    write_set_aside(folder, aside)
    (folder / "capture.json").write_text(json.dumps(META.description(64, "float32")))
    with open_ledger(world.workspace, "extract") as ledger:
        ledger.call(lambda c: ingest.ingest_capture(c, world.workspace, "capture"))
        ledger.call(lambda c: ingest.ingest_hidden_shard(c, path))
    return world


def test_every_question_of_the_page_has_its_answer(captured: World) -> None:
    taken, aside, kept = (query(captured.workspace, question) for question in QUESTIONS)
    ((rows, tokens, size),) = query(captured.workspace, "SELECT rows, tokens, size_bytes FROM hidden_shards").rows()
    assert taken["rows"].sum() == rows
    assert taken["tokens"].sum() == tokens
    assert set(taken["category"]) == {"coding", "general"}
    assert set(taken["holdout"]) == {True, False}
    assert abs(taken["gb"].sum() - size / 1e9) < 0.0005 * taken.height
    assert aside.select("category", "reason", "rows").sort("category").rows() == [
        ("coding", "out of memory with N tokens alone", 1),
        ("general", "out of memory with N tokens alone", 1),
    ]
    assert kept.select("layer_ids", "final_state", "dtype", "hidden_size", "shards", "rows").rows() == [
        ([1, 3], "before_norm", "bfloat16", 64, 1, rows)
    ]


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_questions_fit_a_page(question: str) -> None:
    assert max(map(len, question.splitlines())) <= 120


def test_the_page_names_all_that_a_capture_says_of_itself() -> None:
    for name in META.description(64, "float32"):
        assert f"`{name}`" in PAGE
