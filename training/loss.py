"""The loss of a block drafter, chunked, and its plain reference.

Slot k of a block weighs exp(-(k - 1) / gamma); the weighted sum is divided by the *unweighted* count of
supervised slots (+1e-5), as speculators does. Hard labels give cross-entropy; with the target's logits the
divergence KL(target || drafter). The output head is frozen, so the gradient with respect to the drafter's
output is formed in the forward, chunk by chunk, and no logits outlive their chunk: 512 anchors x 16 slots x
248,320 tokens would be gigabytes.

Shapes: M supervised slots, H hidden, V vocabulary.
"""

# ruff: noqa: N815  # shape suffixes in field names

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from training.frozen import FrozenTarget

COUNT_EPSILON = 1e-5
CHUNK_BYTES_CPU = 64 << 20
CHUNK_BYTES_GPU = 1 << 30


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


def block_loss(
    hidden_MH: Any,
    target: FrozenTarget,
    label_M: Any,
    slot_M: Any,
    *,
    gamma: float,
    normed_MH: Any = None,
    chunk_rows: int | None = None,
) -> SlotLoss:
    """Loss of supervised slots; with `normed_MH` (the target's normed final states) KL, else cross-entropy."""
    weight_M = slot_weights(slot_M, gamma) / (len(slot_M) + COUNT_EPSILON)
    if chunk_rows is None:
        limit = CHUNK_BYTES_GPU if hidden_MH.is_cuda else CHUNK_BYTES_CPU
        chunk_rows = max(16, limit // (4 * target.head_VH.shape[0]))
    loss, each_M, predicted_M = _ChunkedHead.apply(hidden_MH, target, label_M, weight_M, normed_MH, chunk_rows)
    return SlotLoss(loss, each_M, predicted_M)


class _ChunkedHead(torch.autograd.Function):
    """Head, loss and gradient in one pass over chunks of slots."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_MH: Any,
        target: FrozenTarget,
        label_M: Any,
        weight_M: Any,
        normed_MH: Any,
        chunk_rows: int,
    ) -> tuple[Any, Any, Any]:
        """d loss / d logits is softmax - one_hot(label) for cross-entropy, softmax - target's softmax for KL."""
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
                each_M[part] = (p_CV * (log_p_CV - log_q_CV)).sum(-1)
                difference_CV = log_q_CV.exp_().sub_(p_CV)
            difference_CV.mul_(weight_M[part, None])
            gradient_MH[part] = (difference_CV.to(head_VH.dtype) @ head_VH).to(hidden_MH.dtype)
        ctx.save_for_backward(gradient_MH)
        ctx.mark_non_differentiable(each_M, predicted_M)
        return (each_M * weight_M).sum(), each_M, predicted_M

    @staticmethod
    def backward(ctx: Any, loss_gradient: Any, *_: Any) -> tuple[Any, ...]:
        (gradient_MH,) = ctx.saved_tensors
        return (gradient_MH * loss_gradient.to(gradient_MH.dtype), None, None, None, None, None)


def plain_loss(logits_MV: Any, label_M: Any, slot_M: Any, *, gamma: float, target_logits_MV: Any = None) -> Any:
    """The reference: what `block_loss` computes, written with whole logits and autograd."""
    if target_logits_MV is None:
        each_M = functional.cross_entropy(logits_MV.float(), label_M, reduction="none")
    else:
        log_p_MV = torch.log_softmax(target_logits_MV.float(), -1)
        log_q_MV = torch.log_softmax(logits_MV.float(), -1)
        each_M = (log_p_MV.exp() * (log_p_MV - log_q_MV)).sum(-1)
    return (each_M * slot_weights(slot_M, gamma)).sum() / (len(slot_M) + COUNT_EPSILON)
