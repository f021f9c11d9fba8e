"""A drafter that is fed live: one of several, on its device, taking whatever pack the targets have ready.

Factory of a consumer ("training.live_worker:create"). Every member steps on the packs that it takes and joins every
round of the team; the first member saves, measures on held-out rows from disk, and exports. A batch's memory is
given back as soon as its states lie on this drafter's device. Tensors of the queue never outlive their batch.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

import msgspec
import torch

from corpus.errors import Retryable, UserError
from corpus.packs import PackMeta, layout_of
from training.averaging import Alone, GlooTeam, Team
from training.data import TrainingData, make_document
from training.frozen import FrozenTarget, finite, load_frozen
from training.loop import train
from training.messages import LiveItem, TrainItem, TrainSummary
from training.progress import CHECKPOINTS, Progress
from training.step import Pack
from training.worker import (
    check,
    finish,
    loop_settings,
    make_drafter,
    note_message,
    progress_message,
    working_dtype,
)


class Batch(Protocol):
    """One pack in shared memory."""

    meta: bytes
    view: memoryview
    sequence: int

    def release(self) -> None:
        """Give its memory back."""


class Port(Protocol):
    """What the coordinator gives a consumer."""

    stopped: bool

    def take(self) -> Batch | None:
        """The next batch; None at the end."""

    def emit(self, data: bytes) -> None:
        """Tell the coordinator."""


class LiveFeed:
    """Packs in the order in which targets finish them."""

    def __init__(self, port: Port, item: TrainItem, target: FrozenTarget, done: int) -> None:
        self._port, self._item, self._target, self._done = port, item, target, done
        self._ended = False
        self._epoch_ends = list(accumulate(item.live.packs_by_epoch)) if item.live else []

    @property
    def stopped(self) -> bool:
        """The end came because somebody asked for it."""
        return self._port.stopped

    def take(self, count: int) -> tuple[int, list[Pack]]:
        """The next packs; waits for them."""
        packs: list[Pack] = []
        given = self._done
        while not self._ended and len(packs) < count:
            batch = self._port.take()
            if batch is None:
                self._ended = True
                break
            given = self._done + batch.sequence - len(packs)
            try:
                packs.append(self._pack(batch))
            finally:
                batch.release()
        return given, packs

    def _pack(self, batch: Batch) -> Pack:
        meta = PackMeta.decode(batch.meta)
        tensors = layout_of(meta).views(batch.view)
        # a copy of all of it at once: what is left of the batch must not be looked at after its release
        device = self._item.device
        input_ids_T = tensors.input_ids_T.clone()
        loss_mask_T = tensors.loss_mask_T.clone()
        states_TLH = tensors.states_TLH.clone() if device == "cpu" else tensors.states_TLH.to(device)
        if not finite(states_TLH):
            bad = [name for name, own in zip(meta.response_ids, meta.spans, strict=True) if not finite(states_TLH[own])]
            raise UserError(
                f"training: the states of response {bad[0]} are no numbers (NaN or infinite), {len(bad)} of "
                f"{len(meta.response_ids)} rows of pack {meta.pack}. The target that captured them is damaged, or its "
                "device is: `draftmill doctor` looks at both."
            )
        documents = [
            make_document(
                response_id,
                category,
                greedy,
                input_ids_T[own],
                loss_mask_T[own],
                states_TLH[own],
                self._target,
                features=len(self._item.layer_ids),
                labels=self._item.labels,
            )
            for response_id, category, greedy, own in zip(
                meta.response_ids, meta.categories, meta.greedy, meta.spans, strict=True
            )
        ]
        return Pack(meta.pack, self._epoch(meta.pack), documents)

    def _epoch(self, pack: int) -> int:
        return bisect_right(self._epoch_ends, pack)


def create(config: bytes, port: Port) -> Callable[[], bytes]:
    """Load what a drafter needs; the function that comes back trains to the end and answers with a TrainSummary.

    Raises:
        UserError: as training.worker.train_drafter.
    """
    live = msgspec.msgpack.decode(config, type=LiveItem)
    item = live.item
    if item.threads:
        torch.set_num_threads(item.threads)
    data = TrainingData(item.shards, item.layer_ids, item.labels, held_out_only=True)
    target = load_frozen(item.target_dir, working_dtype(item), item.device)
    drafter = make_drafter(item, data, target)
    check(item, drafter, target, data)

    def main() -> bytes:
        try:
            return msgspec.msgpack.encode(_run(live, port, data, target, drafter))
        finally:
            data.close()

    return main


def _run(live: LiveItem, port: Port, data: TrainingData, target: FrozenTarget, drafter: Any) -> TrainSummary | None:
    """None from every member but the first, and from all if the run was stopped."""
    item = live.item
    if item.live is None:
        raise UserError("training.feed: live was asked for, and the item names no live rows.")
    started = time.monotonic()
    settings = loop_settings(item, sum(item.live.packs_by_epoch))
    team = join_team(live)

    def make_feed(progress: Progress) -> LiveFeed:
        return LiveFeed(port, item, target, progress.packs)

    try:
        result = train(
            settings,
            drafter,
            target,
            make_feed,
            data if live.rank == 0 else None,
            team,
            Path(item.out_dir) / CHECKPOINTS,
            report=lambda report: port.emit(msgspec.msgpack.encode(progress_message(item.item_id, report, live.rank))),
            note=lambda text: port.emit(msgspec.msgpack.encode(note_message(item.item_id, text, live.rank))),
        )
    except Retryable:
        if port.stopped:  # asked to: the checkpoint is written, and there is nothing to tell
            return None
        raise
    if isinstance(team, GlooTeam):
        team.leave()
    if live.rank:
        return None
    return finish(item, drafter, target, data, settings, result, item.live.rows, started)


def join_team(live: LiveItem) -> Team:
    """The other drafters, once all of them are there."""
    if live.size == 1:
        return Alone()
    # all members are on this machine; gloo would otherwise look up the host's name, which need not resolve
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return GlooTeam(live.rank, live.size, live.meeting_file, live.average_every)
