"""What tests of the live feed share: answers in response shards, a port that keeps what is put, a consumer that reads.

The consumer is a process of its own: `create_reader` is its factory, as a gang imports it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from corpus.packs import PackMeta, PackTensors, layout_of
from corpus.responses import Attempt, write_responses
from corpus.token_ids import pack_ids
from extraction.feed_messages import FeedEvent, FeedJob, FeedRow, decode_event, encode_job

PROMPT_TOKENS = 2
"""Of every row, as far as it has so many."""


def answer(response_id: str, token_ids: Sequence[int]) -> Attempt:
    """An accepted one; the first tokens are its prompt's."""
    empty: dict[str, Any] = dict.fromkeys(Attempt.__struct_fields__)
    filled = {
        "response_id": response_id, "prompt_id": "p", "recipe_id": "r", "replica": 0, "turn": 0, "attempt": 1,
        "state": "accepted", "prompt_token_ids": pack_ids(token_ids[:PROMPT_TOKENS]),
        "token_ids": pack_ids(token_ids[PROMPT_TOKENS:]), "text": "", "run_id": "run", "notes": (),
    }  # fmt: skip
    return Attempt(**(empty | filled))


def answered(folder: Path, rows: Sequence[Sequence[int]], per_shard: int = 3) -> list[FeedRow]:
    """Write rows as response shards; the order within a shard is not theirs."""
    places: dict[int, FeedRow] = {}
    for number, start in enumerate(range(0, len(rows), per_shard)):
        inside = list(range(start, min(start + per_shard, len(rows))))[::-1]
        name = f"{number}.parquet"
        write_responses(folder / name, [answer(f"r{i}", rows[i]) for i in inside])
        for at, i in enumerate(inside):
            places[i] = FeedRow(name, at, f"r{i}", "math" if i % 2 else "coding", i % 3 == 0)
    return [places[i] for i in range(len(rows))]


class Closed(Exception):
    """What a port raises when the run is over."""


class KeepingPort:
    """Gives jobs, keeps packs and events.

    Args:
        room: packs that are taken; the next one finds the run over.
    """

    def __init__(self, jobs: Iterable[Sequence[tuple[int, list[FeedRow]]]], room: int | None = None) -> None:
        self._jobs = deque(encode_job(FeedJob(packs=list(packs))) for packs in jobs)
        self._room = room
        self.stopping = False
        self.put_packs: list[tuple[PackMeta, PackTensors]] = []
        self.events: list[FeedEvent] = []
        self.asked = 0
        self.after_put: Callable[[], None] = lambda: None

    def next_work(self) -> bytes | None:
        self.asked += 1
        return self._jobs.popleft() if self._jobs and not self.stopping else None

    @contextmanager
    def put(self, meta: bytes, size_bytes: int) -> Iterator[memoryview]:
        if self._room == len(self.put_packs):
            raise Closed
        memory = bytearray(b"\xff" * size_bytes)
        yield memoryview(memory)
        decoded = PackMeta.decode(meta)
        layout = layout_of(decoded)
        assert layout.size_bytes == size_bytes
        self.put_packs.append((decoded, layout.views(memory)))
        self.after_put()

    def emit(self, event: bytes) -> None:
        self.events.append(decode_event(event))

    def of(self, kind: type[Any]) -> list[Any]:
        """Events of a kind."""
        return [event for event in self.events if isinstance(event, kind)]


class Read(msgspec.Struct):
    """A pack as a consumer saw it; tensors as lists."""

    pack: int
    response_ids: list[str]
    input_ids: list[int]
    loss_mask: list[int]
    states: list[Any]


def create_reader(config: bytes, port: Any) -> Callable[[], bytes]:
    """A consumer that takes all packs and answers with what was in them."""

    def main() -> bytes:
        packs = []
        while (batch := port.take()) is not None:
            meta = PackMeta.decode(batch.meta)
            tensors = layout_of(meta).views(batch.view)
            packs.append(
                Read(
                    meta.pack, meta.response_ids, tensors.input_ids_T.tolist(), tensors.loss_mask_T.tolist(),
                    tensors.states_TLH.tolist(),
                )
            )  # fmt: skip
            del tensors
            batch.release()
        return msgspec.msgpack.encode(packs)

    return main
