"""Token ids in messages and spools: int32 in this machine's order."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

ID_BYTES = 4


def pack_ids(token_ids: Iterable[int]) -> bytes:
    """Token ids as bytes."""
    return array("i", token_ids).tobytes()


def unpack_ids(data: bytes) -> list[int]:
    """The inverse of pack_ids."""
    return memoryview(data).cast("i").tolist()
