"""What the coordinator and a worker say to each other: msgpack arrays, one message a send_bytes.

Payloads and events are opaque bytes here; whoever uses the pool defines what they hold. A worker's first
message in is Start, its first out is Ready or StartFailed; a beat comes every `beat_s` from Ready on.
"""

from __future__ import annotations

import msgspec


class Start(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """To a worker: import "module:function" and call it with the configuration."""

    factory: str
    config: bytes
    beat_s: float


class Item(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """To a worker: one item to handle."""

    item_id: str
    payload: bytes


class Stop(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """To a worker: close the handler, see its items end, and end."""


class Ready(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """From a worker: it takes up to `capacity` items at once."""

    capacity: int


class StartFailed(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """From a worker: the factory raised; the process ends."""

    error: str


class Result(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """From a worker: an item is done."""

    item_id: str
    payload: bytes


class ItemError(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """From a worker: an item raised; the worker lives on."""

    item_id: str
    error: str


class Emitted(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """From a worker: an event of the handler's own."""

    event: bytes


class Beat(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """From a worker: its loop still turns."""


ToWorker = Start | Item | Stop
FromWorker = Ready | StartFailed | Result | ItemError | Emitted | Beat

_encoder = msgspec.msgpack.Encoder()
_to_worker = msgspec.msgpack.Decoder(ToWorker)
_from_worker = msgspec.msgpack.Decoder(FromWorker)


def encode(message: ToWorker | FromWorker) -> bytes:
    """One message as bytes."""
    return _encoder.encode(message)


def decode_to_worker(data: bytes) -> ToWorker:
    """What a worker received."""
    return _to_worker.decode(data)


def decode_from_worker(data: bytes) -> FromWorker:
    """What a worker sent."""
    return _from_worker.decode(data)
