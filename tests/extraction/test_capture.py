from __future__ import annotations

import asyncio
import errno
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from corpus.errors import Retryable, UserError
from corpus.shard_writer import ShardWriter
from corpus.shards import ShardMeta, ShardReader
from corpus.token_ids import pack_ids
from extraction.budget import Budgets
from extraction.capture import Capture, find_layers
from extraction.forwards import capture_rows
from extraction.limits import Limits
from extraction.messages import (
    ExtractConfig,
    ExtractItem,
    ExtractReceipt,
    ExtractRow,
    SelfTestFailed,
    WorkerAt,
    decode_event,
)
from extraction.outlet import Outlet
from extraction.plan import Cut
from extraction.selftest import check_capture
from extraction.start import ALLOCATOR, allocator_settings
from extraction.worker import create
from tests.extraction.tiny import random_rows, save_tiny

LAYERS = (1, 4, 6)
KINDS = ("qwen3", "llama", "gdn")


@pytest.fixture(scope="module", params=KINDS)
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return save_tiny(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def any_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For what does not depend on the family."""
    return save_tiny(tmp_path_factory.mktemp("any"), "qwen3")


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


def config_of(target: Path, out_dir: Path, **changes: Any) -> ExtractConfig:
    rows = changes.pop("sample", [[5, 6, 7], list(range(3, 40))])
    return ExtractConfig(
        **{
            "target_dir": str(target),
            "target": "org/tiny",
            "revision": "abc",
            "dtype": "float32",
            "store_dtype": "float32",
            "layer_ids": LAYERS,
            "final_state": True,
            "capture_id": "cap",
            "out_dir": str(out_dir),
            "max_tokens_per_batch": 64,
            "threads": 1,
            "sample": tuple(pack_ids(row) for row in rows),
            "longest": (40,),
            **changes,
        }
    )


def item_of(rows: list[list[int]], name: str = "one") -> ExtractItem:
    return ExtractItem(
        item_id=name, rows=[ExtractRow(f"{name}-{i}", len(row) - 1, pack_ids(row)) for i, row in enumerate(rows)]
    )


async def handled(config: ExtractConfig, *items: ExtractItem) -> tuple[list[ExtractReceipt], list[Any]]:
    """What a worker's handler answers to items that it has at once, and what it says beside, once it is ready."""
    said: list[Any] = []
    handler = create(msgspec.msgpack.encode(config), lambda data: said.append(decode_event(data)))
    answers = await asyncio.gather(*[handler.handle(msgspec.msgpack.encode(item)) for item in items])
    handler.close()
    begun = [event.step for event in said if isinstance(event, WorkerAt)]
    tested = ["self-test of the states"] if config.sample else []
    assert begun == ["loading the target", *tested, "measuring what a batch takes"]
    return [msgspec.msgpack.decode(answer, type=ExtractReceipt) for answer in answers], said[len(begun) :]


def test_a_shard_equals_a_plain_unpadded_forward(target: Path, tmp_path: Path) -> None:
    rows = random_rows([5, 40, 17, 31, 2])
    (first, second), said = asyncio.run(handled(config_of(target, tmp_path / "hidden"), item_of(rows), item_of(rows)))
    assert (first.shard, first.size_bytes, first.rows) == (second.shard, second.size_bytes, second.rows)
    assert first.failed == []
    assert [(e.response_id, e.row, e.tokens) for e in first.rows] == [
        (f"one-{i}", i, len(row)) for i, row in enumerate(rows)
    ]
    assert first.tokens == sum(map(len, rows))
    assert Cut(*first.cut).tokens == first.tokens
    assert [path.name for path in (tmp_path / "hidden").iterdir()] == [first.shard]
    (ready,) = said
    assert 0 < ready.difference < 1e-4
    assert 0 < ready.loaded_bytes < ready.announced_bytes <= ready.limit_bytes
    assert ready.budgets == {256: 64}

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


@pytest.mark.parametrize(("weights", "dtype", "tolerance"), [(0.05, "float32", 1e-4), (0.15, "float64", 1e-12)])
@pytest.mark.parametrize("kind", KINDS)
def test_all_layers_at_both_ends_of_a_batch_equal_the_unpadded_forward(
    kind: str, weights: float, dtype: str, tolerance: float, tmp_path: Path
) -> None:
    """Relative to the layer's root mean square. Large random weights amplify rounding: there float64 is the proof."""
    capture = Capture(save_tiny(tmp_path, kind, initializer_range=weights), LAYERS, dtype=dtype).of_all_layers()
    rows = random_rows([33, 3, 64, 21, 50])
    for batch in (rows, rows[::-1], sorted(rows, key=len), sorted(rows, key=len, reverse=True)):
        for row, states_TNH in zip(batch, capture.forward(batch, 72), strict=True):
            with torch.no_grad():
                hidden = capture.decoder(torch.tensor([row]), use_cache=False, output_hidden_states=True).hidden_states
            for n in range(len(capture.layers) - 1):  # of the last one transformers gives the state after the norm
                want_TH = hidden[n + 1][0]
                assert (states_TNH[:, n] - want_TH).abs().max() < tolerance * want_TH.pow(2).mean().sqrt()
            last_TH, want_TH = capture.decoder.norm(states_TNH[:, -1]), hidden[-1][0]
            assert (last_TH - want_TH).abs().max() < tolerance * want_TH.pow(2).mean().sqrt()
            assert torch.equal(states_TNH[:, -1], states_TNH[:, -2])


def test_states_of_what_is_computed_do_not_depend_on_what_is_stored(target: Path) -> None:
    rows = random_rows([9, 4])
    for exact, stored in zip(
        Capture(target, LAYERS).forward(rows),
        Capture(target, LAYERS, store_dtype="bfloat16").forward(rows),
        strict=True,
    ):
        assert stored.dtype == torch.bfloat16
        assert torch.equal(exact.to(torch.bfloat16), stored)


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
        def forward(self, rows: Sequence[Sequence[int]], length: int = 0) -> list[Any]:
            return [states.roll(1, dims=1) for states in super().forward(rows)]

    class Zero(Capture):
        def forward(self, rows: Sequence[Sequence[int]], length: int = 0) -> list[Any]:
            return [torch.zeros_like(states) for states in super().forward(rows)]

    class Broken(Capture):
        def forward(self, rows: Sequence[Sequence[int]], length: int = 0) -> list[Any]:
            return [states / 0 for states in super().forward(rows)]

    for wrong, words in ((Shifted, "differs"), (Zero, "all zero"), (Broken, "not finite")):
        with pytest.raises(UserError, match=words) as caught:
            check_capture(wrong(target, LAYERS), rows)
        assert "\n" not in str(caught.value)


def test_bfloat16_passes_its_own_selftest(target: Path) -> None:
    check_capture(Capture(target, LAYERS, dtype="bfloat16"), random_rows([30, 7, 12]))
    check_capture(Capture(target, LAYERS, dtype="float32", store_dtype="bfloat16"), random_rows([30, 7]))


class Small:
    """A device that holds so many padded tokens."""

    def __init__(self, holds: int) -> None:
        self.holds, self.refused = holds, 0

    def packed(self, rows: Sequence[Sequence[int]], length: int = 0) -> Any:
        if len(rows) * max(length, *map(len, rows)) > self.holds:
            self.refused += 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return torch.cat([torch.full((len(row), 1, 1), float(row[0])) for row in rows])


def taken(states: dict[int, Any], rows: Sequence[Sequence[int]]) -> Callable[[Sequence[int], Any], None]:
    def put(batch: Sequence[int], states_SNH: Any) -> None:
        states.update(zip(batch, states_SNH.split([len(rows[i]) for i in batch]), strict=True))

    return put


def test_out_of_memory_halves_and_goes_on() -> None:
    rows = random_rows([10] * 9 + [60, 3, 3, 0])
    states: dict[int, Any] = {}
    settled: list[int] = []
    device = Small(40)
    failed, cut, limits = capture_rows(
        device, rows, Limits(Budgets(100), 100), taken(states, rows), settle=lambda: settled.append(1)
    )
    assert failed == {9: "out of memory with 60 tokens alone", 12: "it has no tokens"}
    assert sorted(states) == [*range(9), 10, 11]
    assert all(states[i].shape[0] == len(rows[i]) and states[i][0, 0, 0] == rows[i][0] for i in states)
    assert (cut.rows, cut.tokens) == (11, 96)
    assert len(settled) == device.refused
    assert limits.budgets.of(10) <= 40
    again, _, kept = capture_rows(device, rows[:9], limits, taken(states, rows[:9]))
    assert (again, kept.budgets) == ({}, limits.budgets)  # what was learnt stays learnt
    with pytest.raises(Retryable, match="stopped"):
        capture_rows(Small(40), rows, Limits(Budgets(100)), taken({}, rows), stop=lambda: True)


class Shared(Small):
    """A device that also holds what earlier batches left there, in tokens."""

    def __init__(self, holds: int) -> None:
        super().__init__(holds)
        self.room, self.settled = holds, 0

    def packed(self, rows: Sequence[Sequence[int]], length: int = 0) -> Any:
        self.holds = self.room
        states = super().packed(rows, length)
        self.room -= len(states)
        return states

    def settle(self, all_of_it: int) -> bool:
        had_more, self.room = self.room < all_of_it, all_of_it
        self.settled += 1
        return had_more


def test_a_row_is_given_up_only_when_nothing_lies_beside_it() -> None:
    rows = random_rows([70, 60, 50, 90])
    states: dict[int, Any] = {}
    device = Shared(80)
    failed, _, _ = capture_rows(device, rows, Limits(Budgets(1)), taken(states, rows), settle=lambda: device.settle(80))
    assert failed == {3: "out of memory with 90 tokens alone"}
    assert sorted(states) == [0, 1, 2]
    assert device.settled == device.refused == 3  # the longest row, and two that had the one before beside them


def test_an_outlet_says_whether_something_was_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked_to_settle = threading.Event()

    class Telling(ThreadPoolExecutor):
        """Tells when something is submitted behind the one that waits for it."""

        def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
            future = super().submit(function, *arguments, **named)
            if put:
                asked_to_settle.set()
            return future

    class Slow(ShardWriter):
        def put(self, rows: Sequence[int], states_SNH: Any, input_ids_S: Any, loss_mask_S: Any) -> None:
            assert asked_to_settle.wait(60)
            super().put(rows, states_SNH, input_ids_S, loss_mask_S)

    put: list[Future[None]] = []
    monkeypatch.setattr("extraction.outlet.ThreadPoolExecutor", Telling)
    outlet = Outlet(torch.device("cpu"))
    assert not outlet.settle()
    meta = ShardMeta("cap", (1,), False, "org/tiny", "abc", "float32")
    with Slow(tmp_path / "a.safetensors", meta, ["a"], [3], 4) as writer:
        put.append(outlet.put(writer, [0], torch.zeros(3, 1, 4), torch.zeros(3), torch.zeros(3)))
        assert outlet.settle()
        assert put[0].done()
        assert not outlet.settle()


def test_a_row_that_would_take_too_much_is_not_even_tried() -> None:
    rows = random_rows([10, 60])
    states: dict[int, Any] = {}
    too_long: Callable[[int], str | None] = lambda length: f"{length} is too much" if length > 50 else None  # noqa: E731
    failed, cut, _ = capture_rows(Small(40), rows, Limits(Budgets(100), too_long=too_long), taken(states, rows))
    assert failed == {1: "60 is too much"}
    assert list(states) == [0]
    assert cut.batches == 1


def test_the_self_test_stops_a_worker_and_says_so(
    any_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Capture, "packed", lambda self, rows, length=0: Capture_packed(self, rows, length) * 2)
    said: list[Any] = []
    with pytest.raises(UserError, match="capture self-test: layer 0 differs"):
        create(msgspec.msgpack.encode(config_of(any_target, tmp_path)), lambda data: said.append(decode_event(data)))
    assert isinstance(said[-1], SelfTestFailed)


Capture_packed = Capture.packed


def test_memory_that_no_batch_fits_into_leaves_rows_with_their_reason(any_target: Path, tmp_path: Path) -> None:
    config = config_of(any_target, tmp_path, memory_bytes=1 << 20)
    (receipt,), (ready,) = asyncio.run(handled(config, item_of(random_rows([5, 30]))))
    assert receipt.shard == ""
    assert [entry.response_id for entry in receipt.failed] == ["one-0", "one-1"]
    assert "a worker here has 0.00 GB" in receipt.failed[0].reason
    assert ready.budgets == {256: 1}
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_said_when_the_shard_is_ended(
    any_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(file: int, data: Any, place: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    config, item = config_of(any_target, tmp_path), item_of(random_rows([5, 30]))
    handler = create(msgspec.msgpack.encode(config), lambda data: None)
    write = os.pwrite

    def only_the_header(file: int, data: Any, place: int) -> int:
        return no_room(file, data, place) if place else write(file, data, place)

    monkeypatch.setattr(os, "pwrite", only_the_header)
    with pytest.raises(UserError, match="the disk is full; nothing half-written was kept"):
        asyncio.run(handler.handle(msgspec.msgpack.encode(item)))
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    receipt = msgspec.msgpack.decode(asyncio.run(handler.handle(msgspec.msgpack.encode(item))), type=ExtractReceipt)
    assert len(receipt.rows) == 2


def test_a_worker_that_is_closed_in_mid_shard_leaves_nothing(any_target: Path, tmp_path: Path) -> None:
    handler = create(msgspec.msgpack.encode(config_of(any_target, tmp_path)), lambda data: None)
    handler.close()
    with pytest.raises(Retryable, match="captured again"):
        asyncio.run(handler.handle(msgspec.msgpack.encode(item_of(random_rows([5, 30])))))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("environment", "added"),
    [
        ({}, ALLOCATOR),
        ({"PYTORCH_CUDA_ALLOC_CONF": "backend:native"}, {}),
        ({"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"}, {}),
    ],
)
def test_workers_let_the_allocator_grow_unless_the_user_has_set_it(
    environment: dict[str, str], added: dict[str, str]
) -> None:
    assert allocator_settings(environment) == added


def test_a_folder_without_a_model_and_an_unknown_shape(tmp_path: Path, target: Path) -> None:
    with pytest.raises(UserError, match="cannot load"):
        Capture(tmp_path, (1,))
    with pytest.raises(UserError, match="layers 0 to 7"):
        Capture(target, (8,))
    with pytest.raises(UserError, match="cannot be captured"):
        find_layers(Capture(target, (1,)).decoder, 5)


def without(target: Path, folder: Path, *names: str) -> Path:
    """A copy of a target whose safetensors lack these tensors."""
    shutil.copytree(target, folder)
    path = folder / "model.safetensors"
    tensors = load_file(str(path))
    for name in names:
        del tensors[name]
    save_file(tensors, str(path), metadata={"format": "pt"})
    return folder


def test_a_target_that_lacks_weights_is_refused_and_not_filled_with_random_ones(
    any_target: Path, tmp_path: Path
) -> None:
    lacking = [f"model.layers.2.mlp.{name}_proj.weight" for name in ("down", "gate", "up")]
    with pytest.raises(UserError, match=r"its weights lack model\.layers\.2\.mlp\.down_proj\.weight, ") as caught:
        Capture(without(any_target, tmp_path / "holes", *lacking), (1,))
    assert str(caught.value).count("\n") == 0
    headless = save_tiny(tmp_path / "untied", "llama")
    states = Capture(headless, (1, 3)).forward([[5, 6, 7]])
    again = Capture(without(headless, tmp_path / "headless", "lm_head.weight"), (1, 3)).forward([[5, 6, 7]])
    assert torch.equal(states[0], again[0])  # nothing here runs the head


class Poisoned:
    """States of ones; a token 9 has one that is no number, a token 8 an infinite one."""

    def packed(self, rows: Sequence[Sequence[int]], length: int = 0) -> torch.Tensor:
        states_SNH = torch.ones(sum(map(len, rows)), 2, 3)
        tokens_S = torch.tensor([token for row in rows for token in row])
        states_SNH[tokens_S == 9, 1, 2] = float("nan")
        states_SNH[tokens_S == 8, 0, 0] = -float("inf")
        return states_SNH


def test_rows_whose_states_are_no_numbers_are_left_out_and_no_other() -> None:
    rows = [[1, 2, 3], [4, 9], [5], [6, 8, 6, 6], [7, 7]]
    states: dict[int, Any] = {}
    failed, cut, _ = capture_rows(Poisoned(), rows, Limits(Budgets(8)), taken(states, rows))
    assert failed == {1: "its states are no numbers in float32", 3: "its states are no numbers in float32"}
    assert sorted(states) == [0, 2, 4]
    assert all(len(states[i]) == len(rows[i]) and torch.isfinite(states[i]).all() for i in states)
    assert cut.rows == len(rows)
