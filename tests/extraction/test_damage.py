"""Hidden-state shards that are gone or cut: forgotten with a line, so that they are captured again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from corpus.ledger import ingest
from corpus.ledger.rebuild import adopt, rebuild_workspace
from corpus.ledger.writer import open_ledger
from corpus.shard_writer import write_shard
from corpus.shards import CapturedRow, ShardMeta, capture_body

World = Any
META = ShardMeta("cap", (1, 3), True, "org/tiny", "abc", "float32")


def shard(world: World, name: str, *response_ids: str) -> Path:
    rows = [
        CapturedRow(response_id, torch.zeros(4), torch.zeros(4), torch.zeros(4, 3, 8)) for response_id in response_ids
    ]
    return write_shard(world.workspace.hidden("cap") / name, rows, META).path


def named(ledger: Any) -> list[str]:
    return [row[0] for row in ledger.rows("SELECT response_id FROM hidden_rows ORDER BY 1")]


@pytest.mark.parametrize("kept", [0, 100, None])
def test_a_shard_that_is_gone_or_cut_is_forgotten_and_another_one_stays(
    world: World, kept: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    path = shard(world, "a.safetensors", "r1", "r2")
    shard(world, "b.safetensors", "r3")
    with open_ledger(world.workspace, "test") as ledger:
        assert adopt(ledger) == 2
        assert named(ledger) == ["r1", "r2", "r3"]
        data = path.read_bytes()
        path.unlink()
        if kept is not None:
            path.write_bytes(data[:kept])
        assert adopt(ledger) == 0
        assert named(ledger) == ["r3"]
        assert ledger.rows("SELECT shard FROM hidden_shards") == [("b.safetensors",)]
    assert "`draftmill extract` captures again what was in them" in caplog.text
    assert not path.exists()


def test_a_changed_bit_is_found_by_a_rebuild_as_long_as_the_ledger_remembers(world: World) -> None:
    path = shard(world, "a.safetensors", "r1")
    with open_ledger(world.workspace, "test") as ledger:
        adopt(ledger)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    assert rebuild_workspace(world.workspace)["hidden shards"] == 0
    assert path.with_name("a.safetensors.damaged").exists()


@pytest.mark.parametrize("text", [None, "", "{half", "[1]", '{"capture_id": "other"}'])
def test_a_capture_is_described_anew_from_its_shards(world: World, text: str | None) -> None:
    path = shard(world, "a.safetensors", "r1")
    described = path.with_name("capture.json")
    if text is not None:
        described.write_text(text)
    assert rebuild_workspace(world.workspace)["captures"] == 1
    assert json.loads(described.read_text()) == capture_body(path)
    with open_ledger(world.workspace, "test") as ledger:
        ledger.call(lambda connection: ingest.ingest_capture(connection, world.workspace, "cap"))
        assert ledger.rows("SELECT model, hidden_size, final_state FROM captures") == [("org/tiny", 8, "before_norm")]


def test_a_shard_that_was_written_after_the_next_run_had_begun_doubles_nothing(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    shard(world, "b.safetensors", "r1", "r2")
    with open_ledger(world.workspace, "test") as ledger:
        assert adopt(ledger) == 1
        late = shard(world, "a.safetensors", "r0", "r2")
        adopt(ledger)
        assert not late.exists()
        assert named(ledger) == ["r1", "r2"]
        assert adopt(ledger) == 0
    assert "holds 1 rows that are captured already" in caplog.text
