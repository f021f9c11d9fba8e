from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from transformers import AutoModelForCausalLM

from corpus.errors import Retryable, UserError
from corpus.shards import ShardReader
from extraction.capture import Capture, find_layers
from extraction.messages import ExtractConfig, ExtractItem, ExtractReceipt, ExtractRow
from extraction.selftest import check_capture
from extraction.worker import capture_rows, create
from tests.extraction.tiny import random_rows, save_tiny

LAYERS = (1, 4, 6)
KINDS = ("qwen3", "llama", "gdn")


@pytest.fixture(scope="module", params=KINDS)
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return save_tiny(tmp_path_factory.mktemp(request.param), request.param)


def plain_states(model: Any, row: Sequence[int]) -> torch.Tensor:
    """[T, N, H] by a loop over the model's own layers' outputs: no padding, no capture code."""
    seen: list[torch.Tensor] = []
    handles = [
        layer.register_forward_hook(lambda _m, _i, out: seen.append(out[0] if isinstance(out, tuple) else out))
        for layer in model.model.layers
    ]
    with torch.no_grad():
        hidden = model(torch.tensor([list(row)]), output_hidden_states=True).hidden_states
    for handle in handles:
        handle.remove()
    for layer_id in LAYERS:  # transformers' own record agrees with the loop
        assert torch.equal(hidden[layer_id + 1], seen[layer_id])
    assert torch.allclose(model.model.norm(seen[-1]), hidden[-1], atol=1e-6)
    return torch.stack([seen[i][0] for i in (*LAYERS, len(seen) - 1)], dim=1)


def test_a_shard_equals_a_plain_unpadded_forward(target: Path, tmp_path: Path) -> None:
    rows = random_rows([5, 40, 17, 31, 2])
    config = ExtractConfig(
        target_dir=str(target),
        target="org/tiny",
        revision="abc",
        dtype="float32",
        store_dtype="float32",
        layer_ids=LAYERS,
        final_state=True,
        capture_id="cap",
        out_dir=str(tmp_path / "hidden"),
        max_tokens_per_batch=64,
        threads=1,
    )
    item = ExtractItem(item_id="one", rows=[ExtractRow(f"r{i}", row[:-1], row[-1:]) for i, row in enumerate(rows)])

    async def twice() -> list[ExtractReceipt]:
        handler = create(msgspec.msgpack.encode(config), lambda _: None)
        answers = await asyncio.gather(*[handler.handle(msgspec.msgpack.encode(item)) for _ in range(2)])
        handler.close()
        return [msgspec.msgpack.decode(answer, type=ExtractReceipt) for answer in answers]

    first, second = asyncio.run(twice())
    assert (first.shard, first.size_bytes, first.rows) == (second.shard, second.size_bytes, second.rows)
    assert first.failed == []
    assert [(e.response_id, e.row, e.tokens) for e in first.rows] == [
        (f"r{i}", i, len(row)) for i, row in enumerate(rows)
    ]
    assert first.tokens == sum(map(len, rows))
    assert "batches" in first.batches
    assert [path.name for path in (tmp_path / "hidden").iterdir()] == [first.shard]

    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    with ShardReader(tmp_path / "hidden" / first.shard) as reader:
        assert reader.meta.layer_ids == LAYERS
        assert reader.meta.final_state
        for index, row in enumerate(rows):
            got = reader.row(index)
            want = plain_states(model, row)
            assert got.input_ids_T.tolist() == row
            assert got.loss_mask_T.tolist() == [0] * (len(row) - 1) + [1]
            for n in range(want.shape[1]):
                difference = (got.states_TNH[:, n] - want[:, n]).abs().max()
                assert difference < 1e-4 * want[:, n].pow(2).mean().sqrt()


def test_without_the_final_state_the_forward_stops_early(target: Path) -> None:
    capture = Capture(target, (1, 4), final_state=False)
    ran: list[int] = []
    for i, layer in enumerate(capture.layers):
        layer.register_forward_pre_hook(lambda _m, _i, i=i: ran.append(i))
    rows = random_rows([9, 4])
    states = capture.forward(rows)
    assert ran == [0, 1, 2, 3, 4]
    assert [tuple(s.shape) for s in states] == [(9, 2, 32), (4, 2, 32)]
    full = Capture(target, (1, 4)).forward(rows)
    assert torch.equal(states[0], full[0][:, :2])
    assert not any(layer._forward_hooks for layer in capture.layers)


def test_no_output_head_is_run(target: Path) -> None:
    assert not any("lm_head" in name for name, _ in Capture(target, (1,)).decoder.named_modules())


def test_the_selftest_passes_and_catches_damage(target: Path) -> None:
    rows = random_rows([30, 7, 12, 18, 3])
    assert check_capture(Capture(target, LAYERS), rows) < 1e-4
    assert check_capture(Capture(target, (2, 7)), rows) < 1e-4  # the last layer's own output, captured

    class Shifted(Capture):
        def forward(self, rows: Sequence[Sequence[int]]) -> list[Any]:
            return [states.roll(1, dims=1) for states in super().forward(rows)]

    class Zero(Capture):
        def forward(self, rows: Sequence[Sequence[int]]) -> list[Any]:
            return [torch.zeros_like(states) for states in super().forward(rows)]

    class Broken(Capture):
        def forward(self, rows: Sequence[Sequence[int]]) -> list[Any]:
            return [states / 0 for states in super().forward(rows)]

    for wrong, words in ((Shifted, "differs"), (Zero, "all zero"), (Broken, "not finite")):
        with pytest.raises(UserError, match=words) as caught:
            check_capture(wrong(target, LAYERS), rows)
        assert "\n" not in str(caught.value)


def test_bfloat16_passes_its_own_selftest(target: Path) -> None:
    check_capture(Capture(target, LAYERS, dtype="bfloat16"), random_rows([30, 7, 12]))
    check_capture(Capture(target, LAYERS, dtype="float32", store_dtype="bfloat16"), random_rows([30, 7]))


def test_out_of_memory_halves_and_goes_on() -> None:
    class Small:
        calls = 0

        def forward(self, rows: Sequence[Sequence[int]]) -> list[Any]:
            self.calls += 1
            if len(rows) * max(map(len, rows)) > 40:
                raise torch.OutOfMemoryError("no room")
            return [torch.full((len(row), 1, 1), float(row[0])) for row in rows]

    rows = random_rows([10] * 9 + [60, 3, 3, 0])
    states, failed, cut = capture_rows(Small(), rows, 100, 100)
    assert failed == {9: "out of memory with 60 tokens alone", 12: "it has no tokens"}
    assert sorted(states) == [*range(9), 10, 11]
    assert all(states[i].shape[0] == len(rows[i]) and states[i][0, 0, 0] == rows[i][0] for i in states)
    assert cut.endswith("%")
    with pytest.raises(Retryable, match="stopped"):
        capture_rows(Small(), rows, 100, 100, lambda: True)


def test_a_folder_without_a_model_and_an_unknown_shape(tmp_path: Path, target: Path) -> None:
    with pytest.raises(UserError, match="cannot load"):
        Capture(tmp_path, (1,))
    with pytest.raises(UserError, match="layers 0 to 7"):
        Capture(target, (8,))
    with pytest.raises(UserError, match="cannot be captured"):
        find_layers(Capture(target, (1,)).decoder, 5)
