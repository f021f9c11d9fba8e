"""The DFlash drafter: a few Qwen3 layers whose queries are block slots and whose context is the target's states.

The states of all n captured layers are concatenated, projected (`fc`) and normalised (`hidden_norm`) once for
all draft layers. In each layer queries come from the block alone; keys and values from context and block, with
the same projections; q_norm, k_norm; RoPE at positions in the document. Parameter names are z-lab's, so that
the state dict is the export. Embeddings and output head are the target's (see frozen) and no part of it.

Shapes: T context tokens, N captured layers, H hidden, Q block slots, K = T + Q, A heads, D head size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from training.masks import Visibility, flex_kernels
from training.shape import DrafterShape

ContextKeys = list[tuple[Any, Any]]
"""Keys [T, A_kv, D] (rotated) and values [T, A_kv, D] of the context, by layer."""


class RMSNorm(nn.Module):
    """Root mean square norm in float32, then the weight, as in Qwen3."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Any) -> Any:
        """Norm over the last dimension."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (self.weight * wide.to(x.dtype)).to(x.dtype)


class MLP(nn.Module):
    """Gated SiLU."""

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Any) -> Any:
        """[Q, H] to [Q, H]."""
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


def attend_flex(queries: Any, keys: Any, values: Any, visibility: Visibility, window: int | None) -> Any:
    """[1, A, Q, D], keys and values [1, A_kv, K, D], to [1, A, Q, D]; sparse, for a GPU."""
    mask = visibility.block_mask(window)
    return flex_kernels(queries.device.type).flex_attention(queries, keys, values, block_mask=mask, enable_gqa=True)


def attend_dense(queries: Any, keys: Any, values: Any, visibility: Visibility, window: int | None) -> Any:
    """The same by scaled_dot_product_attention and a mask [Q, K]: the reference, and the way of a CPU."""
    groups = queries.shape[1] // keys.shape[1]
    return functional.scaled_dot_product_attention(
        queries,
        keys.repeat_interleave(groups, dim=1),
        values.repeat_interleave(groups, dim=1),
        attn_mask=visibility.dense(window),
    )


class Attention(nn.Module):
    """Queries from block slots, keys and values from context and block."""

    def __init__(self, shape: DrafterShape, layer: int) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        self.window = shape.window(layer)
        width, kv_width = shape.num_attention_heads * self.head_dim, shape.num_key_value_heads * self.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, width, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, kv_width, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, kv_width, bias=False)
        self.o_proj = nn.Linear(width, shape.hidden_size, bias=False)
        self.q_norm = RMSNorm(self.head_dim, shape.rms_norm_eps)
        self.k_norm = RMSNorm(self.head_dim, shape.rms_norm_eps)

    def keys(self, x_TH: Any, rotation: tuple[Any, Any]) -> tuple[Any, Any]:
        """Rotated keys and values [T, A_kv, D]; of the context and of the block alike."""
        keys = self.k_norm(self.k_proj(x_TH).unflatten(-1, (-1, self.head_dim)))
        return _rotate(keys, rotation), self.v_proj(x_TH).unflatten(-1, (-1, self.head_dim))

    def forward(self, x_QH: Any, context: tuple[Any, Any], rotation: tuple[Any, Any], visibility: Visibility) -> Any:
        """[Q, H] to [Q, H]."""
        queries = self.q_norm(self.q_proj(x_QH).unflatten(-1, (-1, self.head_dim)))
        queries = _rotate(queries, rotation)
        own_keys, own_values = self.keys(x_QH, rotation)
        keys = torch.cat([context[0], own_keys]).transpose(0, 1)[None]
        values = torch.cat([context[1], own_values]).transpose(0, 1)[None]
        queries = queries.transpose(0, 1)[None]
        attend = attend_flex if x_QH.is_cuda and not visibility.reference else attend_dense
        mixed = attend(queries, keys, values, visibility, self.window)
        return self.o_proj(mixed[0].transpose(0, 1).flatten(1))


class DraftLayer(nn.Module):
    """A Qwen3 decoder layer over block slots."""

    def __init__(self, shape: DrafterShape, layer: int) -> None:
        super().__init__()
        self.self_attn = Attention(shape, layer)
        self.mlp = MLP(shape)
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)

    def forward(self, x_QH: Any, context: tuple[Any, Any], rotation: tuple[Any, Any], visibility: Visibility) -> Any:
        """[Q, H] to [Q, H]."""
        x_QH = x_QH + self.self_attn(self.input_layernorm(x_QH), context, rotation, visibility)
        return x_QH + self.mlp(self.post_attention_layernorm(x_QH))


class Drafter(nn.Module):
    """The trainable part of DFlash. Weights come from `seed` alone, whatever torch's own state is."""

    def __init__(self, shape: DrafterShape, seed: int = 0) -> None:
        super().__init__()
        self.shape = shape
        features = len(shape.target_layer_ids)
        self.fc = nn.Linear(features * shape.hidden_size, shape.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.layers = nn.ModuleList(DraftLayer(shape, layer) for layer in range(shape.draft_layers))
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.parameters():
                if parameter.ndim > 1:
                    parameter.normal_(std=shape.initializer_range, generator=generator)

    def features(self, states_TNH: Any) -> Any:
        """The target's states (captured layers only) as all draft layers see them: [T, H]."""
        return self.hidden_norm(self.fc(states_TNH.flatten(1)))

    def context(self, states_TNH: Any, position_T: Any) -> ContextKeys:
        """Keys and values of the target's states, for every layer."""
        features_TH = self.features(states_TNH)
        rotation = self._rotation(position_T)
        return [layer.self_attn.keys(features_TH, rotation) for layer in self.layers]

    def draft(self, context: ContextKeys, embeddings_QH: Any, visibility: Visibility) -> Any:
        """Normed output [Q, H] of block slots, ready for the target's output head."""
        rotation = self._rotation(visibility.slot_position_Q)
        x_QH = embeddings_QH
        for layer, keys in zip(self.layers, context, strict=True):
            x_QH = layer(x_QH, keys, rotation, visibility)
        return self.norm(x_QH)

    def forward(
        self,
        states_TNH: Any,
        position_T: Any,
        embeddings_QH: Any,
        visibility: Visibility,
        *,
        checkpoint_layers: bool = False,
    ) -> Any:
        """Context and block in one call: [Q, H].

        With `checkpoint_layers` a layer keeps its input [Q, H] alone, and is computed again in the backward, its keys
        and values of the context too.
        """
        if not checkpoint_layers:
            return self.draft(self.context(states_TNH, position_T), embeddings_QH, visibility)
        features_TH = self.features(states_TNH)
        of_context, of_slots = self._rotation(position_T), self._rotation(visibility.slot_position_Q)

        def run(layer: Any, x_QH: Any) -> Any:
            return layer(x_QH, layer.self_attn.keys(features_TH, of_context), of_slots, visibility)

        x_QH = embeddings_QH
        for layer in self.layers:
            # attention is compiled alone, so the kind that is not reentrant works; nothing in a layer is random
            x_QH = checkpoint(run, layer, x_QH, use_reentrant=False, preserve_rng_state=False)
        return self.norm(x_QH)

    def _rotation(self, position_T: Any) -> tuple[Any, Any]:
        """cos and sin [T, 1, D / 2] in float32 of default RoPE: angle = position * theta^(-2i/D)."""
        exponents = torch.arange(0, self.shape.head_dim, 2, device=position_T.device).float()
        frequencies = self.shape.rope_theta ** -(exponents / self.shape.head_dim)
        angles = (position_T.float()[:, None] * frequencies)[:, None, :]
        return angles.cos(), angles.sin()


def block_tokens(anchor_tokens_A: Any, block_size: int, mask_token_id: int) -> Any:
    """Token ids [A * block_size] of blocks: the anchor's token, then masks."""
    tokens = torch.full(
        (len(anchor_tokens_A), block_size), mask_token_id, dtype=torch.long, device=anchor_tokens_A.device
    )
    tokens[:, 0] = anchor_tokens_A
    return tokens.flatten()


def _rotate(x: Any, rotation: tuple[Any, Any]) -> Any:
    """RoPE on [T, A, D]: the halves of the head are the two coordinates, as in Qwen3 and Llama."""
    cos, sin = (part.to(x.dtype) for part in rotation)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
