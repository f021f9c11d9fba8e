"""The drafter in speculators' format: z-lab's weights, name for name, under another config.json.

Embeddings and output head are left out here too: speculators reads them from the verifier that the config names, vLLM
from the target that it serves. What vLLM makes of such a config (vllm.transformers_utils.configs.speculators.algos)
is one causality for all layers: `not sliding_window_non_causal`, where speculators itself keeps full layers
bidirectional. So drafters of one kind of layer are said exactly, and a mixed one cannot be: it is refused. Layer ids
are one higher than z-lab's. Dicts in, dicts out: no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from corpus.errors import UserError
from corpus.layers import from_vllm_ids, to_vllm_ids

FORMAT_VERSION = "0.9.0"
NOT_OF_THE_LAYERS = frozenset({"architectures", "auto_map", "block_size", "dflash_config", "num_target_layers"})
"""Keys of z-lab's config.json that say nothing of the decoder layers (as speculators' own converter has it)."""
SLIDING = "sliding_attention"


class Form(StrEnum):
    """Whose config.json an export has."""

    zlab = "zlab"
    speculators = "speculators"


def is_speculators(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is in speculators' format."""
    return "speculators_model_type" in config


def to_speculators_config(config: Mapping[str, Any], verifier: str, architectures: Sequence[str]) -> dict[str, Any]:
    """z-lab's config.json in speculators' words.

    Args:
        config: as `training.shape.to_zlab_config` gives it.
        verifier: the target, as speculators (and `vllm serve THIS_FOLDER`) can load it: a Hub id or a folder.
        architectures: the target's, from its config.json.

    Raises:
        UserError: the drafter has sliding and full layers.
    """
    sliding = [kind == SLIDING for kind in config["layer_types"]]
    if any(sliding) and not all(sliding):
        raise UserError(
            f"speculators' format: vLLM reads one causality for all draft layers there, and this drafter has "
            f"{sum(sliding)} sliding (causal) and {len(sliding) - sum(sliding)} full (bidirectional) ones: it would "
            "accept less than it was trained to. Use --format zlab."
        )
    dflash = config["dflash_config"]
    return {
        "architectures": ["DFlashDraftModel"],
        "aux_hidden_state_layer_ids": list(to_vllm_ids(dflash["target_layer_ids"])),
        "block_size": config["block_size"],
        "draft_vocab_size": config["vocab_size"],
        "dtype": config["dtype"],
        "mask_token_id": dflash["mask_token_id"],
        "num_target_layers": config["num_target_layers"],
        "sample_from_anchor": False,
        "sliding_window_non_causal": not any(sliding),
        "speculators_config": {
            "algorithm": "dflash",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "accept_tolerance": 0.0,
                    "proposal_type": "greedy",
                    "speculative_tokens": config["block_size"] - 1,
                    "verifier_accept_k": 1,
                }
            ],
            "verifier": {"architectures": list(architectures), "name_or_path": verifier},
        },
        "speculators_model_type": "dflash",
        "speculators_version": FORMAT_VERSION,
        "tie_word_embeddings": False,
        "transformer_layer_config": {k: v for k, v in config.items() if k not in NOT_OF_THE_LAYERS},
    }


def from_speculators_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config.json of speculators in z-lab's words, its causality as vLLM reads it.

    How many layers the target has is said by draftmill's own exports alone; of others it is the least that it can be.

    Raises:
        KeyError, TypeError: a key is missing.
        UserError: it is of another algorithm, drafts from the anchor, or reads the embeddings.
    """
    if config["speculators_model_type"] != "dflash":
        raise UserError(f"a drafter of speculators' {config['speculators_model_type']}; draftmill knows dflash.")
    if config.get("sample_from_anchor"):
        raise UserError("a drafter that drafts from the anchor (sample_from_anchor); vLLM serves none.")
    layers = dict(config["transformer_layer_config"])
    ids = list(from_vllm_ids(config["aux_hidden_state_layer_ids"]))
    return {
        **layers,
        "architectures": ["DFlashDraftModel"],
        "block_size": config["block_size"],
        "dflash_config": {
            "causal": not config.get("sliding_window_non_causal", True),
            "mask_token_id": config["mask_token_id"],
            "target_layer_ids": ids,
        },
        "draft_vocab_size": config.get("draft_vocab_size") or layers["vocab_size"],
        "dtype": config.get("dtype") or layers.get("dtype"),
        "num_target_layers": config.get("num_target_layers") or max(ids) + 1,
    }
