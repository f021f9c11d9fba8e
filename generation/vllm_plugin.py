"""Loaded by vLLM in each of its processes (entry point vllm.general_plugins); inert unless a worker of ours asked.

vLLM's scheduler process spins while the model computes, for up to a second after each message. Beside an idle core or
under a GPU that costs nothing. With an engine on every core the spinning takes part of the other engines' time, so
there it waits to be woken instead, which costs about 0.1 ms a step. Imports no vllm before it is asked.
"""

from __future__ import annotations

import os
from typing import Any

WAIT = "DRAFTMILL_ENGINE_WAITS"
SETTLING_READS = 100
"""Messages of a queue after which nobody misses a wake-up any more: both ends are connected."""


def ask() -> None:
    """Let the engines that this process starts wait instead of spinning."""
    os.environ[WAIT] = "1"


def register() -> None:
    """What vLLM calls."""
    if os.environ.get(WAIT) != "1":
        return
    try:
        from vllm.distributed.device_communicators.shm_broadcast import SpinCondition
    except ImportError:  # another vLLM, which may not spin
        return
    if getattr(SpinCondition, "waits", False) or not hasattr(SpinCondition, "record_read"):
        return
    original = SpinCondition.record_read

    def record_read(self: Any) -> None:
        """Each read grants a second of spinning; so the later ones are not told."""
        self.reads = getattr(self, "reads", 0) + 1
        if self.reads <= SETTLING_READS:
            original(self)

    SpinCondition.record_read = record_read
    SpinCondition.waits = True
