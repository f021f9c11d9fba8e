"""The loop over batches: rows through the target, whatever becomes of their states.

A batch that runs out of memory is cut in half and its length band has half the budget from then on; a row that
cannot fit alone, with nothing of earlier batches beside it, is told with its reason; so is one whose states are no
numbers: it would make the loss of every step that it is in one too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from corpus.errors import Retryable
from extraction.limits import Limits
from extraction.plan import Cut, cut_of, halve, plan_batches
from extraction.trials import Packs, free_memory


def capture_rows(
    capture: Packs,
    rows: Sequence[Sequence[int]],
    limits: Limits,
    put: Callable[[Sequence[int], Any], None],
    *,
    settle: Callable[[], bool] = lambda: False,
    stop: Callable[[], bool] = lambda: False,
) -> tuple[dict[int, str], Cut, Limits]:
    """Run rows in batches; `put` gets the rows of each and their states [S, N, H] on the device.

    Args:
        settle: called out of memory: takes what earlier batches left on the device away from it; True if there was
            something, so that a row alone is tried once more.

    Returns:
        Reasons of rows without states, how the rest was cut, and the limits from now on.

    Raises:
        Retryable: `stop` said so.
    """
    lengths = [len(row) for row in rows]
    failed = {i: "it has no tokens" for i, length in enumerate(lengths) if not length}
    failed |= {i: why for i, length in enumerate(lengths) if length and (why := limits.too_long(length)) is not None}
    left = [i for i in range(len(rows)) if i not in failed]
    lengths = [lengths[i] for i in left]
    budgets = limits.budgets
    pending = plan_batches(lengths, budgets, limits.max_rows, limits.align)
    done = []
    while pending:
        if stop():
            raise Retryable("extraction was stopped within a shard; it is captured again next time")
        batch, *pending = pending
        try:
            states_SNH = capture.packed([rows[left[i]] for i in batch.rows], batch.length)
        except (torch.OutOfMemoryError, MemoryError):
            states_SNH = None
        if states_SNH is None:  # outside the handler: its traceback would keep the tensors alive
            had_more = settle()
            free_memory()
            if had_more and len(batch.rows) == 1:
                pending = [batch, *pending]
                continue
            pending, given_up, budgets = halve(pending, batch, lengths, budgets, limits.align)
            for i in given_up:
                failed[left[i]] = f"out of memory with {lengths[i]} tokens alone"
            continue
        done.append(batch)
        rows_of_it = [left[i] for i in batch.rows]
        broken = not_numbers(states_SNH, [lengths[i] for i in batch.rows])
        if broken:
            kept_S = torch.ones(len(states_SNH), dtype=torch.bool)
            start = 0
            for place, i in enumerate(batch.rows):
                if place in broken:
                    kept_S[start : start + lengths[i]] = False
                    failed[left[i]] = f"its states are no numbers in {str(states_SNH.dtype).removeprefix('torch.')}"
                start += lengths[i]
            states_SNH = states_SNH[kept_S.to(states_SNH.device)]
            rows_of_it = [row for place, row in enumerate(rows_of_it) if place not in broken]
        if rows_of_it:
            put(rows_of_it, states_SNH)
    return failed, cut_of(done, lengths), replace(limits, budgets=budgets)


def not_numbers(states_SNH: Any, lengths: Sequence[int]) -> set[int]:
    """Which of the rows that lie one after another have a state that is NaN or infinite.

    The extremes of each token are looked at: they pass on what is no number, and take no memory of the states' size.
    """
    low_S, high_S = states_SNH.amin(dim=(1, 2)), states_SNH.amax(dim=(1, 2))
    bad_S = ~(torch.isfinite(low_S) & torch.isfinite(high_S))
    if not bad_S.any():
        return set()
    return {place for place, part in enumerate(bad_S.split(list(lengths))) if part.any()}


def loss_mask(prompt_tokens: int, tokens: int) -> Any:
    """uint8 [tokens]: 1 on every token that the target generated: reasoning, tool calls, end of turn."""
    loss_mask_T = torch.zeros(tokens, dtype=torch.uint8)
    loss_mask_T[prompt_tokens:] = 1
    return loss_mask_T
