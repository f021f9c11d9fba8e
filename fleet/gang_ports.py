"""What a gang's member holds of the queue: blocking calls that any of its threads may make.

A port sends through the member's pipe and is told through `hear`, by the thread that reads it. When the gang is over
before the member is, every call that would wait raises `GangClosed`, which the member lets through.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar

from fleet.gang_messages import (
    Abandon,
    Ask,
    Ended,
    FromMember,
    Granted,
    Handed,
    Publish,
    Recalled,
    Refused,
    Release,
    Reserve,
    Returned,
    Stopping,
    Take,
    ToMember,
    Work,
)
from fleet.messages import Emitted

T = TypeVar("T")
Send = Callable[[FromMember], None]


class GangClosed(Exception):
    """The gang is over; nothing is left to be done."""


class QueueError(Exception):
    """A batch that can never be queued; the message is one line with sizes and the next step."""


class Port:
    """What both roles have."""

    def __init__(self, send: Send, memory: memoryview) -> None:
        self._send = send
        self._memory = memory
        self._changed = threading.Condition()
        self._closed = False

    def emit(self, event: bytes) -> None:
        """Tell the coordinator something of the member's own."""
        self._send(Emitted(event))

    def close(self) -> None:
        """The gang is over: whoever waits is told so."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def hear(self, message: ToMember) -> None:
        """A message from the coordinator."""
        raise NotImplementedError

    def _wait(self, answers: deque[T]) -> T:
        """The next answer; the caller holds `_changed`."""
        while not answers:
            if self._closed:
                raise GangClosed
            self._changed.wait()
        return answers.popleft()


class ProducerPort(Port):
    """Takes work, fills batches."""

    def __init__(self, send: Send, memory: memoryview) -> None:
        super().__init__(send, memory)
        self.stopping = False
        """Nothing that is put is taken any more: come to an end."""
        self._asking = threading.Lock()
        self._putting = threading.Lock()
        self._putter: int | None = None
        self._works: deque[Work] = deque()
        self._grants: deque[Granted | Refused] = deque()

    def next_work(self) -> bytes | None:
        """The next work; None when there is no more, or the gang stops.

        Raises:
            GangClosed: the gang is over.
        """
        with self._asking, self._changed:
            if self.stopping:
                return None
            self._send(Ask())
            return self._wait(self._works).payload

    @contextlib.contextmanager
    def put(self, meta: bytes, size_bytes: int) -> Iterator[memoryview]:
        """Room for a batch, writable, as soon as there is; it is published at the exit, and not if that is an error.

        Raises:
            GangClosed: the gang is over.
            QueueError: it is larger than the queue, or put within another put.
        """
        if self._putter == threading.get_ident():
            raise QueueError(
                "a put within a put: two producers could wait for each other for ever. Leave the first one before."
            )
        with self._putting:
            self._putter = threading.get_ident()
            try:
                yield from self._fill(meta, size_bytes)
            finally:
                self._putter = None

    def hear(self, message: ToMember) -> None:
        """A message from the coordinator."""
        with self._changed:
            match message:
                case Work():
                    self._works.append(message)
                case Granted() | Refused():
                    self._grants.append(message)
                case Stopping():
                    self.stopping = True
            self._changed.notify_all()

    def _fill(self, meta: bytes, size_bytes: int) -> Iterator[memoryview]:
        with self._changed:
            self._send(Reserve(size_bytes))
            answer = self._wait(self._grants)
        if isinstance(answer, Refused):
            raise QueueError(answer.error)
        view = self._memory[answer.offset : answer.offset + size_bytes]
        try:
            yield view
        except BaseException:
            self._send(Abandon())
            raise
        _let_go(view)
        self._send(Publish(meta))


class Batch:
    """A batch as its consumer holds it: read it, then release it."""

    def __init__(self, handed: Handed, memory: memoryview, send: Send) -> None:
        self.meta = handed.meta
        self.sequence = handed.sequence
        """Counts all batches of the gang from 0, in the order in which they left the queue."""
        self.view = memory[handed.offset : handed.offset + handed.size_bytes]
        """Its bytes, in place. What is made over them without a copy must not be read after the release."""
        self._region: int | None = handed.region
        self._send = send
        self._releasing = threading.Lock()

    def release(self) -> None:
        """Give its room to the next one; a second call does nothing."""
        with self._releasing:
            region, self._region = self._region, None
        if region is not None:
            _let_go(self.view)
            self._send(Release(region))


class ConsumerPort(Port):
    """Takes batches. A batch may be at hand before it is asked for; it is given back when another one waits."""

    def __init__(self, send: Send, memory: memoryview) -> None:
        super().__init__(send, memory)
        self.stopped = False
        """The end came of a stop: there was more."""
        self._taking = threading.Lock()
        self._waiting = False
        self._ended = False
        self._at_hand: deque[Handed] = deque()
        """The first one is a waiting take's."""

    def take(self) -> Batch | None:
        """The next batch; None at the end of data, now and ever after.

        Release the one before first: a consumer that waits with a batch in its hands may keep out what it waits for.

        Raises:
            GangClosed: the gang is over.
        """
        with self._taking, self._changed:
            if self._is_over():
                return None
            self._send(Take())  # with the lock: it must not pass a Returned
            self._waiting = True
            while not self._at_hand:
                if self._is_over():
                    return None
                self._changed.wait()
            handed, self._waiting = self._at_hand.popleft(), False
        return Batch(handed, self._memory, self._send)

    def hear(self, message: ToMember) -> None:
        """A message from the coordinator."""
        with self._changed:
            match message:
                case Handed():
                    self._at_hand.append(message)
                case Recalled(region):
                    if self._at_hand and self._at_hand[-1].region == region:
                        self._give_back()
                case Ended(stopped):
                    self._ended, self.stopped = True, stopped
                    self._give_back()
            self._changed.notify_all()

    def _is_over(self) -> bool:
        if self._closed:
            raise GangClosed
        return self._ended

    def _give_back(self) -> None:
        """Return the batch at hand, unless it is a waiting take's."""
        if len(self._at_hand) > self._waiting:
            self._send(Returned(self._at_hand.pop().region))


def _let_go(view: memoryview) -> None:
    with contextlib.suppress(BufferError):  # an array is still made over it; its owner knows not to use it
        view.release()
