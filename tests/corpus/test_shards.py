from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from corpus.errors import UserError
from corpus.shards import CapturedRow, ShardMeta, ShardReader, shard_index, write_shard

META = ShardMeta("capture", (1, 3), True, "org/model", "abc", "float32")


def make_rows(lengths: list[int], states: int = 3, hidden: int = 4) -> list[CapturedRow]:
    generator = torch.Generator().manual_seed(sum(lengths))
    return [
        CapturedRow(
            f"r{i}-é",
            torch.randint(0, 1000, (tokens,), generator=generator, dtype=torch.int32),
            torch.randint(0, 2, (tokens,), generator=generator, dtype=torch.uint8),
            torch.randn(tokens, states, hidden, generator=generator),
        )
        for i, tokens in enumerate(lengths)
    ]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    dtype=st.sampled_from(["float32", "bfloat16", "float16"]),
    final=st.booleans(),
)
def test_write_then_read_is_the_identity(tmp_path: Path, lengths: list[int], dtype: str, final: bool) -> None:
    meta = ShardMeta("capture", (1, 3), final, "org/model", "abc", dtype)
    rows = make_rows(lengths, states=meta.states_per_token)
    written = write_shard(tmp_path / "a.safetensors", rows, meta)
    assert written.size_bytes == written.path.stat().st_size
    with ShardReader(written.path) as reader:
        assert reader.meta == meta
        assert len(reader) == len(rows)
        for index in reversed(range(len(rows))):
            row = reader.row(index)
            assert row.response_id == rows[index].response_id
            assert torch.equal(row.input_ids_T, rows[index].input_ids_T)
            assert torch.equal(row.loss_mask_T, rows[index].loss_mask_T)
            assert torch.equal(row.states_TNH, rows[index].states_TNH.to(getattr(torch, dtype)))
    assert shard_index(written.path) == (meta, tuple(row.response_id for row in rows), tuple(lengths))


def test_nothing_is_padded_and_the_header_speaks_both_conventions(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "a.safetensors", make_rows([5, 1, 30]), META).path
    with safe_open(str(path), framework="pt") as file:
        texts = file.metadata()
        assert file.get_slice("states").get_shape() == [36, 3, 4]
        assert file.get_tensor("offsets").tolist() == [0, 5, 6, 36]
    assert json.loads(texts["layer_ids"]) == [1, 3]
    assert json.loads(texts["vllm_layer_ids"]) == [2, 4]
    assert texts["final_state"] == "before_norm"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("keep", [0, 4, 40, 700, -1])
def test_a_torn_file_is_one_line(tmp_path: Path, keep: int) -> None:
    path = write_shard(tmp_path / "a.safetensors", make_rows([9, 9]), META).path
    data = path.read_bytes()
    path.write_bytes(data[:keep])
    for read in (ShardReader, shard_index):
        with pytest.raises(UserError, match="not a whole hidden-state shard") as caught:
            read(path)
        assert "\n" not in str(caught.value)


def test_a_newer_schema_and_a_missing_file(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "a.safetensors", make_rows([3]), META).path
    with safe_open(str(path), framework="pt") as file:
        texts = file.metadata()
    save_file(load_file(str(path)), str(path), metadata={**texts, "schema_version": "99"})
    with pytest.raises(UserError, match="schema 99"):
        ShardReader(path)
    with pytest.raises(UserError, match="no such shard"):
        shard_index(tmp_path / "none.safetensors")


def test_rows_must_fit(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="states a token"):
        write_shard(tmp_path / "a.safetensors", make_rows([3], states=2), META)
    assert list(tmp_path.iterdir()) == []


def test_the_index_needs_no_torch(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "a.safetensors", make_rows([3, 4]), META).path
    code = (
        "import sys, pathlib; from corpus.shards import shard_index; "
        f"print(shard_index(pathlib.Path({str(path)!r}))[2], 'torch' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["(3,", "4)", "False"]
