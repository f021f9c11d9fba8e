"""A capture checks itself before a run: the same rows along an independent path.

Each row goes alone and unpadded through the same weights with transformers' own `output_hidden_states`; what
the hooks took from a padded batch must be finite, not zero, and equal within a tolerance relative to the
layer's root mean square (residual streams of real models reach 25,000, so absolute differences say nothing)
plus the number's own size (such an outlier is rounded by more than the others' root mean square).
The final state is compared after the target's own norm, the only form in which transformers gives it. One
row in two batches must give one answer. A failure is a UserError in one line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from corpus.errors import UserError
from corpus.layers import to_hidden_states_index
from extraction.capture import Capture

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.02}
"""Allowed by the coarser dtype of compute and store. A bf16 forward differs between batch shapes by a few
units of its 8-bit mantissa at every layer."""
NORM_NAMES = ("norm", "final_layernorm", "final_layer_norm", "ln_f")


def check_capture(capture: Capture, rows: Sequence[Sequence[int]], max_rows: int = 4) -> float:
    """Compare a few rows along both paths, every layer; returns the largest relative difference seen.

    Raises:
        UserError: states are not finite, all zero, or differ.
    """
    chosen = sorted((row for row in rows if row), key=len)[:: max(1, len(rows) // max_rows)][:max_rows]
    if not chosen:
        return 0.0
    every = capture.of_all_layers()
    references = [_reference(every, row) for row in chosen]
    worst = 0.0
    # the shortest row stands first and the longest last, and the other way round: both ends of a batch are seen
    for taken, step in ((every, 1), (capture, -1)):
        for states_TNH, layers in zip(taken.forward(chosen[::step]), references[::step], strict=True):
            wants = [layers[i] for i in taken.wanted]
            for name, got_TH, want_TH in zip(_names(taken), _comparable(taken, states_TNH), wants, strict=True):
                _check_sane(name, got_TH)
                worst = max(worst, _compare(taken, name, got_TH, want_TH, "an unpadded forward"))
    together, alone = capture.forward(chosen)[0], capture.forward([chosen[0]])[0]
    for n, name in enumerate(_names(capture)):
        worst = max(worst, _compare(capture, name, together[:, n], alone[:, n], "the same row alone"))
    return worst


def relative_difference(got_TH: Any, want_TH: Any) -> float:
    """Largest of |got - want| / (root mean square of the layer + |want|)."""
    got, want = got_TH.double(), want_TH.double()
    scale = want.pow(2).mean().sqrt().clamp_min(1e-30) + want.abs()
    return float(((got - want).abs() / scale).max())


def _names(capture: Capture) -> list[str]:
    return [f"layer {i}" for i in capture.layer_ids] + (["the final state"] if capture.final_state else [])


@torch.inference_mode()
def _reference(capture: Capture, row: Sequence[int]) -> list[Any]:
    """Per layer: what transformers gives for the row alone, no padding, no hooks of ours; the last after the norm."""
    input_ids_1T = torch.tensor([list(row)], dtype=torch.long, device=capture.device)
    output = capture.decoder(input_ids=input_ids_1T, use_cache=False, output_hidden_states=True)
    return [output.hidden_states[to_hidden_states_index(i)][0].cpu() for i in range(len(capture.layers))]


@torch.inference_mode()
def _comparable(capture: Capture, states_TNH: Any) -> list[Any]:
    """Our states in the form that transformers has: what the last layer put out goes through the norm."""
    last = len(capture.layers) - 1
    result = []
    for n, layer_id in enumerate(capture.wanted):
        state_TH = states_TNH[:, n]
        if layer_id == last:
            norm = _final_norm(capture)
            weight = next(norm.parameters())
            state_TH = norm(state_TH.to(weight.device, weight.dtype)).cpu()
        result.append(state_TH)
    return result


def _final_norm(capture: Capture) -> Any:
    for name in NORM_NAMES:
        if hasattr(capture.decoder, name):
            return getattr(capture.decoder, name)
    raise UserError(
        f"{type(capture.decoder).__name__}: no final norm found ({', '.join(NORM_NAMES)}); "
        "set extraction.final_state: false"
    )


def _check_sane(name: str, states_TH: Any) -> None:
    if not bool(torch.isfinite(states_TH).all()):
        raise UserError(f"capture self-test: {name} has numbers that are not finite. Try target.dtype: float32.")
    if not bool(states_TH.abs().amax(dim=-1).gt(0).all()):
        raise UserError(f"capture self-test: {name} is all zero for some token; these states are no use.")


def _compare(capture: Capture, name: str, got_TH: Any, want_TH: Any, against: str) -> float:
    computed = next(capture.decoder.parameters()).dtype
    tolerance = max(TOLERANCE[computed], TOLERANCE[capture.store_dtype])
    difference = relative_difference(got_TH, want_TH)
    if difference > tolerance:
        raise UserError(
            f"capture self-test: {name} differs from {against} by {difference:.2g} of its size; "
            f"{tolerance:g} is allowed. The states of this target cannot be trusted."
        )
    return difference
