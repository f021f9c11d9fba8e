"""A drafter's folder from elsewhere, read before it is trained on: its config beside the shape that is asked for, and
the headers of its weights beside what that shape needs. No weight is loaded and no torch is needed; whether the weights
are numbers is seen when they are.

Weights are safetensors: model.safetensors, the files that model.safetensors.index.json names, or whatever
*.safetensors lie in the folder. No pickle is opened.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corpus.errors import UserError, first_line
from training.mask_token import check_mask_token
from training.messages import AUTO_MASK_TOKEN, TrainItem
from training.shape import DrafterShape, from_exported_config, shape_for_target

CONFIG, WEIGHTS = "config.json", "model.safetensors"
INDEX = f"{WEIGHTS}.index.json"
DTYPES = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""What training reads, as safetensors' headers name it."""
UNSAID = frozenset({"block_size", "initializer_range", "max_position_embeddings"})
"""Of a shape: nothing in the weights depends on them."""
NAMED = 3


@dataclass(frozen=True)
class Tensor:
    """One tensor as its file's header has it."""

    file: Path
    dtype: str
    shape: tuple[int, ...]


def weight_shapes(shape: DrafterShape) -> dict[str, tuple[int, ...]]:
    """The tensors of a drafter by name."""
    hidden, head = shape.hidden_size, shape.head_dim
    width, kv_width = shape.num_attention_heads * head, shape.num_key_value_heads * head
    of_layer = {
        "self_attn.q_proj": (width, hidden),
        "self_attn.k_proj": (kv_width, hidden),
        "self_attn.v_proj": (kv_width, hidden),
        "self_attn.o_proj": (hidden, width),
        "self_attn.q_norm": (head,),
        "self_attn.k_norm": (head,),
        "mlp.gate_proj": (shape.intermediate_size, hidden),
        "mlp.up_proj": (shape.intermediate_size, hidden),
        "mlp.down_proj": (hidden, shape.intermediate_size),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    outside = {"fc": (hidden, len(shape.target_layer_ids) * hidden), "hidden_norm": (hidden,), "norm": (hidden,)}
    layers = {f"layers.{i}.{name}": own for i in range(shape.draft_layers) for name, own in of_layer.items()}
    return {f"{name}.weight": tuple(own) for name, own in (outside | layers).items()}


def weight_files(folder: Path) -> list[Path]:
    """The files that hold a drafter's weights.

    Raises:
        UserError: there are none, or the index names what is not there.
    """
    index = folder / INDEX
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if index.is_file():
        try:
            named = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
            plain = all(Path(name).name == name for name in named)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{index}: no index of weights ({first_line(error)}). Fetch the drafter again.") from error
        gone = [name for name in named if not (folder / name).is_file()]
        if not named or not plain or gone:
            raise UserError(f"{index}: names {(gone or named or ['nothing'])[0]}, which is not there. Fetch it again.")
        return [folder / name for name in named]
    found = sorted(folder.glob("*.safetensors"))
    if not found:
        pickles = sorted(path.name for ending in ("*.bin", "*.pt", "*.pth") for path in folder.glob(ending))
        other = f"; {pickles[0]} is a pickle, which is not opened" if pickles else ""
        raise UserError(f"{folder}: holds no weights (*.safetensors){other}. Save them as {WEIGHTS}.")
    return found


def tensors(folder: Path) -> dict[str, Tensor]:
    """Every tensor of a drafter's weights by name, from the files' headers.

    Raises:
        UserError: there are none, or a file is damaged.
    """
    from safetensors import SafetensorError, safe_open

    found: dict[str, Tensor] = {}
    for path in weight_files(folder):
        try:
            with safe_open(str(path), framework="numpy") as file:
                for name in file.keys():  # noqa: SIM118  # a handle, no mapping
                    own = file.get_slice(name)
                    if name in found:
                        raise ValueError(f"{name} is in {found[name].file.name} too")
                    found[name] = Tensor(path, str(own.get_dtype()), tuple(own.get_shape()))
        except (OSError, ValueError, SafetensorError) as error:
            raise UserError(f"{path}: no whole file of weights ({first_line(error)}). Fetch it again.") from error
    return found


def misfits(found: Mapping[str, Tensor], shape: DrafterShape) -> str:
    """What of these tensors a drafter of this shape cannot take; empty: nothing."""
    wanted = weight_shapes(shape)
    parts = []
    if missing := sorted(wanted.keys() - found.keys()):
        parts.append(f"{_some(missing)} {_is(missing)} missing")
    if extra := sorted(found.keys() - wanted.keys()):
        parts.append(f"{_some(extra)} {_is(extra)} none of a DFlash drafter's")
    for name in sorted(wanted.keys() & found.keys()):
        if found[name].shape != wanted[name]:
            parts.append(f"{name} is {list(found[name].shape)}, its config makes it {list(wanted[name])}")
            break
    kinds = sorted({one.dtype for name, one in found.items() if name in wanted and one.dtype not in DTYPES})
    if kinds:
        parts.append(f"weights are {', '.join(kinds)}, which nothing is trained from: {', '.join(DTYPES.values())} are")
    return "; ".join(parts)


def check_weights(folder: Path, shape: DrafterShape) -> dict[str, Tensor]:
    """The tensors, if they are what a drafter of this shape has.

    Raises:
        UserError: they are not, or a file is damaged.
    """
    found = tensors(folder)
    if wrong := misfits(found, shape):
        raise UserError(f"{folder}: its weights are not those of its config: {wrong}. Take another drafter.")
    return found


def differing(own: DrafterShape, asked: DrafterShape) -> list[tuple[str, Any, Any]]:
    """(name, the published drafter's, the one that is asked for) of what the weights depend on."""
    free = UNSAID | (frozenset() if asked.sliding_layers else {"sliding_window"})
    return [
        (name, getattr(own, name), value)
        for name, value in vars(asked).items()
        if name not in free and getattr(own, name) != value
    ]


def require_same(folder: Path, own: DrafterShape, asked: DrafterShape) -> None:
    """Refuse a published drafter of another shape.

    Raises:
        UserError: it names the first difference.
    """
    for name, has, would in differing(own, asked):
        raise UserError(
            f"training.init_from: {folder} has {name} {has}; this drafter would have {would}. "
            "Change the training section to the published drafter's, or start without it."
        )


def check_init(item: TrainItem) -> str:
    """Look at the drafter that an item starts from; returns what was found, for a person.

    Raises:
        UserError: it is no drafter of the shape that the item asks for.
    """
    folder = Path(item.init_dir)
    own = from_exported_config(folder / CONFIG)
    asked = shape_for_target(
        item.target_dir,
        target_layer_ids=tuple(item.layer_ids),
        draft_layers=item.draft_layers,
        block_size=item.block_size,
        mask_token_id=own.mask_token_id if item.mask_token_id == AUTO_MASK_TOKEN else item.mask_token_id,
        sliding_layers=item.sliding_layers,
        sliding_window=item.sliding_window,
    )
    require_same(folder, own, asked)
    _check_mask(item, own.mask_token_id, asked.vocab_size)
    found = check_weights(folder, own)
    kinds = ", ".join(sorted({DTYPES[one.dtype] for one in found.values()}))
    files = {one.file.name for one in found.values()}
    where = min(files) if len(files) == 1 else f"{len(files)} files"
    blocks = "" if own.block_size == asked.block_size else f", trained with block_size {own.block_size}"
    return f"the published drafter has {len(found)} tensors in {where}, {kinds}, of the shape that is asked for{blocks}"


def _check_mask(item: TrainItem, mask_token_id: int, vocab: int) -> None:
    try:
        check_mask_token(item.target_dir, mask_token_id, vocab)
    except UserError as error:
        said = str(error).removeprefix("training.mask_token_id is ")
        raise UserError(f"training.init_from: {item.init_dir} has mask token {said} Start without it.") from error


def _some(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _is(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"
