from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.training.references import reference_module
from training.dflash import attend_dense, attend_flex
from training.masks import visibility_of_blocks
from training.pack import position_ids


def build(lengths: list[int], anchors: list[tuple[int, int]], block_size: int):  # type: ignore[no-untyped-def]
    return visibility_of_blocks(
        torch.tensor([i for i, n in enumerate(lengths) for _ in range(n)]),
        torch.tensor(position_ids(lengths)),
        torch.tensor([i for i, _ in anchors]),
        torch.tensor([a for _, a in anchors]),
        block_size,
    )


def by_hand(lengths: list[int], anchors: list[tuple[int, int]], block_size: int, window: int | None) -> torch.Tensor:
    """The words of the rule as loops."""
    context = [(i, p) for i, n in enumerate(lengths) for p in range(n)]
    rows = []
    for b, (document, anchor) in enumerate(anchors):
        for slot in range(block_size):
            at = anchor + slot
            row = [d == document and p < anchor and (window is None or at - p < window) for d, p in context]
            for other, (_, start) in enumerate(anchors):
                for k in range(block_size):
                    inside = window is None or 0 <= at - (start + k) < window
                    row.append(other == b and inside)
            rows.append(row)
    return torch.tensor(rows)


CASES = st.tuples(
    st.lists(st.integers(1, 12), min_size=1, max_size=3), st.integers(2, 5), st.one_of(st.none(), st.integers(1, 9))
)


@settings(deadline=None, max_examples=60)
@given(case=CASES, data=st.data())
def test_dense_and_flex_are_the_rule(case: tuple[list[int], int, int | None], data: st.DataObject) -> None:
    lengths, block_size, window = case
    places = [(i, p) for i, n in enumerate(lengths) for p in range(n)]
    anchors = data.draw(st.lists(st.sampled_from(places), min_size=1, max_size=5))
    visibility = build(lengths, anchors, block_size)
    want = by_hand(lengths, anchors, block_size, window)
    assert torch.equal(visibility.dense(window), want)
    mod = visibility.mask_mod(window)
    zero = torch.tensor(0)
    slots, keys = want.shape
    flex = torch.tensor(
        [[bool(mod(zero, zero, torch.tensor(q), torch.tensor(k))) for k in range(keys)] for q in range(slots)]
    )
    assert torch.equal(flex, want)


def test_flex_attentions_own_builder_sees_the_same() -> None:
    create_mask = pytest.importorskip("torch.nn.attention.flex_attention").create_mask
    visibility = build([20, 30], [(0, 5), (1, 22), (1, 3)], 4)
    for window in (None, 6):
        mask = create_mask(visibility.mask_mod(window), None, None, 12, 62, device="cpu")
        assert torch.equal(mask[0, 0], visibility.dense(window))


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("window", [None, 6])
def test_flex_attention_computes_what_dense_attention_does(window: int | None) -> None:
    """Forward alone: on a CPU flex_attention has no backward."""
    visibility = build([20, 30], [(0, 5), (1, 22), (1, 3)], 4)
    generator = torch.Generator().manual_seed(0)
    queries, keys, values = (
        torch.randn(1, heads, length, 16, generator=generator) for heads, length in ((6, 12), (2, 62), (2, 62))
    )
    dense = attend_dense(queries, keys, values, visibility, window)
    assert torch.allclose(attend_flex(queries, keys, values, visibility, window), dense, atol=1e-5)
    hidden = keys.clone()
    hidden[:, :, :3] = 7.0  # seen by all blocks of document 0 and full layers
    assert torch.equal(attend_dense(queries, hidden, values, visibility, window)[:, :, 4:], dense[:, :, 4:])
    assert not torch.equal(attend_dense(queries, hidden, values, visibility, window)[:, :, :1], dense[:, :, :1])


def test_the_window_slides_by_slot_as_in_zlab() -> None:
    dense = build([40], [(0, 20)], 4).dense(8)
    assert dense[0, :40].nonzero().flatten().tolist() == list(range(13, 20))
    assert dense[3, :40].nonzero().flatten().tolist() == list(range(16, 20))


def test_full_layers_equal_speculators_inside_their_window() -> None:
    attention = reference_module("speculators", "models.dflash.attention")
    lengths, starts, block_size = [9, 14], [0, 9], 3
    anchors = [(0, 4), (1, 6), (1, 7)]
    visibility = build(lengths, anchors, block_size)
    document = torch.tensor([0] * 9 + [1] * 14)
    packed = torch.tensor([starts[i] + a for i, a in anchors])
    for window in (None, 100):
        mod, slots, keys = attention.create_anchor_block_mask_mod(
            document, 23, packed, block_size, sliding_window=window
        )
        zero = torch.tensor(0)
        want = torch.stack(
            [
                torch.stack([mod(zero, zero, torch.tensor(q), torch.tensor(k)) for k in range(keys)])
                for q in range(slots)
            ]
        )
        assert torch.equal(visibility.dense(window), want)
