"""Documents and their anchors become the tensors of one step.

Documents are laid end to end, positions restarting; every anchor gives a block of slots, and the slots whose
labels count are listed, so that the output head sees no other. Padding to a multiple (for compiled kernels)
adds context that nobody sees and no slots.

Shapes: T packed context tokens, N captured layers, H hidden, A anchors, Q = A * block_size slots, M
supervised slots.
"""

# ruff: noqa: N815  # shape suffixes in field names

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from training.anchors import label_counts
from training.dflash import block_tokens
from training.frozen import FrozenTarget
from training.masks import NO_DOCUMENT, Visibility, visibility_of_blocks
from training.pack import position_ids


@dataclass
class Document:
    """One training row in memory. `normed_TH` is the final state after the target's norm, or None."""

    response_id: str
    category: str
    greedy: bool
    input_ids_T: Any
    loss_mask: list[int]
    states_TNH: Any
    normed_TH: Any = None
    teacher_T: Any = None
    """The target's arg max for the *next* token after each position, -1 where it was not asked."""

    def __len__(self) -> int:
        return len(self.loss_mask)


@dataclass
class Batch:
    """One step. Labels are of the M supervised slots only."""

    states_TNH: Any
    position_T: Any
    block_tokens_Q: Any
    visibility: Visibility
    supervised_M: Any
    """Index into the Q slots."""
    slot_M: Any
    """1 .. block_size - 1."""
    document_M: Any
    """Index into the documents of the batch."""
    sampled_M: Any
    """The token that the answer has there."""
    label_M: Any
    """What the loss asks for: teacher or sampled."""
    teacher_M: Any
    """The target's arg max there, -1 where it is not known."""
    normed_MH: Any
    """The target's normed final state that predicts the slot's token; None without."""


def make_batch(
    documents: Sequence[Document],
    anchors: Sequence[Sequence[int]],
    *,
    block_size: int,
    mask_token_id: int,
    labels: str,
    device: str = "cpu",
    pad_context_to: int = 1,
) -> Batch:
    """Build a step from documents and the anchors of each.

    `labels` is teacher, sampled, kl or auto (teacher for greedy documents whose teacher is known, else sampled).
    """
    lengths = [len(document) for document in documents]
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    padding = -sum(lengths) % pad_context_to
    position_T = torch.tensor(position_ids(lengths) + [0] * padding)
    document_T = torch.tensor([i for i, length in enumerate(lengths) for _ in range(length)] + [NO_DOCUMENT] * padding)
    flat = [(i, anchor) for i, own in enumerate(anchors) for anchor in own]
    counts = [
        count
        for document, own in zip(documents, anchors, strict=True)
        for count in label_counts(document.loss_mask, own, block_size)
    ]
    document_A = torch.tensor([i for i, _ in flat], dtype=torch.long)
    anchor_A = torch.tensor([anchor for _, anchor in flat], dtype=torch.long)
    start_A = torch.tensor([starts[i] for i, _ in flat], dtype=torch.long)
    count_A = torch.tensor(counts, dtype=torch.long)

    slots = torch.arange(block_size)
    counted_AB = (slots > 0) & (slots <= count_A[:, None])
    block_M, slot_M = counted_AB.nonzero(as_tuple=True)
    at_M = (start_A + anchor_A)[block_M] + slot_M  # where the label's token lies in the pack

    input_ids_T = torch.cat([document.input_ids_T.long() for document in documents])
    document_M = document_A[block_M]
    sampled_M = input_ids_T[at_M]
    teacher_T = torch.cat([_teacher(document) for document in documents])
    teacher_M = teacher_T[at_M - 1]
    with_normed = all(document.normed_TH is not None for document in documents)
    return Batch(
        states_TNH=padded_states(documents, padding, device),
        position_T=position_T.to(device),
        block_tokens_Q=block_tokens(input_ids_T[start_A + anchor_A], block_size, mask_token_id).to(device),
        visibility=visibility_of_blocks(
            document_T.to(device),
            position_T.to(device),
            document_A.to(device),
            anchor_A.to(device),
            block_size,
        ),
        supervised_M=(block_M * block_size + slot_M).to(device),
        slot_M=slot_M.to(device),
        document_M=document_M.to(device),
        sampled_M=sampled_M.to(device),
        label_M=_labels(documents, document_M, sampled_M, teacher_M, labels).to(device),
        teacher_M=teacher_M.to(device),
        normed_MH=torch.cat([d.normed_TH for d in documents]).to(device)[(at_M - 1).to(device)]
        if with_normed
        else None,
    )


def teach(document: Document, target: FrozenTarget) -> None:
    """Fill `teacher_T`: the target's arg max after every supervised position and the one before it."""
    length = len(document)
    asked = [p for p in range(length) if document.loss_mask[p] or (p + 1 < length and document.loss_mask[p + 1])]
    teacher_T = torch.full((length,), -1, dtype=torch.long)
    if document.normed_TH is not None and asked:
        teacher_T[asked] = target.argmax(document.normed_TH[asked].to(target.head_VH.device)).cpu()
    document.teacher_T = teacher_T


def _teacher(document: Document) -> Any:
    if document.teacher_T is None:
        return torch.full((len(document),), -1, dtype=torch.long)
    return document.teacher_T


def _labels(documents: Sequence[Document], document_M: Any, sampled_M: Any, teacher_M: Any, labels: str) -> Any:
    if labels == "sampled":
        return sampled_M
    greedy = torch.tensor([labels != "auto" or document.greedy for document in documents], dtype=torch.bool)
    return torch.where(greedy[document_M] & (teacher_M >= 0), teacher_M, sampled_M)


def padded_states(documents: Sequence[Document], padding: int, device: str) -> Any:
    """States of documents end to end, and `padding` tokens of zeros, on a device; float32 on a CPU."""
    parts = [document.states_TNH for document in documents]
    if padding:
        parts.append(torch.zeros(padding, *parts[0].shape[1:], dtype=parts[0].dtype, device=parts[0].device))
    states_TNH = torch.cat(parts).to(device)
    return states_TNH.float() if device == "cpu" else states_TNH
