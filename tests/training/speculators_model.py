"""speculators' own DFlash model with a drafter's weights, fed a pack with anchors that are given and not drawn.

Eager attention and eager losses: the way that its authors hold the fast ones to. A pack is padded by a block at its
end, as theirs excludes anchors in the last block. Its labels do not end at a document's end: a prompt must be as long
as a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import Qwen3Config

from corpus.layers import to_vllm_ids
from training.batch import Document
from training.dflash import Drafter
from training.frozen import FrozenTarget
from training.pack import position_ids
from training.shape import to_zlab_config


def speculators_model(drafter: Drafter, target: FrozenTarget) -> Any:
    """`DFlashDraftModel` with the same weights; the target's norm must be one that weighs by w."""
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.models.dflash import DFlashDraftModel, DFlashSpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig

    assert not target.norm_adds_one
    shape = drafter.shape
    config = Qwen3Config(**{k: v for k, v in to_zlab_config(shape, "float32").items() if k != "dflash_config"})
    config._attn_implementation = "eager"
    model = DFlashDraftModel(
        DFlashSpeculatorConfig(
            transformer_layer_config=config,
            draft_vocab_size=shape.vocab_size,
            block_size=shape.block_size,
            aux_hidden_state_layer_ids=list(to_vllm_ids(shape.target_layer_ids)),
            mask_token_id=shape.mask_token_id,
            speculators_config=SpeculatorsConfig(
                algorithm="dflash",
                proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=shape.num_speculative_tokens)],
                default_proposal_method="greedy",
                verifier=VerifierConfig(name_or_path=None, architectures=[]),
            ),
        )
    )
    left = model.load_state_dict(drafter.state_dict(), strict=False)
    assert not left.unexpected_keys
    with torch.no_grad():
        model.embed_tokens.weight.copy_(target.embeddings_VH)
        model.lm_head.weight.copy_(target.head_VH)
        model.verifier_lm_head.weight.copy_(target.head_VH)
        model.verifier_norm.weight.copy_(target.norm_H)
    model.verifier_norm.variance_epsilon = target.norm_eps
    return model.float()


@dataclass
class PackedInputs:
    """What its forward takes, by name, and the anchors' places in the pack."""

    tensors: dict[str, Any]
    anchors: list[int]


def packed_inputs(
    documents: Sequence[Document], finals: Sequence[Any], anchors: Sequence[Sequence[int]], block_size: int
) -> PackedInputs:
    """Documents end to end. `finals` are their final states [T, H] before the target's norm."""
    lengths = [len(document) for document in documents]
    starts = [sum(lengths[:i]) for i in range(len(lengths))]

    def padded(parts: Sequence[Any], value: float) -> Any:
        whole = torch.cat(list(parts))
        return torch.cat([whole, torch.full((block_size, *whole.shape[1:]), value, dtype=whole.dtype)])[None]

    return PackedInputs(
        {
            "hidden_states": padded([d.states_TNH.flatten(1) for d in documents], 0.0),
            "input_ids": padded([d.input_ids_T for d in documents], 0),
            "loss_mask": padded([torch.tensor(d.loss_mask) for d in documents], 0),
            "verifier_last_hidden_states": padded(finals, 0.0),
            "document_ids": padded([torch.full((n,), i) for i, n in enumerate(lengths)], -1),
            "position_ids": padded([torch.tensor(position_ids(lengths))], 0),
        },
        [starts[i] + anchor for i, own in enumerate(anchors) for anchor in own],
    )


class GivenAnchors:
    """Stands in for `select_anchors` of speculators.models.dflash.core while it is entered."""

    def __init__(self, anchors: Sequence[int]) -> None:
        self.anchors = torch.tensor(list(anchors))

    def __enter__(self) -> GivenAnchors:
        from speculators.models.dflash import core

        self._module, self._before = core, core.select_anchors
        core.select_anchors = self._given
        return self

    def __exit__(self, *_: object) -> None:
        self._module.select_anchors = self._before

    def _given(self, *_: Any) -> tuple[Any, Any]:
        return self.anchors, torch.ones(len(self.anchors), dtype=torch.bool)


def trainable(model: nn.Module) -> dict[str, Any]:
    """Parameters by name, without what is the target's."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
