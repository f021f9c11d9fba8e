from __future__ import annotations

from functools import partial

import pytest
import torch

from tests.training.references import reference_module
from training.frozen import FrozenTarget
from training.loss import block_loss, plain_loss, slot_weights

SLOTS, HIDDEN, VOCAB, BLOCK = 23, 12, 50, 6


@pytest.fixture
def parts() -> tuple[torch.Tensor, FrozenTarget, torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    head = torch.randn(VOCAB, HIDDEN)
    target = FrozenTarget(head, head, torch.ones(HIDDEN), 1e-6, False, None)
    hidden = torch.randn(SLOTS, HIDDEN, requires_grad=True)
    label = torch.randint(0, VOCAB, (SLOTS,))
    slot = torch.randint(1, BLOCK, (SLOTS,))
    return hidden, target, label, slot, torch.randn(SLOTS, HIDDEN)


@pytest.mark.parametrize("kl", [False, True])
@pytest.mark.parametrize("chunk_rows", [1, 7, 100])
def test_chunked_equals_plain(parts, kl: bool, chunk_rows: int) -> None:  # type: ignore[no-untyped-def]
    hidden, target, label, slot, normed = parts
    fast = block_loss(hidden, target, label, slot, gamma=4.0, normed_MH=normed if kl else None, chunk_rows=chunk_rows)
    (fast_gradient,) = torch.autograd.grad(fast.loss * 3, hidden)
    logits = hidden @ target.head_VH.T
    plain = plain_loss(logits, label, slot, gamma=4.0, target_logits_MV=target.logits(normed) if kl else None)
    (plain_gradient,) = torch.autograd.grad(plain * 3, hidden)
    assert torch.allclose(fast.loss, plain, atol=1e-6)
    assert torch.allclose(fast_gradient, plain_gradient, atol=1e-6)
    assert torch.equal(fast.predicted_M, logits.argmax(-1))
    if not kl:
        assert torch.allclose(fast.each_M, torch.nn.functional.cross_entropy(logits, label, reduction="none"))


def test_weights() -> None:
    weights = slot_weights(torch.tensor([1, 2, 5]), 4.0)
    assert torch.allclose(weights, torch.tensor([1.0, 0.7788, 0.3679]), atol=1e-4)


def test_a_cap_bends_the_targets_logits_only() -> None:
    head = torch.eye(3) * 10
    target = FrozenTarget(head, head, torch.zeros(3), 1e-6, True, 5.0)
    normed = target.normed(torch.ones(2, 3))
    assert torch.allclose(normed, torch.ones(2, 3), atol=1e-4)  # zero weight, plus one
    assert float(target.logits(normed).max()) < 5.0


@pytest.mark.parametrize("kl", [False, True])
def test_equal_to_speculators_eager_loss(kl: bool) -> None:
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
        decay_fn=partial(utils.dflash_loss_decay, gamma=4.0),
    )
    kept = mask[0].nonzero().flatten()
    ours = block_loss(
        hidden[kept],
        target,
        target.argmax(normed[kept]),
        slots[kept],
        gamma=4.0,
        normed_MH=normed[kept] if kl else None,
    )
    assert torch.allclose(ours.loss, theirs.squeeze(), atol=1e-5)
    (their_gradient,) = torch.autograd.grad(theirs, hidden)
    (our_gradient,) = torch.autograd.grad(ours.loss, hidden)
    assert torch.allclose(our_gradient, their_gradient, atol=1e-6)
