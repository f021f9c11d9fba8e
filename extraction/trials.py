"""What a loaded target takes and how fast it is, measured by trial batches before the first row is captured.

A peak is what a batch takes above the loaded target: CUDA's own count on a GPU, on the CPU the kernel's high-water
mark of this process, for which the allocator's free memory is given back first. Where the kernel has no such mark,
nothing is measured and the plain number of tokens is the budget.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import torch

from extraction.budget import BandModel, Trial, band_of, fit, trial_shapes

logger = logging.getLogger(__name__)

GPU_SHARE = 0.94
"""Of a GPU's memory that batches may fill: the driver's own context and other libraries want some."""
CPU_SHARE = 0.9
TRIAL_TOKENS_CPU, TRIAL_TOKENS_GPU = 512, 8_192
"""Padded tokens of a band's largest trial batch: enough to see the slope, and a fraction of a second long."""


class Packs(Protocol):
    """What a trial needs of a capture."""

    def packed(self, rows: Sequence[Sequence[int]], length: int = 0) -> Any:
        """States [S, N, H] of all rows."""


class Memory(Protocol):
    """Of one device, as this process sees it."""

    def loaded_bytes(self) -> int:
        """What is taken now."""

    def limit_bytes(self) -> int:
        """What may be taken."""

    def reset(self) -> None:
        """Begin to measure a peak."""

    def peak_bytes(self) -> int:
        """The peak since, above what was taken then."""


class GpuMemory:
    """CUDA's allocator, which counts exactly."""

    def __init__(self, device: Any) -> None:
        self._device, self._base = device, 0

    def loaded_bytes(self) -> int:
        """What tensors take."""
        return int(torch.cuda.memory_allocated(self._device))

    def limit_bytes(self) -> int:
        """What tensors may take: what is free, what the allocator keeps, less a share of all."""
        free, total = torch.cuda.mem_get_info(self._device)
        return int(free + torch.cuda.memory_reserved(self._device) - (1 - GPU_SHARE) * total)

    def reset(self) -> None:
        """Give back what is kept and begin."""
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)
        self._base = self.loaded_bytes()

    def peak_bytes(self) -> int:
        """Largest sum of tensors since."""
        torch.cuda.synchronize(self._device)
        return int(torch.cuda.max_memory_allocated(self._device)) - self._base


class ProcessMemory:
    """This process's resident memory, by the kernel's own marks in /proc.

    Raises:
        OSError: this kernel has none, or does not let them be set back.
    """

    def __init__(self, memory_bytes: int) -> None:
        self._memory_bytes, self._base = memory_bytes, 0
        self.reset()
        self.peak_bytes()

    def loaded_bytes(self) -> int:
        """Resident now."""
        return _status_bytes("VmRSS")

    def limit_bytes(self) -> int:
        """This worker's share of the machine's memory, or of what the machine has."""
        return int(CPU_SHARE * (self._memory_bytes or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")))

    def reset(self) -> None:
        """Give free memory back to the kernel and set its mark to what is left."""
        free_memory()
        Path("/proc/self/clear_refs").write_text("5")
        self._base = self.loaded_bytes()

    def peak_bytes(self) -> int:
        """The mark, above what there was."""
        return max(0, _status_bytes("VmHWM") - self._base)


def memory_of(device: Any, memory_bytes: int) -> Memory | None:
    """How peaks are measured on a device; None where they cannot be."""
    if device.type == "cuda":
        return GpuMemory(device)
    try:
        return ProcessMemory(memory_bytes)
    except (OSError, ValueError) as error:
        logger.warning("memory of this process cannot be measured (%s); batches have a fixed number of tokens", error)
        return None


def free_memory() -> None:
    """Give back to the device and to the kernel what is free."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    with suppress(OSError, AttributeError):  # another C library than glibc has no such function
        ctypes.CDLL(None).malloc_trim(0)


def measure(capture: Packs, longest: Sequence[int], most_tokens: int, memory: Memory) -> list[BandModel]:
    """The memory model and the rate of each band, shortest band first.

    A trial that runs out of memory ends its band's: what the smaller ones showed is the model. A band of which not
    even the smallest trial fits has none; its rows are tried one at a time.

    Args:
        longest: the longest row of each band.
        most_tokens: padded tokens of the largest trial.
    """
    models = []
    for length in sorted(longest):
        trials: list[Trial] = []
        for rows, cut in trial_shapes(length, most_tokens):
            trial = _run(capture, rows, cut, memory)
            if trial is None:
                free_memory()
                break
            trials.append(trial)
        if trials:
            models.append(fit(band_of(length), trials))
    return models


def _run(capture: Packs, rows: int, length: int, memory: Memory) -> Trial | None:
    memory.reset()
    token_ids = [[1 + i % 7 for i in range(length)]] * rows
    started = time.monotonic()
    try:
        capture.packed(token_ids, length)
        peak_bytes = memory.peak_bytes()
    except (torch.OutOfMemoryError, MemoryError):
        return None
    return Trial(rows, length, peak_bytes, time.monotonic() - started)


def _status_bytes(name: str) -> int:
    """A line of /proc/self/status, which is in KiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return 1024 * int(line.split()[1])
    raise ValueError(f"/proc/self/status has no {name}")
