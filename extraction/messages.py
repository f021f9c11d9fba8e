"""What the coordinator and an extraction worker say to each other, as msgpack.

One ExtractItem is one shard to be written; its ExtractReceipt says where it lies and what is in it. Before its first
item a worker tells what it measured of itself (ExtractReady), and later when a budget had to be lowered. Workers
write shards and never open the ledger. No torch here: the coordinator imports this module.
"""

from __future__ import annotations

import msgspec

from corpus.canonical import digest

AUTO_TOKENS_CPU = 2_048
"""Most padded tokens of a batch on a core: its caches hold no more, and a larger one is not faster."""
AUTO_TOKENS_GPU = 32_768
"""The same on a GPU: its matrix units are full long before, and the states of a batch are 2 GB for the case at hand."""
ALIGN_CPU, ALIGN_GPU = 1, 8
"""Lengths are padded to a multiple of this: bf16 matrices of tensor cores want 8."""


def align_of(device: str) -> int:
    """What lengths are padded to a multiple of on a device: cpu or cuda:N."""
    return ALIGN_CPU if device == "cpu" else ALIGN_GPU


class TargetConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker needs to load the target and to know what its batches may hold. Paths are absolute."""

    target_dir: str
    dtype: str
    """Numbers that the target computes with."""
    store_dtype: str
    """Numbers that the states are kept in."""
    layer_ids: tuple[int, ...]
    """0-based layer outputs, ascending."""
    final_state: bool
    device: str = "cpu"
    """cpu or cuda:N."""
    memory_bytes: int = 0
    """Of the device; on the CPU this worker's share of the machine's. 0: ask the device."""
    longest: tuple[int, ...] = ()
    """The longest row of each length band that the run has, shortest first."""
    max_tokens_per_batch: int = 0
    """Padded tokens of one forward; 0 chooses by device and measured memory."""
    threads: int = 0
    """Torch threads on the CPU; 0 leaves torch's own number."""
    trust_remote_code: bool = False

    @property
    def most_tokens(self) -> int:
        """Padded tokens that no batch passes, whatever the memory."""
        return self.max_tokens_per_batch or (AUTO_TOKENS_CPU if self.device == "cpu" else AUTO_TOKENS_GPU)

    @property
    def align(self) -> int:
        """What lengths are padded to a multiple of."""
        return align_of(self.device)


class ExtractConfig(TargetConfig, frozen=True, kw_only=True):
    """All that an extraction worker needs once; `out_dir` is the capture's own folder."""

    target: str
    revision: str
    capture_id: str
    out_dir: str
    sample: tuple[bytes, ...] = ()
    """Token ids of a few rows for the self-test, as int32."""


class ExtractRow(msgspec.Struct, frozen=True, array_like=True):
    """One training row, as the engine saw and wrote it."""

    response_id: str
    prompt_tokens: int
    """How many of the tokens are the prompt's; the rest is the answer, which the loss sees."""
    token_ids: bytes
    """Prompt and answer, as int32."""

    @property
    def tokens(self) -> int:
        """How many."""
        return len(self.token_ids) // 4


class ExtractItem(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of one shard, in the order that the shard keeps."""

    item_id: str
    rows: list[ExtractRow]


class ExtractReady(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """What a worker measured before its first item."""

    loaded_bytes: int
    """What the target takes: of the process on the CPU, of the GPU else."""
    announced_bytes: int
    """What the worker will take at most, batches and all."""
    limit_bytes: int
    """What it may take."""
    otherwise: int
    budgets: dict[int, int]
    """`extraction.budget.Budgets`."""
    tokens_per_s: float
    """Of the largest trial batch; 0: nothing was measured."""
    difference: float
    """The largest that the self-test saw, relative to the layer's size."""


class BudgetLowered(msgspec.Struct, frozen=True, kw_only=True, tag="lowered"):
    """A batch ran out of memory: this is its band's budget from now on."""

    length: int
    tokens: int
    """Padded tokens."""


class SelfTestFailed(msgspec.Struct, frozen=True, kw_only=True, tag="self_test_failed"):
    """The states of this target on this device cannot be trusted."""

    why: str


class WorkerAt(msgspec.Struct, frozen=True, kw_only=True, tag="at"):
    """What a worker does before it is ready."""

    step: str
    """A few words for a person."""


ExtractEvent = ExtractReady | BudgetLowered | SelfTestFailed | WorkerAt


class CapturedEntry(msgspec.Struct, frozen=True, array_like=True):
    """Where a response lies in its shard."""

    response_id: str
    row: int
    tokens: int


class FailedEntry(msgspec.Struct, frozen=True, array_like=True):
    """A response that could not be captured, and why in one line."""

    response_id: str
    tokens: int
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
    cut: tuple[int, int, int, int, int, int]
    """`extraction.plan.Cut`, field by field."""


def shard_name(capture_id: str, response_ids: list[str]) -> str:
    """The file of these rows: an item that is done again overwrites the same one."""
    return f"{digest('shard', [capture_id, response_ids])}.safetensors"


def encode(event: ExtractEvent) -> bytes:
    """For `emit`."""
    return msgspec.msgpack.encode(event)


def decode_event(data: bytes) -> ExtractEvent:
    """What a worker emitted."""
    return msgspec.msgpack.decode(data, type=ExtractEvent)
