"""A gang member's process: a factory makes its main, which runs in a thread while the process's loop beats.

The import string "module:function" names `create(config, port) -> main`; both run in one thread, so what a library
keeps by thread (torch's grad mode) holds for main too. A member that is through, or has raised, stays until it is
told to leave: its peers' connections must not break before the coordinator knows why. When the coordinator is gone,
nothing of the process group survives (`fleet.line`'s guard).
"""

from __future__ import annotations

import asyncio
import importlib
import threading
import time
import traceback
from collections.abc import Callable
from typing import NoReturn

from fleet import shared_bytes
from fleet.gang_messages import (
    Close,
    Finished,
    FromMember,
    Go,
    Join,
    Raised,
    ToMember,
    Up,
    decode_to_member,
    encode,
)
from fleet.gang_ports import Batch, ConsumerPort, GangClosed, Port, ProducerPort, QueueError
from fleet.line import Line, leave, open_line
from fleet.messages import Beat
from fleet.worker import describe

__all__ = ["Batch", "ConsumerPort", "GangClosed", "Port", "ProducerPort", "QueueError", "main"]

CLOSE_GRACE_S = 3.0
"""What a main is given to notice that the gang is over."""


def main(connection_fd: int, coordinator_pid: int) -> None:
    """Run a member over an open pipe; the first thing that a new process does."""
    asyncio.run(_Member(open_line(connection_fd, coordinator_pid)).run())


class _Member:
    def __init__(self, line: Line) -> None:
        self._line = line
        self._inbox: asyncio.Queue[ToMember] = asyncio.Queue()
        self._port: Port | None = None
        self._go = threading.Event()

    async def run(self) -> NoReturn:
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._read, args=(loop,), daemon=True, name="reader").start()
        join = await self._inbox.get()
        if not isinstance(join, Join):
            raise TypeError(f"a member's first message is {type(join).__name__}; it must be Join")
        work = threading.Thread(target=self._work, args=(join,), daemon=True, name="main")
        work.start()
        beats = asyncio.create_task(self._line.beat(encode(Beat()), join.beat_s))
        while not isinstance(await self._inbox.get(), Close):
            self._go.set()
        if self._port is not None:
            self._port.close()
        if self._go.is_set():
            await asyncio.to_thread(work.join, CLOSE_GRACE_S)
        beats.cancel()
        leave(0)

    def _work(self, join: Join) -> None:
        try:
            memory = shared_bytes.attach(join.memory_fd, join.memory_bytes)
            kind = ProducerPort if join.role == "producer" else ConsumerPort
            self._port = port = kind(self._send, memory)
            module_name, _, function_name = join.factory.partition(":")
            create = getattr(importlib.import_module(module_name), function_name)
            run: Callable[[], bytes] = create(join.config, port)
            if join.pinned:  # not before: what a factory tells the allocator must be said before CUDA begins
                shared_bytes.pin(memory)
            self._send(Up())
            self._go.wait()
            self._send(Finished(run()))
        except GangClosed:
            pass
        except BaseException as error:
            at_s = time.monotonic()
            self._send(Raised(describe(error), at_s))
            traceback.print_exc()

    def _send(self, message: FromMember) -> None:
        self._line.send(encode(message))

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        for data in self._line.received():
            message = decode_to_member(data)
            if isinstance(message, Join | Go | Close):
                loop.call_soon_threadsafe(self._inbox.put_nowait, message)
            elif self._port is not None:
                self._port.hear(message)
