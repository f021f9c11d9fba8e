"""What batches are cut by: the budgets that trial batches show, and which rows are not even tried.

The memory that a worker has is what the device gives, less the loaded target, less what the worker holds of earlier
batches while it computes the next one (`Held`). How peaks are measured is `extraction.trials`', how they become
budgets `extraction.budget`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from extraction.budget import MARGIN, BandModel, Budgets, announced_bytes, band_of, choose
from extraction.capture import Capture
from extraction.messages import ExtractReady, TargetConfig
from extraction.plan import MAX_ROWS
from extraction.trials import TRIAL_TOKENS_CPU, TRIAL_TOKENS_GPU, Memory, free_memory, measure

BESIDE_BYTES = 96 << 20
"""What a worker takes beside target and batches: items, libraries that load late, the allocator's pieces."""


@dataclass(frozen=True)
class Limits:
    """What batches are cut by."""

    budgets: Budgets
    max_rows: int = MAX_ROWS
    align: int = 1
    too_long: Callable[[int], str | None] = lambda length: None
    """Why a row of this length is not even tried; None: it is."""


@dataclass(frozen=True)
class Held:
    """States that lie on the device beside the batch that is computed."""

    batches: int = 0
    """Whole batches as large as it: on their way out."""
    tokens: int = 0
    """Of earlier batches, whatever their size."""
    others_bytes: int = 0
    """What somebody else needs of the device."""


def measured(config: TargetConfig, capture: Capture, memory: Memory | None, held: Held) -> tuple[ExtractReady, Limits]:
    """What trial batches show, and the limits that follow; without `memory`, the plain number of tokens."""
    most = config.most_tokens
    if memory is None or not config.longest:
        ready = ExtractReady(
            loaded_bytes=0, announced_bytes=0, limit_bytes=0, otherwise=most, budgets={}, tokens_per_s=0.0,
            difference=0.0,
        )  # fmt: skip
        return ready, Limits(Budgets(most), align=config.align)
    on_cpu = config.device == "cpu"
    trial_tokens = min(most, TRIAL_TOKENS_CPU if on_cpu else TRIAL_TOKENS_GPU)
    loaded_bytes, limit_bytes = memory.loaded_bytes(), memory.limit_bytes()
    measured_models = measure(capture, config.longest, trial_tokens, memory)
    models = [_with_batches(model, capture, held.batches) for model in measured_models]
    free_memory()
    loaded_bytes = max(loaded_bytes, memory.loaded_bytes())
    fixed_bytes = loaded_bytes + BESIDE_BYTES + held.tokens * capture.token_bytes + held.others_bytes
    room_bytes = limit_bytes - fixed_bytes
    budgets = choose(models, room_bytes, most)
    longest = {band_of(length): length for length in config.longest}
    # a GPU says when it is full; a process that takes too much of a machine's memory is killed, so it does not try
    top_bytes = {model.top: model for model in models}

    def too_long(length: int) -> str | None:
        model = top_bytes.get(band_of(length))
        if not on_cpu or (model is not None and model.peak_bytes(length) <= room_bytes):
            return None
        needed = f"{(fixed_bytes + model.peak_bytes(length)) / 1e9:.2f} GB" if model else "more than there is"
        return f"{length} tokens alone need {needed}; a worker here has {limit_bytes / 1e9:.2f} GB"

    tried = {top: length for top, length in longest.items() if too_long(length) is None}
    announced = fixed_bytes + announced_bytes(models, budgets, tried)
    ready = ExtractReady(
        loaded_bytes=loaded_bytes,
        announced_bytes=announced,
        limit_bytes=limit_bytes,
        otherwise=budgets.otherwise,
        budgets=dict(budgets.by_band),
        tokens_per_s=max((model.tokens_per_s for model in models), default=0.0),
        difference=0.0,
    )
    return ready, Limits(budgets, align=config.align, too_long=too_long)


def _with_batches(model: BandModel, capture: Capture, batches: int) -> BandModel:
    """With the states of so many batches beside."""
    more = batches * capture.token_bytes / MARGIN  # known exactly: no margin on it
    return BandModel(model.top, model.fixed_bytes, model.bytes_per_token + more, model.tokens_per_s)
