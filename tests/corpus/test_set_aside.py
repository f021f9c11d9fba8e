"""Rows that could not be captured: in a file beside the shards, in the ledger, and gone once they are captured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from corpus.artefacts import write_text
from corpus.ledger import ingest
from corpus.ledger.rebuild import adopt, rebuild_workspace
from corpus.ledger.writer import open_ledger
from corpus.set_aside import FILE, SetAside, forget, read_set_aside, write_set_aside
from corpus.shard_writer import write_shard
from corpus.shards import CapturedRow, ShardMeta

World = Any
ROWS = {
    name: SetAside(9000 + n, f"out of memory with {9000 + n} tokens alone", "cuda:3") for n, name in enumerate("abc")
}
CAPTURE = {
    "model": "org/tiny", "revision": "abc", "layer_ids": [1], "final_state": "none", "dtype": "float32",
    "hidden_size": 8,
}  # fmt: skip


def test_what_is_written_is_read_and_what_was_captured_is_forgotten(tmp_path: Path) -> None:
    assert read_set_aside(tmp_path) == {}
    forget(tmp_path, ["a"])
    assert list(tmp_path.iterdir()) == []
    write_set_aside(tmp_path, ROWS)
    assert read_set_aside(tmp_path) == ROWS
    written = (tmp_path / FILE).stat().st_ino
    forget(tmp_path, ["somebody", "else"])
    assert (tmp_path / FILE).stat().st_ino == written
    forget(tmp_path, ["somebody", "b"])
    assert read_set_aside(tmp_path) == {name: ROWS[name] for name in "ac"}
    forget(tmp_path, iter("abc"))
    assert read_set_aside(tmp_path) == {}


@pytest.mark.parametrize("text", ["", "{half", "[1]", "{}", '{"rows": {"a": 1}}', '{"rows": {"a": {"tokens": 1}}}'])
def test_a_damaged_file_sets_nothing_aside(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    assert read_set_aside(tmp_path) == {}


def test_a_changed_reason_is_damage(tmp_path: Path) -> None:
    write_set_aside(tmp_path, ROWS)
    path = tmp_path / FILE
    path.write_text(path.read_text().replace("9000", "9009"))
    assert read_set_aside(tmp_path) == {}


def capture(world: World, capture_id: str) -> Path:
    """A capture with three rows set aside."""
    folder: Path = world.workspace.hidden(capture_id)
    folder.mkdir(parents=True)
    write_text(folder / "capture.json", json.dumps({"capture_id": capture_id, **CAPTURE}))
    write_set_aside(folder, ROWS)
    return folder


def shard(folder: Path, name: str, *response_ids: str) -> Path:
    meta = ShardMeta(folder.name, (1,), False, "org/tiny", "abc", "float32")
    rows = [CapturedRow(one, torch.zeros(4), torch.zeros(4), torch.zeros(4, 1, 8)) for one in response_ids]
    return write_shard(folder / name, rows, meta).path


def failures(ledger: Any) -> list[Any]:
    return ledger.rows("SELECT capture_id, response_id, tokens, reason, device FROM hidden_failures ORDER BY ALL")


def of(capture_id: str, *response_ids: str) -> list[Any]:
    return [(capture_id, one, ROWS[one].tokens, ROWS[one].reason, ROWS[one].device) for one in response_ids]


def test_a_row_that_is_captured_after_all_is_set_aside_no_longer(world: World) -> None:
    folder, other = capture(world, "cap"), capture(world, "other")
    with open_ledger(world.workspace, "test") as ledger:

        def enter() -> None:
            for name in ("cap", "other"):
                ledger.call(lambda c, name=name: ingest.ingest_capture(c, world.workspace, name))

        enter()
        assert failures(ledger) == of("cap", *"abc") + of("other", *"abc")
        path = shard(folder, "1.safetensors", "b", "x")
        ledger.call(lambda c: ingest.ingest_hidden_shard(c, path))
        left = of("cap", *"ac") + of("other", *"abc")
        assert failures(ledger) == left
        enter()  # whether the file has forgotten it or not
        assert failures(ledger) == left
        forget(folder, ["b", "x"])
        enter()
        assert failures(ledger) == left
        shard(other, "2.safetensors", "a")
        assert adopt(ledger) == 1
        assert failures(ledger) == of("cap", *"ac") + of("other", *"bc")


@pytest.mark.parametrize("forgotten", [True, False])
def test_a_rebuild_sets_the_same_rows_aside(world: World, forgotten: bool) -> None:
    folder = capture(world, "cap")
    path = shard(folder, "1.safetensors", "b")
    with open_ledger(world.workspace, "test") as ledger:
        ledger.call(lambda c: ingest.ingest_capture(c, world.workspace, "cap"))
        ledger.call(lambda c: ingest.ingest_hidden_shard(c, path))
        before = failures(ledger)
    assert before == of("cap", *"ac")
    if forgotten:
        forget(folder, ["b"])
    rebuild_workspace(world.workspace)
    with open_ledger(world.workspace, "test") as ledger:
        assert failures(ledger) == before
