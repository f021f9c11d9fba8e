"""What a gang's coordinator and its members say to each other: msgpack arrays, one message a send_bytes.

Payloads, metas and events are opaque bytes; a batch's own bytes lie in shared memory and never travel here. A
member's first message in is Join, its first out is Up or Raised; a beat comes every `beat_s` meanwhile.
"""

from __future__ import annotations

import msgspec

from fleet.messages import Beat, Emitted


class Join(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """To a member: map the memory, import "module:function", call it with the configuration and a port."""

    name: str
    role: str
    factory: str
    config: bytes
    beat_s: float
    memory_fd: int
    memory_bytes: int
    pinned: bool


class Go(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """To a member: all are up; run."""


class Close(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """To a member: the gang is over; end."""


class Work(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """To a producer: its next work; None is no more."""

    payload: bytes | None


class Granted(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """To a producer: where the region is that it asked for."""

    offset: int


class Refused(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """To a producer: what it asked for can never be granted."""

    error: str


class Stopping(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """To a producer: nothing that it puts is taken any more."""


class Handed(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """To a consumer: a batch, asked for or ahead."""

    region: int
    offset: int
    size_bytes: int
    sequence: int
    meta: bytes


class Recalled(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """To a consumer: give this batch back if you have not begun it."""

    region: int


class Ended(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """To a consumer: nothing more comes."""

    stopped: bool


class Up(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """From a member: its factory has returned."""


class Raised(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """From a member: its factory or its main raised, at this time of the machine's monotonic clock."""

    error: str
    at_s: float


class Finished(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """From a member: its main returned this."""

    payload: bytes


class Ask(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """From a producer: what is my next work?"""


class Reserve(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """From a producer: I want a region of this size."""

    size_bytes: int


class Publish(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """From a producer: its region is filled."""

    meta: bytes


class Abandon(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """From a producer: its region will not be filled."""


class Take(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """From a consumer: I begin the batch that I was handed ahead, or wait for one."""


class Returned(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """From a consumer: a recalled batch, untouched."""

    region: int


class Release(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """From a consumer: I read this region no more."""

    region: int


ToMember = Join | Go | Close | Work | Granted | Refused | Stopping | Handed | Recalled | Ended
FromMember = Up | Raised | Finished | Beat | Emitted | Ask | Reserve | Publish | Abandon | Take | Returned | Release

_encoder = msgspec.msgpack.Encoder()
_to_member = msgspec.msgpack.Decoder(ToMember)
_from_member = msgspec.msgpack.Decoder(FromMember)


def encode(message: ToMember | FromMember) -> bytes:
    """One message as bytes."""
    return _encoder.encode(message)


def decode_to_member(data: bytes) -> ToMember:
    """What a member received."""
    return _to_member.decode(data)


def decode_from_member(data: bytes) -> FromMember:
    """What a member sent."""
    return _from_member.decode(data)
