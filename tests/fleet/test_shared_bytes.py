"""Shared memory that has no name: what one writes the other reads, what does not fit is one line."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from fleet import shared_bytes


@pytest.fixture
def memory() -> Iterator[memoryview]:
    yield shared_bytes.attach(shared_bytes.create(8192), 8192)


def test_two_maps_are_the_same_memory_and_it_goes_with_the_last() -> None:
    before = open_files()
    fd = shared_bytes.create(8192)
    second = os.dup(fd)
    one, other = shared_bytes.attach(fd, 8192), shared_bytes.attach(second, 8192)
    one[100:105] = b"whole"
    assert bytes(other[100:105]) == b"whole"
    assert not other.readonly
    del one, other
    assert open_files() == before


def open_files() -> int:
    """Of this kind: what the other threads of a process open is theirs."""
    found = 0
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found += "memfd:draftmill" in str(entry.readlink())
    return found


def test_memory_that_is_refused_later_is_one_line_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, offset: int, size_bytes: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(shared_bytes.SharedBytesError, match=r"^a queue of 0.00 GiB does not fit .*: No space left on"):
        shared_bytes.create(4096)


@pytest.mark.parametrize("code", [0, 2])
def test_memory_is_pinned_where_it_lies(code: int, memory: memoryview, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    def register(address: int, size_bytes: int, flags: int) -> int:
        asked.append((address % 4096, size_bytes))
        return code

    cuda = SimpleNamespace(cudart=lambda: SimpleNamespace(cudaHostRegister=register))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))  # type: ignore[arg-type]
    if code:
        with pytest.raises(shared_bytes.SharedBytesError, match=r"cannot pin .* \(cudaHostRegister says 2\)"):
            shared_bytes.pin(memory)
    else:
        shared_bytes.pin(memory)
    assert asked == [(0, 8192)]
