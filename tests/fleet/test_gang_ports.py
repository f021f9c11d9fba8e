"""What a consumer's port gives back, and what a take that is on its way keeps."""

from __future__ import annotations

import queue
import threading

import pytest

from fleet.gang_messages import Ended, FromMember, Handed, Recalled, Release, Returned, Take
from fleet.gang_ports import Batch, ConsumerPort, GangClosed


class Told:
    """A port, and what it sent."""

    def __init__(self) -> None:
        self.sent: queue.SimpleQueue[FromMember] = queue.SimpleQueue()
        self.memory = memoryview(bytearray(range(64)))
        self.port = ConsumerPort(self.sent.put, self.memory)
        self.outcome: queue.SimpleQueue[Batch | GangClosed | None] = queue.SimpleQueue()

    def begin_take(self) -> None:
        """Take in a thread, until it waits."""

        def take() -> None:
            try:
                self.outcome.put(self.port.take())
            except GangClosed as error:
                self.outcome.put(error)

        threading.Thread(target=take, daemon=True).start()
        assert self.sent.get(timeout=10) == Take()

    def everything(self) -> list[FromMember]:
        return [self.sent.get() for _ in range(self.sent.qsize())]


def handed(region: int, sequence: int = 0) -> Handed:
    return Handed(region, offset=4 * region, size_bytes=4, sequence=sequence, meta=b"meta")


def test_a_batch_is_read_in_place_and_released_once() -> None:
    told = Told()
    told.port.hear(handed(2, sequence=7))
    batch = told.port.take()
    assert batch is not None
    assert (batch.meta, batch.sequence, bytes(batch.view)) == (b"meta", 7, bytes([8, 9, 10, 11]))
    batch.release()
    batch.release()
    assert told.everything() == [Take(), Release(2)]


def test_what_is_at_hand_goes_back_when_it_is_recalled_and_at_a_stop() -> None:
    told = Told()
    told.port.hear(handed(1))
    told.port.hear(Recalled(0))  # long begun
    told.port.hear(Recalled(1))
    told.port.hear(Recalled(1))
    told.port.hear(handed(3))
    told.port.hear(Ended(stopped=True))
    assert told.everything() == [Returned(1), Returned(3)]
    assert told.port.take() is None
    assert told.port.stopped
    assert told.everything() == []


def test_a_take_that_waits_keeps_its_batch_and_the_one_behind_it_goes_back() -> None:
    told = Told()
    told.begin_take()
    with told.port._changed:  # the take cannot wake in between
        told.port.hear(handed(1))
        told.port.hear(Recalled(1))
        told.port.hear(handed(2))
        told.port.hear(Recalled(2))
        told.port.hear(handed(3))
        told.port.hear(Ended(stopped=True))
    batch = told.outcome.get(timeout=10)
    assert isinstance(batch, Batch)
    assert bytes(batch.view) == bytes([4, 5, 6, 7])
    assert told.everything() == [Returned(2), Returned(3)]
    assert told.port.take() is None


def test_whoever_waits_when_the_gang_closes_is_told() -> None:
    told = Told()
    told.begin_take()
    told.port.close()
    assert isinstance(told.outcome.get(timeout=10), GangClosed)
    with pytest.raises(GangClosed):
        told.port.take()
