"""What a peak is, where it is measured by the kernel's own marks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from extraction.trials import ProcessMemory, measure, memory_of

MIB = 1 << 20


def take(size_bytes: int) -> None:
    """Touch so much memory, and let it go."""
    np.ones(size_bytes, dtype=np.uint8)


@pytest.fixture
def memory() -> ProcessMemory:
    try:
        return ProcessMemory(8 << 30)
    except OSError:  # pragma: no cover
        pytest.fail("this kernel lets no process reset its high-water mark")


def test_a_peak_is_what_was_taken_since_the_reset(memory: ProcessMemory) -> None:
    memory.reset()
    take(300 * MIB)
    assert 290 * MIB < memory.peak_bytes() < 400 * MIB
    memory.reset()
    assert memory.peak_bytes() < 50 * MIB  # the one before is forgotten
    take(100 * MIB)
    assert 90 * MIB < memory.peak_bytes() < 200 * MIB


def test_of_a_core_only_its_share_may_be_taken(memory: ProcessMemory) -> None:
    assert memory.limit_bytes() == int(0.9 * (8 << 30))
    assert 0 < memory.loaded_bytes() < memory.limit_bytes()


class Takes:
    """A target whose batches take so many bytes a padded token, and that holds so many of these."""

    def __init__(self, bytes_per_token: int, holds: int) -> None:
        self.bytes_per_token, self.holds = bytes_per_token, holds

    def packed(self, rows: Sequence[Sequence[int]], length: int = 0) -> Any:
        tokens = len(rows) * length
        if tokens > self.holds:
            raise torch.OutOfMemoryError("CUDA out of memory")
        take(self.bytes_per_token * tokens)


def test_the_slope_of_a_band_is_what_its_tokens_take(memory: ProcessMemory) -> None:
    (short, long) = measure(Takes(MIB, 10_000), [100, 400], 400, memory)
    assert (short.top, long.top) == (256, 512)
    for model in (short, long):
        assert 0.8 * MIB < model.bytes_per_token < 1.3 * MIB
        assert model.tokens_per_s > 0


def test_a_trial_that_does_not_fit_ends_its_band_and_no_other(memory: ProcessMemory) -> None:
    models = measure(Takes(MIB, 250), [100, 300, 4_000], 400, memory)
    assert [model.top for model in models] == [256, 512]  # of the longest not even the smallest fits


def test_on_the_cpu_the_process_is_measured() -> None:
    assert isinstance(memory_of(torch.device("cpu"), 1 << 30), ProcessMemory)
