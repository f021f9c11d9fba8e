"""A handler without a model: an item's text is a command. Runs in real worker processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.shared_memory import SharedMemory
from typing import Any

from fleet.worker import BrokenError


class FakeHandler:
    def __init__(self, config: dict[str, Any], emit: Callable[[bytes], None]) -> None:
        self.capacity = int(str(config.get("capacity", 4)))
        self._emit = emit
        self._closing = asyncio.Event()
        self._child = None
        if config.get("child"):
            code = "import time\nwhile True: time.sleep(1)"
            self._child = subprocess.Popen([sys.executable, "-c", code])
        self._memory = SharedMemory(config["memory"], create=True, size=4096) if config.get("memory") else None
        emit(json.dumps({"pid": os.getpid(), "bind": os.environ.get("VLLM_CPU_OMP_THREADS_BIND")}).encode())

    async def handle(self, item: bytes) -> bytes:
        word, _, rest = item.decode().partition(" ")
        match word:
            case "echo":
                return rest.encode()
            case "sleep":
                await asyncio.sleep(float(rest))
                return b"slept"
            case "pid":
                return str(os.getpid()).encode()
            case "env":
                return os.environ.get(rest, "unset").encode()
            case "raise":
                raise ValueError(f"{rest}\nsecond line")
            case "cancelled":
                raise asyncio.CancelledError
            case "crash":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "until-closed":
                await self._closing.wait()
                return b"put in order"
            case "broken":
                raise BrokenError(rest)
            case "hang":
                time.sleep(3600)
            case "emit":
                self._emit(rest.encode())
                return b""
            case "large":
                return b"x" * int(rest)
        raise LookupError(word)

    def close(self) -> None:
        self._closing.set()
        if self._child is not None:
            self._child.kill()
            self._child.wait()


def create(config: bytes, emit: Callable[[bytes], None]) -> FakeHandler:
    settings = json.loads(config or b"{}")
    if settings.get("fail"):
        print("loading weights", flush=True)
        raise RuntimeError(f"no weights in {settings['fail']}\na long story")
    if settings.get("die"):
        print("about to die", flush=True)
        os._exit(3)
    if settings.get("stuck"):
        time.sleep(3600)
    return FakeHandler(settings, emit)


async def create_later(config: bytes, emit: Callable[[bytes], None]) -> FakeHandler:
    await asyncio.sleep(0)
    return create(config, emit)
