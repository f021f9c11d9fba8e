from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from corpus.artefacts import sha256_file
from corpus.errors import DamagedError, UserError
from corpus.shard_writer import ShardWriter, write_shard
from corpus.shards import CapturedRow, ShardMeta, ShardReader, capture_body, shard_index, shard_tokens

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
    assert shard_tokens(written.path) == [
        (row.input_ids_T.numpy().tobytes(), row.loss_mask_T.numpy().tobytes()) for row in rows
    ]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_rows_come_in_any_order_and_those_that_never_come_are_left_out(tmp_path: Path, data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 20), min_size=1, max_size=8))
    meta = ShardMeta("capture", (1, 3), True, "org/model", "abc", data.draw(st.sampled_from(["float32", "bfloat16"])))
    rows = make_rows(lengths)
    order = data.draw(st.permutations(range(len(rows))))
    came = order[: data.draw(st.integers(0, len(rows)))]
    parts = data.draw(st.lists(st.integers(1, 3), min_size=len(rows), max_size=len(rows)))
    path = tmp_path / "b.safetensors"
    path.unlink(missing_ok=True)
    with ShardWriter(path, meta, [row.response_id for row in rows], lengths, 4) as writer:
        left = list(came)
        for size in parts:
            batch, left = left[:size], left[size:]
            if batch:
                together = [torch.cat([getattr(rows[i], name) for i in batch]) for name in ROW_TENSORS]
                writer.put(batch, *together)
        written = writer.finish()
    assert (written is None) == (not came)
    assert [p.name for p in tmp_path.iterdir()] == (["b.safetensors"] if came else [])
    if written is None:
        return
    assert written.sha256 == sha256_file(path)
    whole = load_file(path)  # the library itself finds no fault
    assert whole["states"].shape[0] == sum(lengths[i] for i in came)
    with ShardReader(path) as reader:
        assert list(reader.response_ids) == [rows[i].response_id for i in sorted(came)]
        for index, i in enumerate(sorted(came)):
            row = reader.row(index)
            assert torch.equal(row.input_ids_T, rows[i].input_ids_T)
            assert torch.equal(row.loss_mask_T, rows[i].loss_mask_T)
            assert torch.equal(row.states_TNH, rows[i].states_TNH.to(getattr(torch, meta.dtype)))


ROW_TENSORS = ("states_TNH", "input_ids_T", "loss_mask_T")


def test_a_shard_that_is_not_ended_leaves_nothing(tmp_path: Path) -> None:
    (row,) = make_rows([4])
    with pytest.raises(KeyboardInterrupt), ShardWriter(tmp_path / "c.safetensors", META, ["r"], [4], 4) as writer:
        writer.put([0], row.states_TNH, row.input_ids_T, row.loss_mask_T)
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_a_row_that_comes_twice_or_has_another_shape_is_a_bug(tmp_path: Path) -> None:
    (row,) = make_rows([4])
    with ShardWriter(tmp_path / "c.safetensors", META, ["r", "s"], [4, 5], 4) as writer:
        writer.put([0], row.states_TNH, row.input_ids_T, row.loss_mask_T)
        for rows, words in (([0], "came twice"), ([1], "expected")):
            with pytest.raises(ValueError, match=words):
                writer.put(rows, row.states_TNH, row.input_ids_T, row.loss_mask_T)


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
    for read in (ShardReader, capture_body, shard_index, shard_tokens):
        with pytest.raises(UserError, match="not a whole hidden-state shard") as caught:
            read(path)
        assert "\n" not in str(caught.value)


def test_a_path_may_be_a_string(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "a.safetensors", make_rows([3, 2]), META).path
    assert shard_index(str(path)) == shard_index(path)
    assert shard_tokens(str(path)) == shard_tokens(path)
    assert capture_body(str(path)) == capture_body(path)
    with ShardReader(str(path)) as reader:
        assert len(reader) == 2
        assert reader.path == path


def test_a_mistake_of_the_caller_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_shard(tmp_path / "a.safetensors", make_rows([3, 2]), META).path

    def closed(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    for read in (ShardReader, capture_body, shard_index, shard_tokens):
        with pytest.raises(UserError, match="is a folder") as folder:
            read(tmp_path)
        with pytest.raises(TypeError):
            read(None)  # type: ignore[arg-type]
        with monkeypatch.context() as patch:
            patch.setattr(Path, "open", closed)
            with pytest.raises(UserError, match=r"cannot be read \(Permission denied\)") as refused:
                read(path)
        for caught in (folder, refused):
            assert not isinstance(caught.value, DamagedError)
            assert "Remove it" not in str(caught.value)


@pytest.mark.parametrize("name", ["input_ids", "loss_mask"])
def test_tokens_that_are_no_number_a_token_are_one_line(tmp_path: Path, name: str) -> None:
    path = write_shard(tmp_path / "a.safetensors", make_rows([3, 2]), META).path
    with safe_open(str(path), framework="pt") as file:
        texts = file.metadata()
    tensors = load_file(str(path))
    for changed in ({}, {name: tensors[name].double()}, {name: tensors[name][:4].clone()}):
        save_file({key: value for key, value in tensors.items() if key != name} | changed, str(path), metadata=texts)
        if changed:  # the index looks at neither
            assert shard_index(path)[2] == (3, 2)
        with pytest.raises(UserError, match=f"not a whole hidden-state shard .*{name}") as caught:
            shard_tokens(path)
        assert "\n" not in str(caught.value)


def test_a_newer_schema_and_a_missing_file(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "a.safetensors", make_rows([3]), META).path
    with safe_open(str(path), framework="pt") as file:
        texts = file.metadata()
    save_file(load_file(str(path)), str(path), metadata={**texts, "schema_version": "99"})
    with pytest.raises(UserError, match="schema 99"):
        ShardReader(path)
    for read in (shard_index, shard_tokens):
        with pytest.raises(UserError, match="no such shard"):
            read(tmp_path / "none.safetensors")


def test_rows_must_fit(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"states \(3, 2, 4\) for 3 tokens; expected \(3, 3, 4\)"):
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


def with_header(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Write a shard again with another header, of equal length at least."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])


def renamed(header: dict[str, Any], name: str) -> None:
    header["other"] = header.pop(name)


def told(header: dict[str, Any], key: str, value: str) -> None:
    header["__metadata__"][key] = value


@pytest.mark.parametrize(
    "change",
    [
        lambda header: renamed(header, "input_ids"),
        lambda header: renamed(header, "loss_mask"),
        lambda header: renamed(header, "states"),
        lambda header: header["offsets"].update(data_offsets=[]),
        lambda header: header["offsets"].update(data_offsets=[-(2**70), 2**70]),
        lambda header: told(header, "schema_version", "inf"),
        lambda header: told(header, "response_ids", json.dumps(["r0", "r0"])),
        lambda header: told(header, "response_ids", json.dumps([1, 2])),
        lambda header: told(header, "layer_ids", "[" * 100_000),
    ],
)
def test_a_damaged_header_is_one_line_from_every_reader(
    tmp_path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    path = write_shard(tmp_path / "a.safetensors", make_rows([2, 3]), META).path
    with_header(path, change)
    for read in (shard_index, shard_tokens, capture_body, lambda path: list(ShardReader(path))):
        with pytest.raises(DamagedError) as caught:
            read(path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("offsets", [(1, 2, 5), (-5, 2, 5), (0, 6, 5), (0, 2**62, 5), (0, -1, 5)])
def test_rows_that_overlap_are_damage(tmp_path: Path, offsets: tuple[int, ...]) -> None:
    path = write_shard(tmp_path / "a.safetensors", make_rows([2, 3]), META).path
    data = bytearray(path.read_bytes())
    good = struct.pack("<3q", 0, 2, 5)
    at = bytes(data).index(good)
    data[at : at + len(good)] = struct.pack("<3q", *offsets)
    path.write_bytes(data)
    with pytest.raises(DamagedError, match="its rows overlap"):
        shard_index(path)
