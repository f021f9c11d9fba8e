"""What the coordinator and a target worker that feeds drafters say to each other, as msgpack.

A FeedJob is a few packs that follow one another; the worker puts each into the queue, where its rows and their
states lie as `corpus.packs` says. Before its first job it tells what it measured of itself (ExtractReady); after each
one, what it came to (JobFed); and of every row that it leaves out, why (RowLeftOut). No torch here: the coordinator
imports this module.
"""

from __future__ import annotations

import msgspec

from extraction.messages import BudgetLowered, ExtractReady, SelfTestFailed, TargetConfig, WorkerAt


class FeedRow(msgspec.Struct, frozen=True, array_like=True):
    """One training row, by where its tokens lie in the response shards."""

    shard: str
    shard_row: int
    response_id: str
    category: str
    greedy: bool
    """It was sampled at temperature 0."""


class FeedConfig(TargetConfig, frozen=True, kw_only=True):
    """All that a target worker needs once. Paths are absolute."""

    responses_dir: str
    cache_dir: str
    """Where token ids may lie as long as the worker lives."""
    job_tokens: int
    """Tokens of the largest job: the worker holds the states of a whole one on its device."""
    leave_bytes: int = 0
    """Of the device, for whoever else works on it."""
    sample: tuple[FeedRow, ...] = ()
    """A few rows for the self-test."""


class FeedJob(msgspec.Struct, frozen=True, kw_only=True):
    """Packs by their numbers, in the order in which they are put."""

    packs: list[tuple[int, list[FeedRow]]]


class RowLeftOut(msgspec.Struct, frozen=True, kw_only=True, tag="left_out"):
    """A row has no states: its pack goes without it. Told again by every pack that should have had it."""

    pack: int
    response_id: str
    tokens: int
    reason: str


class JobFed(msgspec.Struct, frozen=True, kw_only=True, tag="fed"):
    """All packs of a job are in the queue."""

    packs: list[int]
    cut: tuple[int, int, int, int, int, int]
    """`extraction.plan.Cut`, field by field."""
    capture_s: float
    """Reading token ids and computing states."""
    put_s: float
    """Copying them into the queue, waiting for room included."""


FeedEvent = ExtractReady | BudgetLowered | SelfTestFailed | WorkerAt | RowLeftOut | JobFed


class FeedSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a target worker did in all; a final answer."""

    packs: int
    rows: int
    left_out: int
    """Rows, each as often as a pack had to do without it."""
    cut: tuple[int, int, int, int, int, int]
    """Of all jobs, those that were stopped left out."""


def encode_event(event: FeedEvent) -> bytes:
    """For `emit`."""
    return msgspec.msgpack.encode(event)


def decode_event(data: bytes) -> FeedEvent:
    """What a worker emitted."""
    return msgspec.msgpack.decode(data, type=FeedEvent)


def encode_job(job: FeedJob) -> bytes:
    """For `next_work`."""
    return msgspec.msgpack.encode(job)


def decode_summary(data: bytes) -> FeedSummary:
    """What a worker answered at its end."""
    return msgspec.msgpack.decode(data, type=FeedSummary)
