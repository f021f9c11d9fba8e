"""Lines of a text by their number: counted by their ends, and picked without reading the text in between.

A line is chosen by its number and found by counting line ends, so that its length plays no part: to jump to random
bytes and read on would take long lines more often. Only plain files can be jumped in; of a stream its blocks of whole
lines are given one after another. A line that is longer than any row may be is cut behind that: its reader says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO

import numpy as np
import numpy.typing as npt

from corpus.lines import MAX_LINE_BYTES

BLOCK_BYTES = 1 << 18
NEWLINE = 10

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class LineEnds:
    """How many lines a text has, and how many line ends stand before each of its blocks of BLOCK_BYTES."""

    lines: int
    before: Int64s


@dataclass(frozen=True)
class LineBlock:
    """Whole lines of a stream, and where each begins."""

    text: bytes
    starts: Int64s

    def __len__(self) -> int:
        return len(self.starts)

    def line(self, i: int) -> bytes:
        """One of them, its end included."""
        end = int(self.starts[i + 1]) if i + 1 < len(self.starts) else len(self.text)
        return self.text[int(self.starts[i]) : end]


def count_lines(raw: IO[bytes]) -> LineEnds:
    """Count a text's lines; the last one may lack its end."""
    ends, last = [0], b"\n"
    while block := raw.read(BLOCK_BYTES):
        ends.append(int(np.count_nonzero(np.frombuffer(block, np.uint8) == NEWLINE)))
        last = block[-1:]
    before = np.cumsum(np.array(ends, dtype=np.int64))
    return LineEnds(int(before[-1]) + (last != b"\n"), before)


def pick_lines(raw: IO[bytes], ends: LineEnds, rows: Sequence[int]) -> Iterator[bytes]:
    """Lines by their numbers, which ascend; each is found in the block in which it begins."""
    at, block, inside = -1, b"", np.empty(0, np.int64)
    for row in rows:
        # line r begins behind line end r, counted from 1, which lies in the first block with so many ends up to its own
        wanted = 0 if row == 0 else int(np.searchsorted(ends.before, row, side="left")) - 1
        if wanted != at:
            at = wanted
            raw.seek(at * BLOCK_BYTES)
            block = raw.read(BLOCK_BYTES)
            inside = np.flatnonzero(np.frombuffer(block, np.uint8) == NEWLINE)
        first = row - int(ends.before[at])  # how many ends of this block stand before the line
        start = int(inside[first - 1]) + 1 if first else 0
        if first < len(inside):
            yield block[start : int(inside[first])]
        else:
            raw.seek(at * BLOCK_BYTES + start)
            yield raw.readline(MAX_LINE_BYTES + 2)


def line_blocks(stream: IO[bytes]) -> Iterator[LineBlock]:
    """All lines of a stream, in blocks."""
    rest: list[bytes] = []
    size = 0
    read = getattr(stream, "read1", stream.read)  # gives what there is, so that little is lost of a torn one
    while block := read(BLOCK_BYTES):
        cut = block.rfind(b"\n") + 1
        if cut:
            whole = b"".join([*rest, block[:cut]])
            ends = np.flatnonzero(np.frombuffer(whole, np.uint8) == NEWLINE)
            yield LineBlock(whole, np.concatenate([np.zeros(1, np.int64), ends[:-1] + 1]))
            rest, size = [], 0
        if size <= MAX_LINE_BYTES and cut < len(block):
            rest.append(block[cut:])
            size += len(block) - cut
    if size:
        yield LineBlock(b"".join(rest), np.zeros(1, np.int64))
