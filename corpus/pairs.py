"""Pairs of prompts that were compared before, and how alike they are: a rebuild compares only what it has not yet.

The similarity of two prompts follows from their texts alone, so it holds whatever sources, order and filters a build
has. The memory is one file below cache/ that costs only time to make again; pairs are known by the first 64 bits of
both ids.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from corpus.derived import keep_frame, kept_frame
from corpus.sources import FileDigests

if TYPE_CHECKING:
    import numpy.typing as npt
    import polars as pl

    UInt64s = npt.NDArray[np.uint64]
    Floats = npt.NDArray[np.float64]

MOST_PAIRS = 5_000_000  # are kept, some 60 MB; beyond, the newest are
LOW = np.uint64(0xFFFFFFFF)


class PairMemory:
    """Similarities by pair of ids. `path` is where they are kept, for one definition of similarity."""

    def __init__(self, path: Path, digests: FileDigests) -> None:
        self._path, self._digests = path, digests
        self._known = _empty() if (known := kept_frame(path, digests)) is None else known
        self._new: list[pl.DataFrame] = []

    def compare(self, pairs: UInt64s, words_R: UInt64s, count: Callable[[UInt64s], Floats]) -> Floats:
        """The similarity of pairs of rows (row << 32 | row, ascending), counted only where it is not known.

        Args:
            words_R: the first 64 bits of each row's prompt_id.
            count: counts the similarities of such pairs.
        """
        import polars as pl

        one, other = words_R[pairs >> np.uint64(32)], words_R[pairs & LOW]
        asked = pl.DataFrame({"a": np.minimum(one, other), "b": np.maximum(one, other)})
        found = asked.join(self._known, on=["a", "b"], how="left", maintain_order="left")["similarity"]
        missing = found.is_null().to_numpy()
        similarity = found.fill_null(0.0).to_numpy().copy()
        if missing.any():
            similarity[missing] = count(pairs[missing])
            self._new.append(asked.filter(pl.Series(missing)).with_columns(similarity=similarity[missing]))
        return similarity

    def save(self) -> None:
        """Keep what was counted."""
        import polars as pl

        if not self._new:
            return
        frame = pl.concat([self._known, *self._new]).unique(["a", "b"], keep="last", maintain_order=True)
        frame = frame.tail(MOST_PAIRS)
        keep_frame(self._path, frame, self._digests)
        self._known, self._new = frame, []


def _empty() -> pl.DataFrame:
    import polars as pl

    return pl.DataFrame(schema={"a": pl.UInt64, "b": pl.UInt64, "similarity": pl.Float64})
