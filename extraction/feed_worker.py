"""A target worker that feeds drafters: jobs of packs through the target, each pack into the queue, no state on a disk.

The rows of a job are captured together, in batches of like length, as extraction does it; their states stay on the
device until the job is computed, and each pack is then copied into its place in the queue and published. So the
worker never waits for room while it has some: two workers cannot wait for each other. Where memory runs out, what is
held goes to the host before a row is given up. A row without states is left out of its pack and told; a pack of no
rows is published too, for somebody counts them.

Shapes: S tokens of a batch, T of a row, N states a token, H hidden.
"""

# ruff: noqa: N815  # shape suffixes in field names

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from corpus.errors import Retryable
from corpus.packs import PackMeta, layout_of
from corpus.token_ids import unpack_ids
from extraction.feed_messages import (
    FeedConfig,
    FeedEvent,
    FeedJob,
    FeedRow,
    FeedSummary,
    JobFed,
    RowLeftOut,
    encode_event,
)
from extraction.feeding import Port
from extraction.forwards import capture_rows, loss_mask
from extraction.limits import Held
from extraction.loading import load_target
from extraction.messages import BudgetLowered
from extraction.plan import Cut
from extraction.tokens import ShardTokens


@dataclass
class Taken:
    """A row on its way: its tokens, then its states [T, N, H]; `why` it has none."""

    row: FeedRow
    prompt_tokens: int
    token_ids: bytes
    states_TNH: Any = None
    why: str = ""

    @property
    def tokens(self) -> int:
        """T."""
        return len(self.token_ids) // 4


class Feeder:
    """One loaded target that feeds.

    Raises:
        UserError: the target cannot be loaded, its states cannot be trusted, or the self-test's rows are not there.
    """

    def __init__(self, config: FeedConfig, port: Port) -> None:
        self._config, self._port = config, port
        self._tokens = ShardTokens(Path(config.responses_dir), Path(config.cache_dir))
        try:
            sample = [unpack_ids(self._take(row).token_ids) for row in config.sample]
            self.capture, self._limits = load_target(
                config,
                sample,
                lambda capture: Held(tokens=config.job_tokens, others_bytes=config.leave_bytes),
                self._tell,
            )
        except BaseException:
            self._tokens.close()
            raise
        self._hopeless: dict[str, str] = {}
        """Why, by response: a row that could not be captured once is not tried in later epochs."""
        self._packs = self._rows = self._left_out = 0
        self._cut = Cut()

    def run(self) -> bytes:
        """Feed until there is no more work, or the port is stopping; answers with a FeedSummary.

        Raises:
            UserError: a response shard is gone or damaged.
        """
        try:
            while (work := self._port.next_work()) is not None:
                self._feed(msgspec.msgpack.decode(work, type=FeedJob))
        finally:
            self._tokens.close()
        return msgspec.msgpack.encode(
            FeedSummary(packs=self._packs, rows=self._rows, left_out=self._left_out, cut=astuple(self._cut))
        )

    def _feed(self, job: FeedJob) -> None:
        started = time.monotonic()
        packs = [(number, [self._take(row) for row in rows]) for number, rows in job.packs]
        try:
            cut = self._states([taken for _, rows in packs for taken in rows])
        except Retryable:  # stopping: none of the job is put
            return
        captured = time.monotonic()
        self._cut += cut
        for number, rows in packs:
            if self._port.stopping:
                return
            self._put(number, rows)
        self._tell(
            JobFed(
                packs=[number for number, _ in packs], cut=astuple(cut),
                capture_s=captured - started, put_s=time.monotonic() - captured,
            )
        )  # fmt: skip

    def _take(self, row: FeedRow) -> Taken:
        return Taken(row, *self._tokens.of(row.shard, row.shard_row, row.response_id))

    def _states(self, rows: Sequence[Taken]) -> Cut:
        """Give each row its states, or the reason why it has none.

        Raises:
            Retryable: the port is stopping.
        """
        for one in rows:
            one.why = self._hopeless.get(one.row.response_id, "")
        tried = [one for one in rows if not one.why]

        def put(batch: Sequence[int], states_SNH: Any) -> None:
            for i, states_TNH in zip(batch, states_SNH.split([tried[i].tokens for i in batch]), strict=True):
                tried[i].states_TNH = states_TNH

        failed, cut, limits = capture_rows(
            self.capture, [unpack_ids(one.token_ids) for one in tried], self._limits, put,
            settle=lambda: to_host(tried), stop=lambda: self._port.stopping,
        )  # fmt: skip
        for i, why in failed.items():
            tried[i].why = self._hopeless[tried[i].row.response_id] = why
        for top, tokens in limits.budgets.below(self._limits.budgets):
            self._tell(BudgetLowered(length=top, tokens=tokens))
        self._limits = limits
        return cut

    def _put(self, number: int, rows: Sequence[Taken]) -> None:
        """Publish a pack; its states are let go of."""
        there = [one for one in rows if not one.why]
        for one in rows:
            if one.why:
                reason = RowLeftOut(pack=number, response_id=one.row.response_id, tokens=one.tokens, reason=one.why)
                self._tell(reason)
        meta = PackMeta(
            pack=number,
            response_ids=[one.row.response_id for one in there],
            categories=[one.row.category for one in there],
            greedy=[one.row.greedy for one in there],
            lengths=[one.tokens for one in there],
            layers=self.capture.states_per_token,
            hidden=self.capture.hidden_size,
            dtype=self._config.store_dtype,
        )
        with self._port.put(meta.encode(), layout_of(meta).size_bytes) as view:
            self._fill(meta, there, view)
        for one in rows:
            one.states_TNH = None
        self._packs += 1
        self._rows += len(there)
        self._left_out += len(rows) - len(there)

    def _fill(self, meta: PackMeta, rows: Sequence[Taken], view: memoryview) -> None:
        """Copy rows to their places; all of them are there when it returns."""
        tensors = layout_of(meta).views(view)
        for span, one in zip(meta.spans, rows, strict=True):
            tensors.input_ids_T[span] = torch.frombuffer(bytearray(one.token_ids), dtype=torch.int32)
            tensors.loss_mask_T[span] = loss_mask(one.prompt_tokens, one.tokens)
            tensors.states_TLH[span].copy_(one.states_TNH, non_blocking=True)
        if self.capture.device.type == "cuda":
            torch.cuda.current_stream(self.capture.device).synchronize()

    def _tell(self, event: FeedEvent) -> None:
        self._port.emit(encode_event(event))


def to_host(rows: Sequence[Taken]) -> bool:
    """Move states that lie on a GPU to the host; False: none did."""
    there = [one for one in rows if one.states_TNH is not None and one.states_TNH.device.type != "cpu"]
    for one in there:
        one.states_TNH = one.states_TNH.cpu()
    return bool(there)
