"""What is computed once from a chunk of a pool and kept: near-dedup sketches, overlaps, labels, languages, tokens.

A chunk never changes, so what follows from it and a set of parameters never does; adding a source computes only for
its own chunks. Files lie under cache/ and cost only time to make again; each is used only whole, as it was written.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corpus.artefacts import write_atomically, write_text
from corpus.canonical import digest
from corpus.pools import Pool
from corpus.sources import FileDigests
from corpus.workspace import Workspace

if TYPE_CHECKING:
    import polars as pl


def keep_frame(path: Path, frame: pl.DataFrame, digests: FileDigests) -> None:
    """Put a frame into the cache with its checksum beside it, in the place of what was there."""
    written = write_atomically(path, lambda to: frame.write_parquet(to, compression_level=1))
    write_text(path.with_suffix(".json"), json.dumps({"sha256": written.sha256}))
    digests.remember(path, written.sha256)


def is_kept(path: Path, digests: FileDigests) -> bool:
    """True if a frame is in the cache as it was written."""
    try:
        return digests.is_whole(path, json.loads(path.with_suffix(".json").read_text())["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def kept_frame(path: Path, digests: FileDigests) -> pl.DataFrame | None:
    """A frame that is in the cache as it was written; else None."""
    import polars as pl

    try:
        return pl.read_parquet(path, glob=False) if is_kept(path, digests) else None
    except (OSError, pl.exceptions.PolarsError):
        return None


class Derived:
    """The derived frames of one workspace, found by (pool, chunk, kind, parameters)."""

    def __init__(self, workspace: Workspace, digests: FileDigests) -> None:
        self.root = workspace.cache / "derived"
        self.digests = digests

    def frame(
        self, pool: Pool, chunk: int, kind: str, parameters: Any, compute: Callable[[], pl.DataFrame]
    ) -> pl.DataFrame:
        """The frame that `compute` gives, from the cache where it is there whole.

        Args:
            kind: what it is, as a file name takes it.
            parameters: everything beside the chunk that the result depends on, versions included.
        """
        found = self.known(pool, chunk, kind, parameters)
        if found is None:
            found = compute()
            self.keep(pool, chunk, kind, parameters, found)
        return found

    def has(self, pool: Pool, chunk: int, kind: str, parameters: Any) -> bool:
        """True if it is in the cache, whole."""
        return is_kept(self._path(pool, chunk, kind, parameters), self.digests)

    def known(self, pool: Pool, chunk: int, kind: str, parameters: Any) -> pl.DataFrame | None:
        """What is in the cache, whole; else None."""
        return kept_frame(self._path(pool, chunk, kind, parameters), self.digests)

    def keep(self, pool: Pool, chunk: int, kind: str, parameters: Any, frame: pl.DataFrame) -> None:
        """Put a frame into the cache, in the place of what was there."""
        keep_frame(self._path(pool, chunk, kind, parameters), frame, self.digests)

    def _path(self, pool: Pool, chunk: int, kind: str, parameters: Any) -> Path:
        mark = digest("derived", {"chunk": pool.chunks[chunk]["sha256"], "parameters": parameters}, length=16)
        return self.root / pool.pool_id / f"{chunk}.{kind}-{mark}.parquet"
