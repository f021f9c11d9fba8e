"""A worker process: it makes one handler, feeds it items and sends back what they become.

The import string "module:function" names `create(config, emit) -> Handler`, plain or async, called once; the
device's variables are in the environment before anything is imported. SIGINT is left to the coordinator. An
item that raises fails alone; `BrokenError`, or `end_worker` from anywhere, ends the process and the pool
starts another. When the coordinator is gone, or this process is, nothing of its process group survives: a guard
process watches both.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import re
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NoReturn, Protocol

from fleet.line import EXIT_BROKEN, Line, leave, open_line
from fleet.messages import (
    Beat,
    Emitted,
    FromWorker,
    Item,
    ItemError,
    Ready,
    Result,
    Start,
    StartFailed,
    ToWorker,
    decode_to_worker,
    encode,
)

EXIT_START_FAILED = 71
"""Exit code of a worker whose factory raised."""

LAST_BYTES = 64 << 10
CHILD_ERROR = re.compile(
    r"^\((?P<name>\S+) pid=(?P<pid>\d+)\) (ERROR \S+ \S+ \[\S+\] )?(?P<said>[\w.]*(Error|Exception): \S.*)$"
)
"""How vLLM marks what its processes print."""

Emit = Callable[[bytes], None]


class Handler(Protocol):
    """What a factory makes. `handle` must not block the loop: a loop that stands still sends no beats."""

    @property
    def capacity(self) -> int:
        """Items that it takes at once."""

    async def handle(self, item: bytes) -> bytes:
        """Work on one item."""

    def close(self) -> None:
        """Let go of everything: items still at work should raise soon, and then the process ends."""


class BrokenError(Exception):
    """Raised by a handler: this process is of no more use. Its items go back, and a new worker starts."""


def end_worker(reason: str) -> NoReturn:
    """End this worker at once, as `BrokenError` does; may be called from any thread of the worker."""
    sys.stderr.write(f"worker ends: {reason}\n")
    leave(EXIT_BROKEN)


def describe(error: BaseException) -> str:
    """An error in one line: its type, and the line of its message that says it, or else its cause."""
    said = _refused_value(error) or _telling_line(str(error))
    if not said and error.__cause__:
        said = describe(error.__cause__)
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def _refused_value(error: BaseException) -> str:
    """Of a pydantic ValidationError: what was refused first, and why; empty for another error."""
    pydantic = sys.modules.get("pydantic_core")  # who has raised one has imported it
    if pydantic is None or not isinstance(error, pydantic.ValidationError):
        return ""
    first, *more = error.errors(include_url=False, include_context=False, include_input=False)
    where = ".".join(str(part) for part in (error.title, *first["loc"]))
    why = _telling_line(first["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
    return f"{where}: {why}{f' (and {len(more)} more)' if more else ''}"


def child_error(printed: str, own_pid: int) -> str:
    """The last error that a process of vLLM printed of itself, other than `own_pid`: it took the cause with it."""
    found = [match for line in printed.splitlines() if (match := CHILD_ERROR.match(line.strip()))]
    others = [f"{match['name']}: {match['said']}" for match in found if int(match["pid"]) != own_pid]
    return others[-1] if others else ""


def _telling_line(text: str) -> str:
    """The first line of a message, with the next where it announces that; the last, where a traceback is told."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return ""
    if any(line.startswith(("Traceback (most recent call last)", 'File "')) for line in lines):
        return lines[-1]
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]


def main(connection_fd: int, coordinator_pid: int) -> None:
    """Run a worker over an open pipe; the first thing that a new process does."""
    asyncio.run(_Worker(open_line(connection_fd, coordinator_pid)).run())


class _Worker:
    def __init__(self, line: Line) -> None:
        self._line = line
        self._inbox: asyncio.Queue[ToWorker] = asyncio.Queue()
        self._log_start = os.fstat(1).st_size  # the log of this device's earlier workers is before it

    async def run(self) -> NoReturn:
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._read, args=(loop,), daemon=True, name="reader").start()
        start = await self._inbox.get()
        if not isinstance(start, Start):
            raise TypeError(f"a worker's first message is {type(start).__name__}; it must be Start")
        try:
            handler: Handler = await _create(start, lambda event: self._send(Emitted(event)))
        except BaseException as error:
            traceback.print_exc()
            self._send(
                StartFailed("; ".join(filter(None, (describe(error), child_error(self._printed(), os.getpid())))))
            )
            leave(EXIT_START_FAILED)
        self._send(Ready(handler.capacity))
        beats = asyncio.create_task(self._line.beat(encode(Beat()), start.beat_s))
        tasks: set[asyncio.Task[None]] = set()
        while isinstance(message := await self._inbox.get(), Item):
            task = asyncio.create_task(self._handle(handler, message))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        handler.close()
        if tasks:
            await asyncio.wait(tasks)  # a handler may put its work in order; the coordinator's patience ends it
        beats.cancel()
        leave(0)

    def _printed(self) -> str:
        """What this worker and its children printed at last; nothing where that is no file."""
        try:
            path = Path("/proc/self/fd/1").readlink()
            with path.open("rb") as log:
                log.seek(max(self._log_start, path.stat().st_size - LAST_BYTES))
                return log.read().decode(errors="replace")
        except (OSError, ValueError):
            return ""

    async def _handle(self, handler: Handler, item: Item) -> None:
        try:
            payload = await handler.handle(item.payload)
        except (BrokenError, SystemExit) as error:
            end_worker(describe(error))
        except Exception as error:
            self._send(ItemError(item.item_id, describe(error)))
        except BaseException as error:  # cancelled from within, or a panic of native code: no answer would ever come
            end_worker(describe(error))
        else:
            self._send(Result(item.item_id, payload))

    def _send(self, message: FromWorker) -> None:
        self._line.send(encode(message))

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        for data in self._line.received():
            loop.call_soon_threadsafe(self._inbox.put_nowait, decode_to_worker(data))


async def _create(start: Start, emit: Emit) -> Any:
    module_name, _, function_name = start.factory.partition(":")
    create = getattr(importlib.import_module(module_name), function_name)
    made = create(start.config, emit)
    if inspect.isawaitable(made):
        waiting: Awaitable[Any] = made
        return await waiting
    return made
