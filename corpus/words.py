"""The words of texts as 64-bit hashes in flat arrays, and the key by which two prompts count as the same.

The words of a text are, after NFC and case folding, its runs of characters that Python's `re` takes for `\\w`; each
CJK character (Han, kana, Hangul) is a word of its own. A hash is a polynomial over the word's UTF-8 bytes, fixed for
ever: the same on every machine and in every release, safe to store. Texts of ASCII alone, nearly all of them, go
through a kernel over bytes; the others are rewritten first so that the same kernel fits. `plain_words`, `word_hash`
and `plain_likeness` say the same in plain Python. Nothing is read or written here.

Shapes: R rows, R1 rows + 1, W words of all rows in order, B bytes of one block.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt
    import polars as pl

    UInt64s = npt.NDArray[np.uint64]
    Int64s = npt.NDArray[np.int64]

MASK = (1 << 64) - 1
BASE = 0x9E3779B97F4A7C15  # of the polynomial; odd, so that it has an inverse
MIX = 0xBF58476D1CE4E5B9
BLOCK = 1 << 16  # bytes (or terms) at a time: what the kernel makes of them stays in a core's second cache
BLOCK_ROWS = 256
LIKENESS_PREFIX = b"likeness:v2:"

# Han with its marks, kana, Hangul; what is no word character within these ranges (the middle dot) stays none
CJK = (
    "\u1100-\u11ff\u3005-\u3007\u3021-\u3029\u3031-\u3035\u3038-\u303c\u3041-\u30ff\u3105-\u318e\u31a0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97c\uac00-\ud7fb\uf900-\ufaff\uff66-\uffdc"
    "\U0001b000-\U0001b16f\U00020000-\U0003ffff"
)
RUN = re.compile(r"\w+")
WORD_IN_RUN = re.compile(f"[{CJK}]|[^{CJK}]+")
CJK_CHARACTER = re.compile(f"([{CJK}])")
ODD = re.compile(r"[^\w\x00-\x7f]+")  # what is no word and the byte kernel cannot know as such

_WORD_BYTES = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789_") | frozenset(range(0x80, 0x100))
_LOWER = bytes(range(256)).lower()
TO_WORD_BYTES = bytes(byte if byte in _WORD_BYTES else 0 for byte in _LOWER)  # lower case; 0 between words
SPACE = 32
ROW_END = b"\xff"  # in no UTF-8 text
TO_SPACES = _LOWER.translate(bytes(SPACE if chr(b).isspace() and b < 0x80 else b for b in range(256)))


def _powers(base: int) -> UInt64s:
    """base^0 to base^BLOCK, modulo 2^64."""
    terms = np.full(BLOCK + 1, base, dtype=np.uint64)
    terms[0] = 1
    return np.cumprod(terms)


POWERS = _powers(BASE)
INVERSE_POWERS = _powers(pow(BASE, -1, 1 << 64))


@dataclass(frozen=True)
class Words:
    """The words of row r are hashes[offsets[r] : offsets[r + 1]], in the order of the text."""

    hashes: UInt64s  # W
    offsets: Int64s  # R1, from 0 to W

    @property
    def rows(self) -> int:
        return len(self.offsets) - 1

    @property
    def counts(self) -> Int64s:
        """How many words each row has (R)."""
        return np.diff(self.offsets)

    def between(self, first: int, stop: int) -> Words:
        """The rows from `first` to before `stop`, without a copy of their words."""
        offsets = self.offsets[first : stop + 1]
        return Words(self.hashes[offsets[0] : offsets[-1]], offsets - offsets[0])

    def take(self, rows: Int64s) -> Words:
        """The given rows, in the given order."""
        counts = self.counts[rows]
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        positions = np.arange(offsets[-1]) + np.repeat(self.offsets[:-1][rows] - offsets[:-1], counts)
        return Words(self.hashes[positions], offsets)


def row_blocks(offsets: Int64s, size: int) -> Iterator[tuple[int, int]]:
    """Consecutive ranges of rows, each of at most `size` rows and elements, or of one row."""
    first, rows = 0, len(offsets) - 1
    while first < rows:
        last = int(np.searchsorted(offsets, offsets[first] + size, side="right")) - 1
        stop = max(first + 1, min(last, first + size))
        yield first, stop
        first = stop


def hash_words(texts: Sequence[str] | pl.Series) -> Words:
    """The words of each text. Beside the result it holds a few MB, and three copies of the longest text as UTF-8."""
    hashes = bytearray()  # grows in place, where a list of arrays would be held twice when joined
    counts: list[Int64s] = [np.zeros(1, np.int64)]
    for rows in _blocks(texts):
        encoded = [(row if row.isascii() else _spaced(row)).encode() for row in rows]
        data = b"".join([b" ", b" ".join(encoded), b" "]).translate(TO_WORD_BYTES)
        row_ends = np.cumsum(np.fromiter(map(len, encoded), np.int64, len(encoded)) + 1)
        words_before = np.zeros(len(encoded), np.int64)  # each row's end
        for starts, found in _hash_block(data):
            words_before += np.searchsorted(starts, row_ends)
            hashes += found.data
        counts.append(np.diff(words_before, prepend=0))
    return Words(np.frombuffer(hashes, np.uint64), np.cumsum(np.concatenate(counts)))


def plain_words(text: str) -> list[str]:
    """The words of one text, as the definition reads."""
    folded = unicodedata.normalize("NFC", text).casefold()
    return [word for run in RUN.findall(folded) for word in WORD_IN_RUN.findall(run)]


def word_hash(word: str) -> int:
    """The hash of one word: the sum of byte k times BASE^k, modulo 2^64, then mixed."""
    total = sum(byte * pow(BASE, k, 1 << 64) for k, byte in enumerate(word.encode())) & MASK
    total = (total ^ (total >> 32)) * MIX & MASK
    return total ^ (total >> 29)


def mix(hashes: UInt64s) -> UInt64s:
    """Spread each number over all 64 bits, one to one, in place: sums of powers differ in their upper bits alone."""
    hashes ^= hashes >> np.uint64(32)
    hashes *= np.uint64(MIX)
    hashes ^= hashes >> np.uint64(29)
    return hashes


def likeness(texts: Sequence[str] | pl.Series) -> list[str]:
    """For each text 32 hex digits: equal for texts that are equal after NFC, case folding and white-space collapse."""
    keys: list[str] = []
    for rows in _blocks(texts):
        # a row that is not ASCII holds its place as an empty one
        data = ROW_END.join([b"", *[row.encode() if row.isascii() else b"" for row in rows]]).translate(TO_SPACES)
        bytes_B = np.frombuffer(data, np.uint8)
        is_space_B = bytes_B == SPACE
        surplus = is_space_B[1:] & (is_space_B[:-1] | (bytes_B[:-1] == ROW_END[0]))  # all of a run but its first
        if surplus.any():
            data = np.delete(bytes_B, np.flatnonzero(surplus) + 1).tobytes()
        keys += [
            hashlib.sha256(LIKENESS_PREFIX + text.rstrip()).hexdigest()[:32] if row.isascii() else plain_likeness(row)
            for row, text in zip(rows, data[1:].split(ROW_END), strict=True)
        ]
    return keys


def plain_likeness(text: str) -> str:
    """The likeness key of one text, as the definition reads."""
    collapsed = " ".join(unicodedata.normalize("NFC", text).casefold().split())
    return hashlib.sha256(LIKENESS_PREFIX + collapsed.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _spaced(text: str) -> str:
    """The text with spaces such that its words are what the byte kernel takes for words."""
    folded = unicodedata.normalize("NFC", text).casefold()
    return " ".join(CJK_CHARACTER.split(ODD.sub(" ", folded)))


def _blocks(texts: Sequence[str] | pl.Series) -> Iterator[list[str]]:
    """The texts in lists of at most BLOCK_ROWS, that fit into BLOCK bytes if they are ASCII and not one."""
    for first in range(0, len(texts), BLOCK_ROWS):
        part = texts[first : first + BLOCK_ROWS]
        rows = list(part) if isinstance(part, Sequence) else part.to_list()
        ends = np.cumsum([len(row) + 1 for row in rows])
        done = 0
        while done < len(rows):
            before = ends[done - 1] if done else 0
            stop = max(done + 1, int(np.searchsorted(ends, before + BLOCK - 1, side="right")))
            yield rows[done:stop]
            done = stop


def _hash_block(data: bytes) -> Iterator[tuple[Int64s, UInt64s]]:
    """Start and hash of every word of `data`, in which a byte 0 stands before, between and after words."""
    at = 0  # of a byte 0
    while at < len(data) - 1:
        end = len(data) - 1 if len(data) - at <= BLOCK else data.rfind(0, at, at + BLOCK)
        if end == at:  # one word fills the block
            end = data.index(0, at + 1)
            yield np.array([at], np.int64), _hash_long_word(np.frombuffer(data, np.uint8)[at + 1 : end])
        else:
            bytes_B = np.frombuffer(data, np.uint8, end + 1 - at, at)
            is_word_B = bytes_B != 0
            edges = np.flatnonzero(is_word_B[1:] != is_word_B[:-1])  # before each word's first byte, at its last
            # bytes between words are 0, so a word's sum is all that was added since the word before it
            sums_B = np.cumsum(bytes_B[1:] * POWERS[: end - at])
            words = np.diff(sums_B[edges[1::2] - 1], prepend=np.uint64(0))
            yield edges[0::2] + at, mix(words * INVERSE_POWERS[edges[0::2]])
        at = end


def _hash_long_word(bytes_B: npt.NDArray[np.uint8]) -> UInt64s:
    """The hash of one word of any length, as an array of one."""
    total = 0
    for first in range(0, len(bytes_B), BLOCK):
        part = bytes_B[first : first + BLOCK]
        total += int(np.sum(part * POWERS[: len(part)])) * pow(BASE, first, 1 << 64)
    return mix(np.array([total & MASK], np.uint64))
