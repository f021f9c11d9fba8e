"""What the coordinator and a serving check say to each other, as msgpack. No torch, no vllm.

A serving check loads the target with a drafter in the real engine and decodes held-out prompts at temperature
0; one item is one category. The figures are vLLM's own counters over that item alone, raw sums that pool.
"""

from __future__ import annotations

from typing import Any

import msgspec


class ServeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The target and its drafter in one engine."""

    target_dir: str
    dtype: str
    max_model_len: int
    drafter_dir: str | None
    """In z-lab's or speculators' format; None decodes without one, to compare."""
    num_speculative_tokens: int
    """block_size - 1."""
    gpu_memory_utilization: float = 0.92
    max_num_seqs: int | None = None
    """None: 64 on a GPU, 16 on a CPU."""
    device: str = "cpu:0"
    """The device's label; what the process may use of it is set by its environment."""
    trust_remote_code: bool = False
    extra: dict[str, Any] = msgspec.field(default_factory=dict)
    """Further engine arguments, passed as they are."""


class ServeItem(msgspec.Struct, frozen=True, kw_only=True):
    """The held-out prompts of one category."""

    category: str
    prompts: list[list[int]]
    """prompt_token_ids of each."""
    max_tokens: int | list[int]
    """Of all, or of each."""


class ServeResult(msgspec.Struct, frozen=True, kw_only=True):
    """What serving one category gave."""

    category: str
    drafts: int
    """Decoding steps that verified a draft. A row's first token comes without one."""
    draft_tokens: int
    accepted_tokens: int
    """Counted before an answer is cut at its end: of a row's last draft, tokens behind the end as well."""
    accepted_per_position: list[int]
    """Drafts that had position i (0-based) accepted."""
    rows: int
    """Prompts decoded."""
    skipped: int
    """Prompts that left no room for one token and its drafts below max_model_len."""
    token_ids: list[list[int]]
    """Of each prompt in order, the end token included; empty where it was skipped."""
    finish_reasons: list[str | None]
    max_tokens: list[int]
    """What each prompt was decoded with: what was asked for, or less where max_model_len is near."""
    engine: str
    seconds: float

    @property
    def acceptance_length(self) -> float:
        """tau: 1 + accepted_tokens / drafts, the bonus token included; 1.0 without drafts."""
        return 1.0 + self.accepted_tokens / self.drafts if self.drafts else 1.0


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """vLLM's cumulative counters of speculative decoding, or a difference of two."""

    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    accepted_per_position: tuple[int, ...] = ()

    def since(self, earlier: Counters) -> Counters:
        """What was counted after `earlier`."""
        before = earlier.accepted_per_position or (0,) * len(self.accepted_per_position)
        return Counters(
            drafts=self.drafts - earlier.drafts,
            draft_tokens=self.draft_tokens - earlier.draft_tokens,
            accepted_tokens=self.accepted_tokens - earlier.accepted_tokens,
            accepted_per_position=tuple(
                now - then for now, then in zip(self.accepted_per_position, before, strict=True)
            ),
        )


def room_for_drafts(num_speculative_tokens: int) -> int:
    """Tokens that must stay free below max_model_len.

    vLLM's drafter sits a step out, for the whole batch, when the longest sequence plus its drafts under
    verification plus the next block passes max_model_len; zeros are then counted as drafts.
    """
    return 2 * (num_speculative_tokens + 1)


def budgets(item: ServeItem, max_model_len: int, num_speculative_tokens: int) -> list[int]:
    """Tokens that each prompt may be answered with; 0 means that it must be skipped."""
    wanted = [item.max_tokens] * len(item.prompts) if isinstance(item.max_tokens, int) else item.max_tokens
    if len(wanted) != len(item.prompts):
        raise ValueError(f"{item.category}: {len(wanted)} max_tokens for {len(item.prompts)} prompts")
    limit = max_model_len - room_for_drafts(num_speculative_tokens)
    return [max(0, min(most, limit - len(prompt))) for prompt, most in zip(item.prompts, wanted, strict=True)]


_encoder = msgspec.msgpack.Encoder()
_config = msgspec.msgpack.Decoder(ServeConfig)
_item = msgspec.msgpack.Decoder(ServeItem)
_result = msgspec.msgpack.Decoder(ServeResult)


def encode(message: ServeConfig | ServeItem | ServeResult) -> bytes:
    """One message as bytes."""
    return _encoder.encode(message)


def decode_config(data: bytes) -> ServeConfig:
    """What a worker was started with."""
    return _config.decode(data)


def decode_item(data: bytes) -> ServeItem:
    """What a worker is to do."""
    return _item.decode(data)


def decode_result(data: bytes) -> ServeResult:
    """What became of an item."""
    return _result.decode(data)
