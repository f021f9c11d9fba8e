"""Who sees whom: one definition of visibility, read by both attention paths.

Queries are block slots. Keys are the packed context tokens, then the block slots themselves. A slot sees the
context strictly before its anchor, of its own document, and its own block; never another block. In a sliding
layer it sees, of these, only keys at or before its own position and less than `window` away: z-lab's rule,
which slides by slot. The rule is written once, on index tensors; `dense` evaluates it on a grid for
scaled_dot_product_attention (the reference), `block_mask` hands it to flex_attention: compiled on a GPU; on a CPU
it has no backward and serves tests alone.

Shapes: T packed context tokens, Q block slots, K = T + Q keys.
"""

# ruff: noqa: N815  # shape suffixes in field names

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

CONTEXT = -1
"""`key_block` of a context token."""
NO_DOCUMENT = -2
"""`key_document` of padding."""
RECOMPILE_LIMIT = 64
"""Static and dynamic lengths, full and sliding, with and without gradient: more than torch's own 8 can come up."""


@dataclass
class Visibility:
    """Of every slot and key: document, position in it, block. All int64 tensors on one device."""

    slot_document_Q: Any
    slot_anchor_Q: Any
    """Position of the slot's anchor in its document."""
    slot_position_Q: Any
    slot_block_Q: Any
    key_document_K: Any
    key_position_K: Any
    key_block_K: Any
    reference: bool = False
    """Dense attention on a GPU too: what the compiled path is held to."""
    _built: dict[tuple[str, int | None], Any] = field(default_factory=dict)

    def rule(self, window: int | None) -> Callable[[Any, Any], Any]:
        """(slot index, key index) to visible; indices may be tensors of any shapes that broadcast."""

        # the compiler takes tensors of a closure as inputs; through `self` it would also guard everything else there
        document_Q, anchor_Q, position_Q, block_Q = (
            self.slot_document_Q,
            self.slot_anchor_Q,
            self.slot_position_Q,
            self.slot_block_Q,
        )
        document_K, position_K, block_K = self.key_document_K, self.key_position_K, self.key_block_K

        def visible(slot: Any, key: Any) -> Any:
            context = (
                (block_K[key] == CONTEXT) & (document_K[key] == document_Q[slot]) & (position_K[key] < anchor_Q[slot])
            )
            seen = context | (block_K[key] == block_Q[slot])
            if window is not None:
                distance = position_Q[slot] - position_K[key]
                seen = seen & (distance >= 0) & (distance < window)
            return seen

        return visible

    def dense(self, window: int | None) -> Any:
        """Boolean [Q, K]; built once for each window."""
        if ("dense", window) not in self._built:
            device = self.slot_block_Q.device
            slots_Q1 = torch.arange(len(self.slot_block_Q), device=device)[:, None]
            keys_1K = torch.arange(len(self.key_block_K), device=device)[None, :]
            self._built["dense", window] = self.rule(window)(slots_Q1, keys_1K)
        return self._built["dense", window]

    def mask_mod(self, window: int | None) -> Callable[[Any, Any, Any, Any], Any]:
        """The rule in flex_attention's form (batch, head, slot index, key index)."""
        rule = self.rule(window)
        return lambda _batch, _head, slot, key: rule(slot, key)

    def block_mask(self, window: int | None) -> Any:
        """flex_attention's sparse form; built once for each window."""
        if ("block", window) not in self._built:
            device = self.slot_block_Q.device
            self._built["block", window] = flex_kernels(device.type).create_block_mask(
                self.mask_mod(window),
                B=None,
                H=None,
                Q_LEN=len(self.slot_block_Q),
                KV_LEN=len(self.key_block_K),
                device=str(device),
            )
        return self._built["block", window]


def visibility_of_blocks(
    document_T: Any, position_T: Any, anchor_document_A: Any, anchor_position_A: Any, block_size: int
) -> Visibility:
    """Visibility of A blocks of `block_size` slots over T packed context tokens.

    Positions restart per document. Slot i of a block stands at its anchor's position + i.
    """
    device = document_T.device
    blocks = len(anchor_document_A)
    block_Q = torch.arange(blocks, device=device).repeat_interleave(block_size)
    anchor_Q = anchor_position_A.repeat_interleave(block_size)
    position_Q = anchor_Q + torch.arange(block_size, device=device).repeat(blocks)
    document_Q = anchor_document_A.repeat_interleave(block_size)
    return Visibility(
        slot_document_Q=document_Q,
        slot_anchor_Q=anchor_Q,
        slot_position_Q=position_Q,
        slot_block_Q=block_Q,
        key_document_K=torch.cat([document_T, document_Q]),
        key_position_K=torch.cat([position_T, position_Q]),
        key_block_K=torch.cat([torch.full_like(document_T, CONTEXT), block_Q]),
    )


@dataclass(frozen=True)
class FlexKernels:
    """torch's flex_attention and the builder of its masks."""

    create_block_mask: Callable[..., Any]
    flex_attention: Callable[..., Any]


@cache
def flex_kernels(device_type: str) -> FlexKernels:
    """Each compiled alone on a GPU (a whole layer would clash with checkpointing), as they are on a CPU.

    Uncompiled they materialise Q x K: 298 GB at 32,768 x 81,920 and 32 heads. Where packs differ too often for the
    compiler, it must say so and not fall back in silence.
    """
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    if device_type == "cpu":
        return FlexKernels(create_block_mask, flex_attention)
    from torch._dynamo import config

    config.recompile_limit = max(config.recompile_limit, RECOMPILE_LIMIT)
    config.fail_on_recompile_limit_hit = True
    return FlexKernels(torch.compile(create_block_mask), torch.compile(flex_attention))
