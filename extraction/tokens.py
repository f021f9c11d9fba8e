"""The token ids of all rows of a run in one file, so that a shard's rows are a slice each.

Rows of like length lie in as many response shards as there are; reading those for every shard of states would open
each file thousands of times. They are read once, in order, and what is wanted of them lies in a nameless file of
the workspace's cache, which is gone with the process.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from corpus.responses import each_shard, packed_tokens


class RowTokens:
    """Token ids by row; use it as a context manager.

    Args:
        responses: the folder of response shards.
        places: (shard, row in it) of each row.
        cache: where the file may be.

    Raises:
        UserError: a shard that the ledger names is gone or damaged.
    """

    def __init__(self, responses: Path, places: Sequence[tuple[str, int]], cache: Path) -> None:
        import numpy as np

        cache.mkdir(parents=True, exist_ok=True)
        self._file = tempfile.TemporaryFile(dir=cache)  # noqa: SIM115  # closed by __exit__
        self._starts, self._prompts, self._ends = (np.zeros(len(places), dtype=np.int64) for _ in range(3))
        index = {place: row for row, place in enumerate(places)}
        done = 0
        for frame in each_shard(responses, places, ["prompt_token_ids", "token_ids"]):
            rows = np.array([index[place] for place in frame.select("shard", "shard_row").iter_rows()], dtype=np.int64)
            flat, lengths, prompts = packed_tokens(frame)
            ends = done + np.cumsum(lengths)
            self._starts[rows], self._ends[rows], self._prompts[rows] = ends - lengths, ends, prompts
            self._file.write(flat.tobytes())
            done = int(ends[-1])
        self._file.flush()
        self._map = mmap.mmap(self._file.fileno(), 0, prot=mmap.PROT_READ) if done else None

    def of(self, row: int) -> tuple[int, bytes]:
        """(tokens of the prompt, prompt and answer as int32)."""
        start, end = 4 * int(self._starts[row]), 4 * int(self._ends[row])
        return int(self._prompts[row]), self._map[start:end] if self._map is not None else b""

    def __enter__(self) -> RowTokens:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._map is not None:
            self._map.close()
        self._file.close()
