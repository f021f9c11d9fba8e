"""Loaded by vLLM in each of its processes (entry point vllm.general_plugins); inert unless a worker of ours asked.

vLLM's scheduler process looks without a pause whether the model is done, and yields its core in between. Beside an idle
core or under a GPU that costs nothing. With an engine on every core it takes a fifth of the others' time, for the
kernel gives it a fair share however often it yields; so there it sleeps in between. It is not woken, it only looks
later: vLLM's own way to be woken loses wake-ups (steps of 5 s were seen). Imports no vllm before it is asked.
"""

from __future__ import annotations

import os
import time
from importlib import import_module

PAUSE = "DRAFTMILL_ENGINE_PAUSES"
PAUSE_S = 0.0002
"""Between two looks: a step of the smallest model takes 25 ms."""


def ask() -> None:
    """Let the engines that this process starts pause between their looks."""
    os.environ[PAUSE] = "1"


def register() -> None:
    """What vLLM calls."""
    if os.environ.get(PAUSE) != "1":
        return
    try:
        module = import_module("vllm.distributed.device_communicators.shm_broadcast")
    except ImportError:  # another vLLM, which may wait in another way
        return
    if hasattr(module, "sched_yield"):
        module.sched_yield = _pause  # type: ignore[attr-defined]


def _pause() -> None:
    time.sleep(PAUSE_S)
