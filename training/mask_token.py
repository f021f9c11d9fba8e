"""Which token stands for "to be drafted": an embedding row that text never uses.

Never an end, begin, pad or unknown token, never one that occurs in the training rows, and never a row without
length: a mask that embeds to nothing leaves all slots of a block alike. Preferred are special tokens, those
named mask, reserved or unused first, then rows behind the tokenizer's last token, then any unused row; among
equals the highest id. Equal input gives an equal choice.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from corpus.errors import UserError

TELLING_NAMES = ("mask", "unused", "reserved", "extra", "dummy", "placeholder")
SHORTEST = 0.05
"""Of the median row's length."""
NAMED_CHARS = 24
NAMED_TOKENS = ("eos_token", "bos_token", "pad_token", "unk_token")
NAMED_IDS = ("eos_token_id", "bos_token_id", "pad_token_id", "decoder_start_token_id")


def choose_mask_token(target_dir: Path | str, used: Collection[int], embeddings_VH: Any) -> int:
    """The id of an embedding row that can stand for a token to be drafted.

    Args:
        target_dir: the target's folder; its tokenizer.json and configs are read where present.
        used: ids that occur in training rows.
        embeddings_VH: the target's embeddings.

    Raises:
        UserError: every row is in use.
    """
    folder = Path(target_dir)
    vocab = embeddings_VH.shape[0]
    added, tokenizer_size = _added_tokens(folder)
    lengths_V = embeddings_VH.float().norm(dim=1)
    short = (lengths_V < SHORTEST * lengths_V.median()).nonzero().flatten().tolist()
    barred = set(used) | _named_ids(folder, added) | set(short)

    def rank(token_id: int) -> tuple[int, int]:
        name, special = added.get(token_id, ("", False))
        if special and any(word in name.lower() for word in TELLING_NAMES):
            return (0, -token_id)
        if special:
            return (1, -token_id)
        if tokenizer_size and token_id >= tokenizer_size:
            return (2, -token_id)
        return (3, -token_id)

    free = [token_id for token_id in range(vocab) if token_id not in barred]
    if not free:
        raise UserError(
            f"{folder}: no embedding row is unused ({vocab} rows, {len(used)} used). "
            "Set training.mask_token_id to a token that text hardly uses."
        )
    return min(free, key=rank)


def check_mask_token(target_dir: Path | str, mask_token_id: int, vocab: int) -> int:
    """The id a manifest names, if it may be the mask.

    Raises:
        UserError: it is no row of the embeddings, or an end, begin or pad token.
    """
    folder = Path(target_dir)
    if mask_token_id >= vocab:
        raise UserError(f"training.mask_token_id is {mask_token_id}; the target has {vocab} embedding rows.")
    if mask_token_id in _named_ids(folder, _added_tokens(folder)[0]):
        raise UserError(
            f"training.mask_token_id is {mask_token_id}, an end, begin, pad or unknown token of the target. "
            "Name another or say auto."
        )
    return mask_token_id


def reserved_ids(folder: Path) -> frozenset[int]:
    """End, begin, pad and unknown tokens of a target: none of them may be the mask."""
    return frozenset(_named_ids(folder, _added_tokens(folder)[0]))


def tokenizer_size(folder: Path) -> int:
    """One more than the tokenizer's highest id; 0 where there is no tokenizer.json."""
    return _added_tokens(folder)[1]


def mask_sentences(folder: Path, asked: int | str, vocab: int) -> list[str]:
    """What is known of the mask token before training, for a person; nothing is loaded but the tokenizer.

    Args:
        asked: training.mask_token_id.
        vocab: the target's embedding rows.
    """
    if isinstance(asked, int):
        return mask_told(folder, asked)
    added, size = _added_tokens(folder)
    named = _named_ids(folder, added)
    free = [i for i, (_, special) in added.items() if special and i not in named] or [*range(size, vocab)][-1:]
    if free or not size:  # without a tokenizer.json nothing can be told
        return [
            "mask token: chosen when training starts, a special token or unused row that no row of text uses (auto)"
        ]
    return [
        "warning: the target has no special token and no embedding row to spare for the mask: auto takes an ordinary "
        "token that no training row uses, and a served text that holds it looks like a slot to the drafter"
    ]


def mask_told(folder: Path, token_id: int) -> list[str]:
    """The mask's id and its text, in ASCII and cut; a second sentence where text is made of it."""
    added, size = _added_tokens(folder)
    text, special = added.get(token_id, ("", False))
    text = text or _text(folder, token_id)
    name = f"{token_id} ({json.dumps(text[:NAMED_CHARS])})" if text else str(token_id)
    if special or token_id >= size or any(word in text.lower() for word in TELLING_NAMES):
        return [f"mask token {name}"]
    return [
        f"mask token {name}",
        f"warning: the mask token is {name}, which the tokenizer has as ordinary text: a served "
        "text that holds it looks like a slot to the drafter. A special or unused token is better",
    ]


def _text(folder: Path, token_id: int) -> str:
    """What the tokenizer decodes it to; empty where it does not."""
    try:
        from tokenizers import Tokenizer

        return str(Tokenizer.from_file(str(folder / "tokenizer.json")).decode([token_id], skip_special_tokens=False))
    except Exception:  # the library raises bare Exception for files that it cannot read; a name is no condition
        return ""


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return data


def _added_tokens(folder: Path) -> tuple[dict[int, tuple[str, bool]], int]:
    """(text and whether special, by id, of the tokenizer's added tokens; one more than its highest id)."""
    data = _read_json(folder / "tokenizer.json")
    added = {
        int(entry["id"]): (str(entry["content"]), bool(entry.get("special"))) for entry in data.get("added_tokens", [])
    }
    vocab = data.get("model", {}).get("vocab", {})
    ids = [*added, *(vocab.values() if isinstance(vocab, dict) else range(len(vocab)))]
    return added, max(ids, default=-1) + 1


def _named_ids(folder: Path, added: dict[int, tuple[str, bool]]) -> set[int]:
    """End, begin, pad and unknown tokens, from every file that names some."""
    found: set[int] = set()
    for name in ("config.json", "generation_config.json"):
        config = _read_json(folder / name)
        for part in (config, config.get("text_config") or {}):
            for key in NAMED_IDS:
                value = part.get(key)
                found.update([value] if isinstance(value, int) else value or [])
    texts: set[str] = set()
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        config = _read_json(folder / name)
        for key in NAMED_TOKENS:
            value = config.get(key)
            texts.add(str(value["content"] if isinstance(value, dict) else value))
    return found | {token_id for token_id, (text, _) in added.items() if text in texts}
