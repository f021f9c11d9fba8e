"""Token ids of responses in one file, so that a row is a slice of it.

Rows of like length, or of one pack, lie in as many response shards as there are; reading those for every few rows
would open each file thousands of times. They are read once, all beforehand (RowTokens) or each when it is first asked
for (ShardTokens), and what is wanted of them lies in a nameless file of the workspace's cache, which is gone with the
process.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from corpus.artefacts import say_full_disk
from corpus.errors import UserError
from corpus.responses import each_shard, packed_tokens, read_shard


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


@dataclass(frozen=True)
class _Shard:
    """Of each row: whose it is, where its ids end and begin in the file, and how many are the prompt's."""

    response_ids: Any
    starts: Any
    ends: Any
    prompts: Any


class ShardTokens:
    """Token ids by shard and row, of whatever shards are asked for.

    Args:
        responses: the folder of response shards.
        cache: where the file may be.
    """

    def __init__(self, responses: Path, cache: Path) -> None:
        cache.mkdir(parents=True, exist_ok=True)
        self._responses, self._cache = responses, cache
        self._file = tempfile.TemporaryFile(dir=cache)  # noqa: SIM115  # closed by `close`
        self._shards: dict[str, _Shard] = {}
        self._ids = 0

    def of(self, shard: str, row: int, response_id: str) -> tuple[int, bytes]:
        """(tokens of the prompt, prompt and answer as int32).

        Raises:
            UserError: the shard is gone or damaged, its row is of another response, or the disk is full.
        """
        if shard not in self._shards:
            self._shards[shard] = self._read(shard)
        found = self._shards[shard]
        if row >= len(found.response_ids) or found.response_ids[row] != response_id:
            raise UserError(
                f"{self._responses / shard}: row {row} is not response {response_id}. Run `draftmill ledger rebuild`."
            )
        start, end = int(found.starts[row]), int(found.ends[row])
        return int(found.prompts[row]), os.pread(self._file.fileno(), 4 * (end - start), 4 * start)

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _read(self, shard: str) -> _Shard:
        import numpy as np

        frame = read_shard(self._responses, shard, ["response_id", "prompt_token_ids", "token_ids"])
        flat, lengths, prompts = packed_tokens(frame)
        ends = self._ids + np.cumsum(lengths)
        try:
            self._file.write(flat.tobytes())
            self._file.flush()
        except OSError as error:
            say_full_disk(error, self._cache)
            raise
        self._ids += len(flat)
        return _Shard(frame["response_id"], ends - lengths, ends, prompts)
