"""One worker on another machine as the coordinator holds it: a Ray actor that relays a worker process.

Messages go both ways in batches, one call at a time each way, so they keep their order. A call that Ray could not
deliver is made again; the actor's end, the node's end and the worker's own are told as one death. A worker whose
node does not answer a kill within KILL_GRACE_S counts as dead, and nothing that it sends later is heard.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pickle
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from fleet.devices import Device
from fleet.messages import FromWorker, Start, ToWorker, decode_from_worker, encode
from fleet.process import exit_words, last_lines

logger = logging.getLogger(__name__)

KILL_GRACE_S = 5.0
RETRY_S = 0.5


class RayWorker:
    """A worker in a cluster (`crew.Worker`). What it prints is brought here and appended to `log_path`.

    Args:
        make_relay: starts the actor on the device's node and returns its handle; may block.
        end_relay: ends the actor at once, or does nothing; may block, raises nothing.
        why_gone: what Ray knows of an end, in words; may block.
    """

    def __init__(
        self,
        number: int,
        device: Device,
        *,
        start: Start,
        log_path: Path,
        on_message: Callable[[RayWorker, FromWorker], None],
        on_death: Callable[[RayWorker, str], None],
        make_relay: Callable[[Device], Any],
        end_relay: Callable[[Any], None],
        why_gone: Callable[[Device, Exception], str],
    ) -> None:
        self.number = number
        self.device = device
        self.log_path = log_path
        self.pid: int | None = None
        self._log_start = log_path.stat().st_size if log_path.exists() else 0
        self._printed_bytes = 0
        self._on_message = on_message
        self._on_death = on_death
        self._make_relay = make_relay
        self._end_relay = end_relay
        self._why_gone = why_gone
        self._relay: Any = None
        self._outbox: list[bytes] = []
        self._sent = 0
        self._to_send = asyncio.Event()
        self._killed = False
        self._dead = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.send(start)
        self._background(self._live())

    def send(self, message: ToWorker) -> None:
        """Queue a message; one that a dead worker cannot take is dropped."""
        self._outbox.append(encode(message))
        self._to_send.set()

    def kill(self) -> None:
        """End the worker with all that it started; dead after KILL_GRACE_S, whatever its node says."""
        if self._killed or self._dead:
            return
        self._killed = True
        asyncio.get_running_loop().call_later(KILL_GRACE_S, self._die, "killed; its node did not answer")
        if self.pid is not None:
            self._background(self._ask_to_kill())

    def last_lines(self, count: int = 3) -> str:
        """The last lines that it printed, joined."""
        return last_lines(self.log_path, self._log_start, count)

    async def _live(self) -> None:
        try:
            self._relay = await asyncio.to_thread(self._make_relay, self.device)
            if self._dead:
                await asyncio.to_thread(self._end_relay, self._relay)
                return
            self.pid = await self._call("start", pickle.dumps(self.device))
            if self._killed:
                self._background(self._ask_to_kill())
            self._background(self._send_all())
            how = exit_words(await self._hear_all())
        except Exception as error:
            how = await asyncio.to_thread(self._why_gone, self.device, error)
        self._die(how)

    async def _send_all(self) -> None:
        while True:
            await self._to_send.wait()
            self._to_send.clear()
            if self._dead:
                return
            batch, self._outbox = self._outbox, []
            with contextlib.suppress(Exception):  # the relay is gone: what hears it says so
                await self._call("send", self._sent, batch)
            self._sent += len(batch)

    async def _hear_all(self) -> int:
        heard = 0
        while True:
            first, messages, printed, code = await self._call("receive", heard, self._printed_bytes)
            if self._dead:
                return 0
            if printed:
                with self.log_path.open("ab") as log:
                    log.write(printed)
                self._printed_bytes += len(printed)
            for data in messages[heard - first :]:
                self._on_message(self, decode_from_worker(data))
            heard = first + len(messages)
            if code is not None:
                return int(code)

    async def _ask_to_kill(self) -> None:
        with contextlib.suppress(Exception):
            await self._call("kill")

    async def _call(self, method: str, *arguments: object) -> Any:
        """Call the relay, again while Ray cannot reach it: the crew's patience with a silent worker ends that."""
        from ray.exceptions import ActorUnavailableError

        while True:
            try:
                return await getattr(self._relay, method).remote(*arguments)
            except ActorUnavailableError:
                if self._dead:
                    raise
                logger.debug("worker %d on %s cannot be reached", self.number, self.device.label)
                await asyncio.sleep(RETRY_S)

    def _die(self, how: str) -> None:
        if self._dead:
            return
        self._dead = True
        self._to_send.set()
        if self._relay is not None:
            # not a task: a loop that ends now would drop it
            asyncio.get_running_loop().run_in_executor(None, self._end_relay, self._relay)
        self._on_death(self, how)

    def _background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
