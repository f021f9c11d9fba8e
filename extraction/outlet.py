"""States on their way from the device to a shard, beside the next forward.

On a GPU a batch's states go into pinned memory on a stream of their own; a thread then writes them, and ends shards.
At most `DEPTH` batches are under way, so a slow disk holds the forwards up and fills no memory. One outlet serves
one device; what goes wrong while writing is raised when its shard is ended.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from corpus.artefacts import Written
from corpus.shard_writer import ShardWriter

DEPTH = 2
"""Batches whose states are under way beside the one that is computed."""


def under_way(device: Any) -> int:
    """How many batches' states lie on the device itself beside the one that is computed."""
    return 1 if device.type == "cuda" else DEPTH


class Outlet:
    """The way out of one device."""

    def __init__(self, device: Any) -> None:
        self._staging = _Staging(device) if device.type == "cuda" else None
        self._room = threading.Semaphore(DEPTH)
        self._thread = ThreadPoolExecutor(1, "shards")

    def put(
        self, writer: ShardWriter, rows: Sequence[int], states_SNH: Any, input_ids_S: Any, loss_mask_S: Any
    ) -> Future[None]:
        """Have rows written to a shard; waits while `DEPTH` batches are under way."""
        self._room.acquire()
        try:
            fetch = self._staging.begin(states_SNH) if self._staging else _here(states_SNH)
            return self._thread.submit(self._write, writer, rows, fetch, input_ids_S, loss_mask_S)
        except BaseException:
            self._room.release()
            raise

    def end(self, writer: ShardWriter, puts: Sequence[Future[None]]) -> Written | None:
        """Wait until a shard's rows are written, and finish it; None if it has none.

        Raises:
            UserError: the disk is full.
        """
        try:
            for put in puts:
                put.result()
            return self._thread.submit(writer.finish).result()
        finally:
            writer.abandon()

    def drop(self, writer: ShardWriter, puts: Sequence[Future[None]]) -> None:
        """Wait until nobody writes to a shard any more, and leave nothing of it."""
        for put in puts:
            put.exception()
        writer.abandon()

    def settle(self) -> bool:
        """Wait until nothing is under way: what was on the device for it is free. False: nothing was."""
        idle = [self._room.acquire(blocking=False) for _ in range(DEPTH)]
        for room in idle:
            if room:
                self._room.release()
        self._thread.submit(lambda: None).result()
        return not all(idle)

    def _write(
        self, writer: ShardWriter, rows: Sequence[int], fetch: _Fetch, input_ids_S: Any, loss_mask_S: Any
    ) -> None:
        try:
            states_SNH, done = fetch()
            try:
                writer.put(rows, states_SNH, input_ids_S, loss_mask_S)
            finally:
                done()
        finally:
            self._room.release()


_Fetch = Callable[[], tuple[Any, Callable[[], None]]]
"""Waits for states; gives them on the CPU, and what to call when they are no longer needed."""


def _here(states_SNH: Any) -> _Fetch:
    return lambda: (states_SNH, lambda: None)


class _Staging:
    """Pinned buffers, and the stream that fills them."""

    def __init__(self, device: Any) -> None:
        self._stream = torch.cuda.Stream(device)
        self._free: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for _ in range(DEPTH):
            self._free.put(None)

    def begin(self, states_SNH: Any) -> _Fetch:
        """Start the copy of states that the current stream is still computing."""
        size_bytes = states_SNH.numel() * states_SNH.element_size()
        buffer = self._free.get()
        if buffer is None or buffer.numel() < size_bytes:
            buffer = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)
        there = buffer[:size_bytes].view(states_SNH.dtype).view(states_SNH.shape)
        self._stream.wait_stream(torch.cuda.current_stream(states_SNH.device))
        with torch.cuda.stream(self._stream):
            there.copy_(states_SNH, non_blocking=True)
            arrived = torch.cuda.Event()
            arrived.record(self._stream)
        states_SNH.record_stream(self._stream)  # its memory is not given to others before the copy is done

        def fetch() -> tuple[Any, Callable[[], None]]:
            arrived.synchronize()
            return there, lambda: self._free.put(buffer)

        return fetch
