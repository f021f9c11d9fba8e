"""The target's hidden states, by forward hooks on the layers that are wanted.

The decoder layers are found, not named: the one ModuleList with as many entries as the config has layers. A
capture runs the base model alone (never the output head) and stops after the last layer that is needed.
Rows are padded on the right; the models are causal, so no state of a row sees its padding and no mask is
needed (the self-test and the tests hold that). Out of memory passes through as torch raises it.

Shapes: B rows, L padded length, T tokens of one row, S tokens of all rows, N states (layer_ids, then the final
state), H hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
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

    @property
    def wanted(self) -> tuple[int, ...]:
        """The layer of each state, in the order in which they are stored."""
        return (*self.layer_ids, len(self.layers) - 1) if self.final_state else self.layer_ids

    @property
    def states_per_token(self) -> int:
        """N."""
        return len(self.wanted)

    @property
    def hidden_size(self) -> int:
        """H."""
        return int(self.decoder.config.get_text_config().hidden_size)

    @property
    def token_bytes(self) -> int:
        """What the states of one token take as they are stored."""
        return int(self.states_per_token * self.hidden_size * self.store_dtype.itemsize)

    def of_all_layers(self) -> Capture:
        """The same loaded target, every layer's output captured, in the numbers that it computes with."""
        other = copy(self)
        other.layer_ids = tuple(range(len(self.layers)))
        other.store_dtype = next(self.decoder.parameters()).dtype
        return other

    def forward(self, rows: Sequence[Sequence[int]], length: int = 0) -> list[Any]:
        """States [T, N, H] of each row, on the CPU in the stored dtype.

        Raises:
            torch.OutOfMemoryError: the batch does not fit; cut it and try again.
        """
        states_SNH = self.packed(rows, length).cpu()
        return [states.clone() for states in states_SNH.split([len(row) for row in rows])]

    @torch.no_grad()
    def packed(self, rows: Sequence[Sequence[int]], length: int = 0) -> Any:
        """States [S, N, H] of all rows, one after another without padding, on the device in the stored dtype.

        Args:
            rows: token ids; none is empty.
            length: what they are padded to; at least the longest row's.

        Raises:
            torch.OutOfMemoryError: the batch does not fit; cut it and try again.
        """
        lengths = [len(row) for row in rows]
        length = max(length, *lengths)
        padded = [[*row, *([row[-1]] * (length - len(row)))] for row in rows]
        input_ids_BL = torch.tensor(padded, dtype=torch.long).to(self.device, non_blocking=True)
        real_S = None
        if min(lengths) < length:
            real_S = torch.cat([torch.arange(n) + i * length for i, n in enumerate(lengths)]).to(self.device)
        shape = (sum(lengths), self.states_per_token, self.hidden_size)
        states_SNH = torch.empty(shape, dtype=self.store_dtype, device=self.device)

        def take(layer_id: int, output_BLH: Any) -> None:
            """Put a layer's output to its places at once: nothing else of it stays in memory."""
            flat = output_BLH.reshape(-1, output_BLH.shape[-1])
            kept_SH = flat if real_S is None else flat.index_select(0, real_S)
            for n, wanted in enumerate(self.wanted):
                if wanted == layer_id:
                    states_SNH[:, n].copy_(kept_SH)

        self._run(input_ids_BL, take)
        return states_SNH

    def _run(self, input_ids_BL: Any, take: Callable[[int, Any], None]) -> None:
        """One forward as far as the last wanted layer; `take` gets each wanted layer's output [B, L, H]."""
        last = max(self.wanted)

        def keep(layer_id: int) -> Callable[[Any, Any, Any], None]:
            def hook(_module: Any, _inputs: Any, output: Any) -> None:
                take(layer_id, output[0] if isinstance(output, tuple) else output)
                if layer_id == last:
                    raise _EnoughError

            return hook

        handles = [self.layers[i].register_forward_hook(keep(i)) for i in sorted(set(self.wanted))]
        try:
            self.decoder(input_ids=input_ids_BL, use_cache=False)
        except _EnoughError:
            pass
        finally:
            for handle in handles:
                handle.remove()


def load_decoder(model_dir: Path | str, *, dtype: str, device: str, trust_remote_code: bool = False) -> tuple[Any, int]:
    """(the text decoder without its output head, its number of layers), frozen and in eval mode.

    Raises:
        UserError: the folder holds no causal language model that transformers can load.
    """
    from transformers import AutoModelForCausalLM

    try:
        model, loading = AutoModelForCausalLM.from_pretrained(
            str(model_dir), dtype=getattr(torch, dtype), trust_remote_code=trust_remote_code, output_loading_info=True
        )
    except (OSError, ValueError, ImportError, RuntimeError) as error:
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"{model_dir}: transformers cannot load a causal language model from it ({why}). Check target.model."
        ) from error
    check_whole(model_dir, loading["missing_keys"], model)
    decoder = model.base_model
    if hasattr(decoder, "language_model"):  # a vision-language model: its text part
        decoder = decoder.language_model
    decoder = decoder.eval().requires_grad_(False).to(device)
    return decoder, int(model.config.get_text_config().num_hidden_layers)


def check_whole(model_dir: Path | str, missing: Iterable[str], model: Any) -> None:
    """transformers fills tensors that a folder lacks with random numbers, others in every process.

    Raises:
        UserError: tensors of the decoder are not there; an output head may be missing, nothing here runs it.
    """
    head = model.get_output_embeddings()
    heads = {id(parameter) for parameter in head.parameters()} if head is not None else set()
    own = dict(model.named_parameters()) | dict(model.named_buffers())
    lacking = sorted(name for name in missing if id(own.get(name)) not in heads)
    if lacking:
        more = f" and {len(lacking) - 3} more" if len(lacking) > 3 else ""
        raise UserError(
            f"{model_dir}: its weights lack {', '.join(lacking[:3])}{more}. Download or convert target.model again."
        )


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
