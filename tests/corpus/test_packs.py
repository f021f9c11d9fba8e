"""A pack in shared memory: what is written there is read there, in the room that was said, and nowhere else."""

from __future__ import annotations

import warnings
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from corpus.errors import DamagedError
from corpus.packs import ALIGNMENT, PackLayout, PackMeta, layout_of, pack_bytes

DTYPES = ("bfloat16", "float16", "float32")
BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


@st.composite
def metas(draw: st.DrawFn) -> PackMeta:
    rows = draw(st.integers(0, 6))

    def column(values: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(values, min_size=rows, max_size=rows))

    return PackMeta(
        pack=draw(st.integers(0, 2**40)),
        response_ids=column(st.text(max_size=8)),
        categories=column(st.sampled_from(["coding", "math"])),
        greedy=column(st.booleans()),
        lengths=column(st.integers(1, 70)),
        layers=draw(st.integers(1, 6)),
        hidden=draw(st.integers(1, 40)),
        dtype=draw(st.sampled_from(DTYPES)),
    )


META = PackMeta(
    pack=7, response_ids=["a", "b"], categories=["math", "coding"], greedy=[True, False], lengths=[3, 5],
    layers=2, hidden=4, dtype="bfloat16",
)  # fmt: skip


@given(meta=metas(), seed=st.integers(0, 2**31))
def test_what_is_written_is_read(meta: PackMeta, seed: int) -> None:
    layout, draw = layout_of(meta), torch.Generator().manual_seed(seed)
    tokens = sum(meta.lengths)
    guard = 32
    memory = bytearray(b"\xa5" * (layout.size_bytes + 2 * guard))
    view = memoryview(memory)[guard : guard + layout.size_bytes]
    input_ids_T = torch.randint(-(2**31), 2**31 - 1, (tokens,), generator=draw, dtype=torch.int32)
    loss_mask_T = torch.randint(0, 2, (tokens,), generator=draw, dtype=torch.uint8)
    states_TLH = torch.randn(tokens, meta.layers, meta.hidden, generator=draw).to(getattr(torch, meta.dtype))
    written = layout.views(view)
    for span in meta.spans:
        written.input_ids_T[span] = input_ids_T[span]
        written.loss_mask_T[span] = loss_mask_T[span]
        written.states_TLH[span].copy_(states_TLH[span])

    again = PackMeta.decode(meta.encode())
    assert again == meta
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read = layout_of(again).views(view.toreadonly())
    for got, want in (
        (read.input_ids_T, input_ids_T),
        (read.loss_mask_T, loss_mask_T),
        (read.states_TLH, states_TLH),
    ):
        assert got.dtype == want.dtype
        assert torch.equal(got, want)
    assert memory[:guard] == memory[-guard:] == b"\xa5" * guard


@given(meta=metas())
def test_a_pack_takes_little_more_than_its_tensors_and_these_are_aligned(meta: PackMeta) -> None:
    layout, tokens = layout_of(meta), sum(meta.lengths)
    assert layout.size_bytes == pack_bytes(tokens, meta.layers, meta.hidden, meta.dtype)
    assert layout.size_bytes % ALIGNMENT == 0
    needed = tokens * (4 + 1 + meta.layers * meta.hidden * BYTES[meta.dtype])
    assert max(needed, 1) <= layout.size_bytes < max(needed, 1) + 3 * ALIGNMENT
    if tokens:
        memory = torch.empty(layout.size_bytes + ALIGNMENT, dtype=torch.uint8)
        start = -memory.data_ptr() % ALIGNMENT
        tensors = layout.views(memoryview(memory.numpy())[start:])
        for tensor in (tensors.input_ids_T, tensors.loss_mask_T, tensors.states_TLH):
            assert tensor.data_ptr() % ALIGNMENT == 0
            assert tensor.is_contiguous()


@given(meta=metas())
def test_spans_lie_end_to_end(meta: PackMeta) -> None:
    covered = [token for span in meta.spans for token in range(span.start, span.stop)]
    assert covered == list(range(meta.tokens))
    assert [span.stop - span.start for span in meta.spans] == meta.lengths


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"lengths": [3]}, "pack 7: lists of 1 and of 2 rows"),
        ({"lengths": [3, 0]}, "Expected `int` >= 1"),
        ({"layers": "many"}, r"Expected `int`, got `str`"),
        ({"dtype": "int8"}, "pack 7: states of 'int8'; expected bfloat16, float16, float32"),
        ({"hidden": None}, "Expected `int`"),
    ],
)
def test_a_damaged_description_is_one_line(changes: dict[str, Any], says: str) -> None:
    damaged = msgspec.msgpack.encode(msgspec.to_builtins(META) | changes)
    with pytest.raises(DamagedError, match=says) as caught:
        PackMeta.decode(damaged)
    assert "\n" not in str(caught.value)
    assert "Run the same command again" in str(caught.value)


@given(cut=st.integers(0, len(META.encode()) - 1))
def test_a_description_that_is_cut_off_is_damaged(cut: int) -> None:
    with pytest.raises(DamagedError):
        PackMeta.decode(META.encode()[:cut])


@given(data=st.binary(max_size=60))
def test_any_bytes_are_a_description_or_damaged(data: bytes) -> None:
    with pytest.raises(DamagedError):
        PackMeta.decode(data)


def test_too_little_room_is_one_line() -> None:
    layout = PackLayout(tokens=3, layers=2, hidden=4, dtype="float32")
    with pytest.raises(DamagedError, match=f"100 bytes for 3 tokens; expected {layout.size_bytes}") as caught:
        layout.views(bytearray(100))
    assert "\n" not in str(caught.value)
