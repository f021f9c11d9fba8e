"""The target's hidden states, by forward hooks on the layers that are wanted.

The decoder layers are found, not named: the one ModuleList with as many entries as the config has layers. A
capture runs the base model alone (never the output head) and stops after the last layer that is needed.
Rows are padded on the right; the models are causal, so no state of a row sees its padding and no mask is
needed (the self-test and the tests hold that). Out of memory passes through as torch raises it.

Shapes: B rows, L padded length, T tokens of one row, N states (layer_ids, then the final state), H hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from corpus.errors import UserError
from corpus.layers import check_layer_ids


class _EnoughError(Exception):
    """Raised by a hook after the last needed layer; never leaves this module."""


class Capture:
    """A loaded target that answers token ids with hidden states.

    Args:
        model_dir: a local folder that transformers reads.
        layer_ids: 0-based layer outputs, ascending.
        final_state: also give the residual before the final norm, which is the last layer's output.
        dtype: numbers that the target computes with.
        device: cpu or cuda:N.
        store_dtype: numbers of the states that come back; default: dtype.

    Raises:
        UserError: the folder holds no causal language model, or the layers do not exist or cannot be found.
    """

    def __init__(
        self,
        model_dir: Path | str,
        layer_ids: Sequence[int],
        *,
        final_state: bool = True,
        dtype: str = "float32",
        device: str = "cpu",
        store_dtype: str | None = None,
        trust_remote_code: bool = False,
    ) -> None:
        self.device = torch.device(device)
        self.store_dtype = getattr(torch, store_dtype or dtype)
        self.decoder, num_layers = load_decoder(
            model_dir, dtype=dtype, device=device, trust_remote_code=trust_remote_code
        )
        self.layers = find_layers(self.decoder, num_layers)
        self.layer_ids = check_layer_ids(layer_ids, num_layers)
        self.final_state = final_state
        wanted = [*self.layer_ids, num_layers - 1] if final_state else list(self.layer_ids)
        self._wanted = tuple(wanted)

    @property
    def states_per_token(self) -> int:
        """N."""
        return len(self._wanted)

    @torch.no_grad()
    def forward(self, rows: Sequence[Sequence[int]]) -> list[Any]:
        """States [T, N, H] of each row, on the CPU in the stored dtype.

        Raises:
            torch.OutOfMemoryError: the batch does not fit; cut it and try again.
        """
        length = max(len(row) for row in rows)
        padded = [[*row, *([row[-1]] * (length - len(row)))] for row in rows]
        input_ids_BL = torch.tensor(padded, dtype=torch.long, device=self.device)
        outputs = self._run(input_ids_BL)
        states_BLNH = torch.stack([outputs[layer_id] for layer_id in self._wanted], dim=2)
        states_BLNH = states_BLNH.to(dtype=self.store_dtype).cpu()
        return [states_BLNH[i, : len(row)].clone() for i, row in enumerate(rows)]

    def _run(self, input_ids_BL: Any) -> dict[int, Any]:
        """Outputs [B, L, H] of the wanted layers, by layer id."""
        outputs: dict[int, Any] = {}
        last = max(self._wanted)
        positions_BL = torch.arange(input_ids_BL.shape[1], device=self.device).expand_as(input_ids_BL)

        def keep(layer_id: int) -> Callable[[Any, Any, Any], None]:
            def hook(_module: Any, _inputs: Any, output: Any) -> None:
                outputs[layer_id] = output[0] if isinstance(output, tuple) else output
                if layer_id == last:
                    raise _EnoughError

            return hook

        handles = [self.layers[i].register_forward_hook(keep(i)) for i in sorted(set(self._wanted))]
        try:
            self.decoder(input_ids=input_ids_BL, position_ids=positions_BL, use_cache=False)
        except _EnoughError:
            pass
        finally:
            for handle in handles:
                handle.remove()
        return outputs


def load_decoder(model_dir: Path | str, *, dtype: str, device: str, trust_remote_code: bool = False) -> tuple[Any, int]:
    """(the text decoder without its output head, its number of layers), frozen and in eval mode.

    Raises:
        UserError: the folder holds no causal language model that transformers can load.
    """
    from transformers import AutoModelForCausalLM

    try:
        model = AutoModelForCausalLM.from_pretrained(
            str(model_dir), dtype=getattr(torch, dtype), trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError, ImportError) as error:
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"{model_dir}: transformers cannot load a causal language model from it ({why}). Check target.model."
        ) from error
    decoder = model.base_model
    if hasattr(decoder, "language_model"):  # a vision-language model: its text part
        decoder = decoder.language_model
    decoder = decoder.eval().requires_grad_(False).to(device)
    return decoder, int(model.config.get_text_config().num_hidden_layers)


def find_layers(decoder: Any, num_layers: int) -> Any:
    """The ModuleList of the decoder layers, wherever the model keeps it.

    Raises:
        UserError: none, or more than one of the outermost ones, has as many entries as the config says.
    """
    found = [
        (name, module)
        for name, module in decoder.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == num_layers
    ]
    outermost = [
        (name, module)
        for name, module in found
        if not any(name.startswith(f"{other}.") for other, _ in found if other != name)
    ]
    if len(outermost) != 1:
        names = ", ".join(name for name, _ in outermost) or "none"
        raise UserError(
            f"{type(decoder).__name__}: the config says {num_layers} layers; module lists of that length: "
            f"{names}. This architecture cannot be captured."
        )
    return outermost[0][1]
