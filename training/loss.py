"""The loss of a block drafter, chunked, and its plain reference.

Hard labels give cross-entropy; with the target's logits the divergence KL(target || drafter). Slots weigh by `decay`,
exp(-(k - 1) / gamma), or by `d_pace`: what the acceptance length would gain at slot k, from the drafter's own
confidences (see pace_weights). The weighted sum is divided by the *unweighted* count of supervised slots (+1e-5), as
speculators does. The output head is frozen, so the gradient with respect to the drafter's output is formed in the
forward, chunk by chunk, and no logits outlive their chunk: 512 anchors x 16 slots x 248,320 tokens would be gigabytes.

Shapes: M supervised slots, H hidden, V vocabulary, C slots of a chunk.
"""

# ruff: noqa: N815  # shape suffixes in field names

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from training import memory
from training.frozen import FrozenTarget

WEIGHTINGS = ("decay", "d_pace")
D_PACE_ALPHA = 0.5
"""speculators' own."""
COUNT_EPSILON = 1e-5


@dataclass
class SlotLoss:
    """`loss` carries the gradient; the others are raw values of each slot, for sums by category and slot."""

    loss: Any
    each_M: Any
    """Unweighted cross-entropy or divergence."""
    predicted_M: Any
    """The drafter's arg max."""


def slot_weights(slot_M: Any, gamma: float) -> Any:
    """exp(-(k - 1) / gamma) in float32."""
    return torch.exp(-(slot_M.float() - 1.0) / gamma)


@torch.no_grad()
def pace_weights(each_M: Any, slot_M: Any, alpha: float) -> Any:
    """D-PACE in float32: w_k = sum over j >= k of prod over i <= j of ((1 - alpha) * q_i + alpha), q = exp(-loss).

    i and j run over the supervised slots of k's block; nothing flows back through a weight (speculators 0.9.0,
    losses/utils.py, dpace_loss_decay). Slots of a block are neighbours and ascend: a block begins where they do not.
    """
    if not len(slot_M):
        return each_M.float()
    begins_M = torch.ones_like(slot_M, dtype=torch.bool)
    begins_M[1:] = slot_M[1:] <= slot_M[:-1]
    block_M = begins_M.cumsum(0) - 1
    at = (block_M, slot_M)
    shape = (int(block_M[-1]) + 1, int(slot_M.max()) + 1)
    smooth = torch.ones(shape, dtype=torch.float32, device=each_M.device)
    smooth[at] = (1.0 - alpha) * torch.exp(-each_M.float()) + alpha
    reached = torch.zeros_like(smooth)
    reached[at] = smooth.cumprod(-1)[at]
    return reached.flip(-1).cumsum(-1).flip(-1)[at]


def loss_weights(each_M: Any, slot_M: Any, *, weighting: str, gamma: float, alpha: float) -> Any:
    """Weight of each slot [M], the division by their number left out.

    Raises:
        ValueError: there is no such weighting.
    """
    if weighting == "decay":
        return slot_weights(slot_M, gamma)
    if weighting == "d_pace":
        return pace_weights(each_M, slot_M, alpha)
    raise ValueError(f"weighting is {weighting!r}; it must be one of {', '.join(WEIGHTINGS)}")


def block_loss(
    hidden_MH: Any,
    target: FrozenTarget,
    label_M: Any,
    slot_M: Any,
    *,
    weighting: str = "decay",
    gamma: float = 4.0,
    alpha: float = D_PACE_ALPHA,
    normed_MH: Any = None,
    chunk_rows: int | None = None,
) -> SlotLoss:
    """Loss of supervised slots.

    Args:
        hidden_MH: the drafter's normed output, slots of a block one after another.
        label_M: token ids; not looked at with `normed_MH`.
        slot_M: place in the block, 1 .. block_size - 1.
        weighting: decay looks at `gamma` alone, d_pace at `alpha` alone.
        normed_MH: the target's normed final states: KL instead of cross-entropy.
        chunk_rows: slots whose logits are in memory at once; chosen by device if None.
    """
    if chunk_rows is None:
        chunk_rows = memory.chunk_rows(target.head_VH.shape[0], on_gpu=hidden_MH.is_cuda)

    def weigh(each_M: Any) -> Any:
        weight_M = loss_weights(each_M, slot_M, weighting=weighting, gamma=gamma, alpha=alpha)
        return weight_M / (len(slot_M) + COUNT_EPSILON)

    loss, each_M, predicted_M = _ChunkedHead.apply(hidden_MH, target, label_M, weigh, normed_MH, chunk_rows)
    return SlotLoss(loss, each_M, predicted_M)


class _ChunkedHead(torch.autograd.Function):
    """Head, loss and gradient in one pass over chunks of slots."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_MH: Any,
        target: FrozenTarget,
        label_M: Any,
        weigh: Any,
        normed_MH: Any,
        chunk_rows: int,
    ) -> tuple[Any, Any, Any]:
        """d loss / d logits is softmax - one_hot(label) for cross-entropy, softmax - target's softmax for KL.

        Weights may need the loss of every slot of a block, which chunks cut: they scale the rows at the end.
        """
        head_VH = target.head_VH
        gradient_MH = torch.empty_like(hidden_MH)
        each_M = torch.empty(len(hidden_MH), dtype=torch.float32, device=hidden_MH.device)
        predicted_M = torch.empty(len(hidden_MH), dtype=torch.long, device=hidden_MH.device)
        for start in range(0, len(hidden_MH), chunk_rows):
            part = slice(start, start + chunk_rows)
            logits_CV = functional.linear(hidden_MH[part].to(head_VH.dtype), head_VH).float()
            predicted_M[part] = logits_CV.argmax(-1)
            log_q_CV = torch.log_softmax(logits_CV, dim=-1)
            del logits_CV
            if normed_MH is None:
                label_C1 = label_M[part, None]
                each_M[part] = -log_q_CV.gather(1, label_C1).squeeze(1)
                difference_CV = log_q_CV.exp_()
                difference_CV.scatter_add_(1, label_C1, torch.full_like(label_C1, -1, dtype=torch.float32))
            else:
                log_p_CV = torch.log_softmax(target.logits(normed_MH[part]), dim=-1)
                p_CV = log_p_CV.exp()
                each_M[part] = log_p_CV.sub_(log_q_CV).mul_(p_CV).sum(-1)
                difference_CV = log_q_CV.exp_().sub_(p_CV)
                del log_p_CV, p_CV
            del log_q_CV
            gradient_MH[part] = (difference_CV.to(head_VH.dtype) @ head_VH).to(hidden_MH.dtype)
            del difference_CV
        weight_M = weigh(each_M)
        gradient_MH.mul_(weight_M[:, None])
        ctx.save_for_backward(gradient_MH)
        ctx.mark_non_differentiable(each_M, predicted_M)
        return (each_M * weight_M).sum(), each_M, predicted_M

    @staticmethod
    def backward(ctx: Any, loss_gradient: Any, *_: Any) -> tuple[Any, ...]:
        (gradient_MH,) = ctx.saved_tensors
        return (gradient_MH * loss_gradient.to(gradient_MH.dtype), None, None, None, None, None)


def plain_loss(
    logits_MV: Any,
    label_M: Any,
    slot_M: Any,
    *,
    weighting: str = "decay",
    gamma: float = 4.0,
    alpha: float = D_PACE_ALPHA,
    target_logits_MV: Any = None,
) -> Any:
    """The reference: what `block_loss` computes, written with whole logits, loops over blocks and autograd."""
    if target_logits_MV is None:
        each_M = functional.cross_entropy(logits_MV.float(), label_M, reduction="none")
    else:
        log_p_MV = torch.log_softmax(target_logits_MV.float(), -1)
        log_q_MV = torch.log_softmax(logits_MV.float(), -1)
        each_M = (log_p_MV.exp() * (log_p_MV - log_q_MV)).sum(-1)
    weight_M = slot_weights(slot_M, gamma) if weighting == "decay" else _plain_pace(each_M, slot_M, alpha)
    return (each_M * weight_M).sum() / (len(slot_M) + COUNT_EPSILON)


def _plain_pace(each_M: Any, slot_M: Any, alpha: float) -> Any:
    """The sentence of pace_weights in numbers."""
    confidences, slots = torch.exp(-each_M.detach()).tolist(), slot_M.tolist()
    weights: list[float] = []
    while len(weights) < len(slots):
        first = last = len(weights)
        while last + 1 < len(slots) and slots[last + 1] > slots[last]:
            last += 1
        reached, chance = [], 1.0
        for confidence in confidences[first : last + 1]:
            chance *= (1.0 - alpha) * confidence + alpha
            reached.append(chance)
        weights.extend(sum(reached[k:]) for k in range(len(reached)))
    return torch.tensor(weights, device=each_M.device)
