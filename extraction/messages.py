"""What the coordinator and an extraction worker say to each other, as msgpack.

One ExtractItem is one shard to be written; its ExtractReceipt says where it lies and what is in it. Workers
write shards and never open the ledger. No torch here: the coordinator imports this module.
"""

from __future__ import annotations

import msgspec

from corpus.canonical import digest

AUTO_TOKENS_CPU = 2048
AUTO_TOKENS_GPU = 32768


class ExtractConfig(msgspec.Struct, frozen=True, kw_only=True):
    """All that a worker needs once. Paths are absolute; `out_dir` is the capture's own folder."""

    target_dir: str
    target: str
    revision: str
    dtype: str
    """Numbers that the target computes with."""
    store_dtype: str
    """Numbers that the shards hold."""
    layer_ids: tuple[int, ...]
    """0-based layer outputs, ascending."""
    final_state: bool
    capture_id: str
    out_dir: str
    device: str = "cpu"
    """cpu or cuda:N."""
    max_tokens_per_batch: int = 0
    """Padded tokens of one forward; 0 chooses by device."""
    max_rows_per_batch: int = 256
    threads: int = 0
    """Torch threads on the CPU; 0 leaves torch's own number."""
    trust_remote_code: bool = False


class ExtractRow(msgspec.Struct, frozen=True, array_like=True):
    """One training row, as the engine saw and wrote it."""

    response_id: str
    prompt_token_ids: list[int]
    token_ids: list[int]


class ExtractItem(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of one shard, in the order that the shard keeps."""

    item_id: str
    rows: list[ExtractRow]


class CapturedEntry(msgspec.Struct, frozen=True, array_like=True):
    """Where a response lies in its shard."""

    response_id: str
    row: int
    tokens: int


class FailedEntry(msgspec.Struct, frozen=True, array_like=True):
    """A response that could not be captured, and why in one line."""

    response_id: str
    reason: str


class ExtractReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one item. With no row captured, no shard is written and `shard` is empty."""

    item_id: str
    shard: str
    """File name below `out_dir`."""
    size_bytes: int
    sha256: str
    rows: list[CapturedEntry]
    failed: list[FailedEntry]
    seconds: float
    tokens: int
    batches: str
    """How the item was cut, for people: "32 batches, sizes 2 to 226, mean 31, padding 1.1%"."""


def shard_name(capture_id: str, response_ids: list[str]) -> str:
    """The file of these rows: an item that is done again overwrites the same one."""
    return f"{digest('shard', [capture_id, response_ids])}.safetensors"
