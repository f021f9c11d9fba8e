"""The factory of extraction's workers: what must be in the environment before torch is imported, then the worker.

GPU workers let CUDA's allocator grow its segments: batches of many shapes would leave holes that nothing fits into.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from extraction.worker import ExtractHandler

ALLOCATOR = {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
"""The first is today's name, the second that of torch before 2.9."""


def allocator_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """What is to be added to a worker's environment; nothing where the user has set the allocator up."""
    return {} if ALLOCATOR.keys() & environment.keys() else dict(ALLOCATOR)


def create(config: bytes, emit: Callable[[bytes], None]) -> ExtractHandler:
    """Called once in a spawned process, which has not imported torch."""
    os.environ.update(allocator_settings(os.environ))
    from extraction.worker import create as create_worker

    return create_worker(config, emit)
