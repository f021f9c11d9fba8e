"""Memory that a gang's processes share: no name, no lock, nothing to clean.

It is an anonymous file in memory (memfd), passed to members as an open file. The kernel frees it when the last
process that has it is gone, however that ended; there is no entry in /dev/shm that could stay behind, be taken for
another's, or be too small (containers have 64 MB there). All of it is claimed at once: what does not fit is an error
here, and not a SIGBUS at the first write into a missing page. Linux only.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

from fleet.devices import machine_memory_bytes

GIB = 1 << 30
_PORTABLE = 1
"""cudaHostRegisterPortable: pinned for every context of the process."""


class SharedBytesError(RuntimeError):
    """The memory cannot be had, or not be pinned; the message is one line for a person."""


def create(size_bytes: int) -> int:
    """Claim shared memory; returns its open file, which its maker closes when all members have it.

    Raises:
        SharedBytesError: this machine, or this container, has less.
    """
    available_bytes = _available_bytes()
    if size_bytes > available_bytes:
        raise SharedBytesError(_too_large(size_bytes, f"{available_bytes / GIB:.1f} GiB are available"))
    fd = os.memfd_create("draftmill-gang")
    try:
        os.posix_fallocate(fd, 0, size_bytes)
    except OSError as error:
        os.close(fd)
        raise SharedBytesError(_too_large(size_bytes, error.strerror or str(error))) from error
    return fd


def attach(fd: int, size_bytes: int) -> memoryview:
    """The memory, writable, in a process that was passed the file; closes the file."""
    os.set_inheritable(fd, False)  # what this process starts must not have it
    try:
        return memoryview(mmap.mmap(fd, size_bytes))
    finally:
        os.close(fd)


def pin(memory: memoryview) -> None:
    """Register the memory with CUDA in this process: copies to and from it need no staging and do not block.

    Raises:
        SharedBytesError: CUDA refused.
    """
    import torch

    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    code = int(torch.cuda.cudart().cudaHostRegister(address, memory.nbytes, _PORTABLE))
    if code != 0:
        raise SharedBytesError(
            f"CUDA cannot pin the queue's {memory.nbytes / GIB:.2f} GiB (cudaHostRegister says {code}). "
            "Make the queue smaller, or allow this process to lock more memory."
        )


def _too_large(size_bytes: int, why: str) -> str:
    return f"a queue of {size_bytes / GIB:.2f} GiB does not fit into this machine's memory: {why}. Make it smaller."


def _available_bytes() -> int:
    """What could be claimed without swapping, by the kernel's own estimate; never more than this container has."""
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return min(int(fields["MemAvailable"].split()[0]) * 1024, machine_memory_bytes())
