"""Layer ids: which of the target's layers a drafter reads, and the one place where conventions are converted.

Here and in z-lab's format an id is 0-based and names a layer's *output*: id k is the residual stream after
layer k. transformers' `hidden_states` has the embeddings at 0, so the same tensor is `hidden_states[k + 1]`;
vLLM and speculators count like that too (`aux_hidden_state_layer_ids`). Integers in, integers out: nothing
here knows of tensors or models.
"""

from __future__ import annotations

from collections.abc import Sequence

from corpus.errors import UserError


def draft_layer_ids(num_target_layers: int, features: int) -> tuple[int, ...]:
    """`features` layers spread over a target of `num_target_layers`, as DFlash's authors spread them.

    `round(1 + i * (N - 4) / (n - 1))` for i = 0..n-1, and `N // 2` for one feature (the public `dflash`
    package). 64 layers and 5 features give 1, 16, 31, 46, 61.

    Raises:
        UserError: the target has too few layers, so that the formula names one twice.
    """
    if features < 1 or num_target_layers < 1:
        raise UserError(f"extraction: {features} features of {num_target_layers} layers; both must be at least 1")
    if features == 1:
        return (num_target_layers // 2,)
    step = (num_target_layers - 4) / (features - 1)
    ids = tuple(round(1 + i * step) for i in range(features))
    if len(set(ids)) < len(ids) or ids != tuple(sorted(ids)):
        raise UserError(
            f"extraction.features is {features}, but the target has only {num_target_layers} layers: the "
            f"formula gives {list(ids)}, which repeats layers. Lower extraction.features or name "
            "extraction.layers."
        )
    return ids


def check_layer_ids(layer_ids: Sequence[int], num_target_layers: int) -> tuple[int, ...]:
    """The ids, if they are ascending, unique and layers of the target.

    Raises:
        UserError: otherwise.
    """
    ids = tuple(layer_ids)
    if not ids:
        raise UserError("extraction.layers is empty; name at least one layer or say auto")
    if list(ids) != sorted(set(ids)):
        raise UserError(f"extraction.layers is {list(ids)}; layer ids must ascend and none may repeat")
    if ids[0] < 0 or ids[-1] >= num_target_layers:
        raise UserError(
            f"extraction.layers is {list(ids)}, but the target has layers 0 to {num_target_layers - 1} "
            "(0-based outputs; vLLM's ids are one higher)"
        )
    return ids


def to_vllm_ids(layer_ids: Sequence[int]) -> tuple[int, ...]:
    """0-based layer outputs to vLLM's and speculators' ids (0 is the embeddings)."""
    return tuple(to_hidden_states_index(layer_id) for layer_id in layer_ids)


def from_vllm_ids(vllm_ids: Sequence[int]) -> tuple[int, ...]:
    """vLLM's ids back to 0-based layer outputs.

    Raises:
        UserError: id 0, the embeddings, is no layer's output.
    """
    if any(vllm_id < 1 for vllm_id in vllm_ids):
        raise UserError(f"vLLM layer ids {list(vllm_ids)}: 0 names the embeddings, which no layer puts out")
    return tuple(vllm_id - 1 for vllm_id in vllm_ids)


def to_hidden_states_index(layer_id: int) -> int:
    """Where transformers' `hidden_states` holds a layer's output.

    Of the last layer transformers gives the state *after* the final norm there, which is not its output.
    """
    return layer_id + 1
