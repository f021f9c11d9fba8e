from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.training.references import reference_module
from training.frozen import FrozenTarget
from training.loss import WEIGHTINGS, block_loss, pace_weights, plain_loss, slot_weights

SLOTS, HIDDEN, VOCAB, BLOCK = 23, 12, 50, 6


@pytest.fixture
def parts() -> tuple[torch.Tensor, FrozenTarget, torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    head = torch.randn(VOCAB, HIDDEN)
    target = FrozenTarget(head, head, torch.ones(HIDDEN), 1e-6, False, None)
    hidden = torch.randn(SLOTS, HIDDEN, requires_grad=True)
    label = torch.randint(0, VOCAB, (SLOTS,))
    slot = torch.cat([torch.arange(1, 1 + n) for n in (5, 1, 4, 5, 2, 5, 1)])  # blocks, some cut by the answer's end
    return hidden, target, label, slot, torch.randn(SLOTS, HIDDEN)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("kl", [False, True])
@pytest.mark.parametrize("chunk_rows", [1, 7, 100])
def test_chunked_equals_plain(parts, kl: bool, weighting: str, chunk_rows: int) -> None:  # type: ignore[no-untyped-def]
    hidden, target, label, slot, normed = parts
    how = {"weighting": weighting, "gamma": 3.0, "alpha": 0.3}
    fast = block_loss(hidden, target, label, slot, normed_MH=normed if kl else None, chunk_rows=chunk_rows, **how)
    (fast_gradient,) = torch.autograd.grad(fast.loss * 3, hidden)
    logits = hidden @ target.head_VH.T
    plain = plain_loss(logits, label, slot, target_logits_MV=target.logits(normed) if kl else None, **how)
    (plain_gradient,) = torch.autograd.grad(plain * 3, hidden)
    assert torch.allclose(fast.loss, plain, atol=1e-6)
    assert torch.allclose(fast_gradient, plain_gradient, atol=1e-6)
    assert torch.equal(fast.predicted_M, logits.argmax(-1))
    if not kl:
        assert torch.allclose(fast.each_M, torch.nn.functional.cross_entropy(logits, label, reduction="none"))


def test_choices_differ_and_a_wrong_one_is_named(parts) -> None:  # type: ignore[no-untyped-def]
    hidden, target, label, slot, _ = parts
    settings = [("decay", 4.0, 0.5), ("decay", 7.0, 0.5), ("d_pace", 4.0, 0.5), ("d_pace", 4.0, 0.9)]
    losses = {
        float(block_loss(hidden.detach(), target, label, slot, weighting=name, gamma=gamma, alpha=alpha).loss)
        for name, gamma, alpha in settings
    }
    assert len(losses) == len(settings)
    with pytest.raises(ValueError, match="weighting is 'dpace'; it must be one of decay, d_pace"):
        block_loss(hidden, target, label, slot, weighting="dpace")


def test_without_slots_the_loss_is_zero(parts) -> None:  # type: ignore[no-untyped-def]
    hidden, target, label, slot, _ = parts
    for weighting in WEIGHTINGS:
        none = block_loss(hidden[:0], target, label[:0], slot[:0], weighting=weighting)
        assert float(none.loss.detach()) == 0.0


def test_weights() -> None:
    weights = slot_weights(torch.tensor([1, 2, 5]), 4.0)
    assert torch.allclose(weights, torch.tensor([1.0, 0.7788, 0.3679]), atol=1e-4)


def test_pace_weights_by_hand() -> None:
    each = -torch.tensor([0.5, 0.25, 0.5, 1.0, 0.0]).log()  # confidences; the last is never right
    weights = pace_weights(each, torch.tensor([1, 2, 1, 2, 3]), alpha=0.5)
    first, second = 0.75, 0.75 * 0.625
    assert torch.allclose(weights[:2], torch.tensor([first + second, second]))
    assert torch.allclose(weights[2:], torch.tensor([0.75 + 0.75 + 0.375, 0.75 + 0.375, 0.375]))


@settings(max_examples=50)
@given(
    lengths=st.lists(st.integers(1, BLOCK - 1), min_size=1, max_size=6),
    alpha=st.floats(0.05, 1.0),
    data=st.data(),
)
def test_pace_weights_are_speculators(lengths: list[int], alpha: float, data: st.DataObject) -> None:
    theirs_of = reference_module("speculators", "losses.utils").dpace_loss_decay
    loss = st.floats(0.0, 12.0, width=32)
    each = torch.tensor([data.draw(st.lists(loss, min_size=n, max_size=n)) + [0.0] * (BLOCK - 1 - n) for n in lengths])
    each = torch.cat([torch.zeros(len(lengths), 1), each], dim=1)  # slot 0 is the anchor
    slot = torch.arange(BLOCK)[None]
    mask = (slot > 0) & (slot <= torch.tensor(lengths)[:, None])
    theirs = theirs_of(
        slot.expand_as(mask).reshape(1, -1), mask.reshape(1, -1), BLOCK, alpha, each.reshape(1, -1)
    ).reshape(mask.shape)
    ours = pace_weights(each[mask], slot.expand_as(mask)[mask], alpha)
    assert torch.allclose(ours, theirs[mask], atol=1e-5)
    assert (ours > 0).all()


def test_nothing_flows_back_through_a_pace_weight() -> None:
    each = torch.rand(4, requires_grad=True)
    assert not pace_weights(each, torch.tensor([1, 2, 3, 1]), 0.5).requires_grad


def test_a_cap_bends_the_targets_logits_only() -> None:
    head = torch.eye(3) * 10
    target = FrozenTarget(head, head, torch.zeros(3), 1e-6, True, 5.0)
    normed = target.normed(torch.ones(2, 3))
    assert torch.allclose(normed, torch.ones(2, 3), atol=1e-4)  # zero weight, plus one
    assert float(target.logits(normed).max()) < 5.0


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("kl", [False, True])
def test_equal_to_speculators_eager_loss(kl: bool, weighting: str) -> None:
    utils = reference_module("speculators", "losses.utils")
    eager = utils.eager
    torch.manual_seed(1)
    blocks = 5
    head = torch.randn(VOCAB, HIDDEN)
    target = FrozenTarget(head, head, torch.ones(HIDDEN), 1e-6, False, None)
    hidden = torch.randn(blocks * BLOCK, HIDDEN, requires_grad=True)
    normed = torch.randn(blocks * BLOCK, HIDDEN)
    mask = torch.ones(1, blocks * BLOCK)
    mask[:, ::BLOCK] = 0
    mask[:, -3:] = 0
    slots = torch.arange(blocks * BLOCK) % BLOCK
    theirs, _ = utils.compound_loss(
        (hidden @ head.T)[None],
        target.logits(normed)[None],
        mask,
        slots[None],
        loss_config={"loss": (eager.kl_div_loss if kl else eager.ce_loss, 1.0)},
        decay_fn=partial(utils.dflash_loss_decay, gamma=4.0)
        if weighting == "decay"
        else partial(utils.dpace_loss_decay, loss_mask=mask, block_size=BLOCK, dpace_alpha=0.5),
    )
    kept = mask[0].nonzero().flatten()
    ours = block_loss(
        hidden[kept],
        target,
        target.argmax(normed[kept]),
        slots[kept],
        weighting=weighting,
        normed_MH=normed[kept] if kl else None,
    )
    assert torch.allclose(ours.loss, theirs.squeeze(), atol=1e-5)
    (their_gradient,) = torch.autograd.grad(theirs, hidden)
    (our_gradient,) = torch.autograd.grad(ours.loss, hidden)
    assert torch.allclose(our_gradient, their_gradient, atol=1e-6)
