"""Target workers that feed drafters: a pack holds what a shard would hold of the same rows, and none is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from corpus.errors import UserError
from corpus.packs import PackMeta, PackTensors, pack_bytes
from corpus.shards import CapturedRow, ShardReader
from corpus.token_ids import pack_ids
from extraction.feed_messages import FeedConfig, FeedRow, JobFed, RowLeftOut, decode_summary
from extraction.feed_worker import Feeder
from extraction.feeding import create
from extraction.messages import (
    BudgetLowered,
    ExtractConfig,
    ExtractItem,
    ExtractReady,
    ExtractReceipt,
    ExtractRow,
    SelfTestFailed,
)
from extraction.plan import Cut
from extraction.worker import create as create_extractor
from fleet.devices import Device
from fleet.gang import Gang, Member
from tests.extraction.faulty import HOLDS, hold_few
from tests.extraction.feeds import PROMPT_TOKENS, Closed, KeepingPort, Read, answered
from tests.extraction.tiny import random_rows, save_tiny

LAYERS = (1, 4, 6)
LENGTHS = [5, 40, 17, 31, 2, 64, 9, 9, 28, 50]
ROWS = random_rows(LENGTHS, seed=3)
PACKS = [[0, 1], [2], [3, 4, 5], [6, 7, 8, 9]]
"""Rows by pack; in the order of their numbers they are all rows in order."""


@pytest.fixture(scope="module", params=["qwen3", "gdn"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return save_tiny(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def any_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For what does not depend on the family."""
    torch.set_num_threads(1)
    return save_tiny(tmp_path_factory.mktemp("any"), "qwen3")


@pytest.fixture
def rows(tmp_path: Path) -> list[FeedRow]:
    return answered(tmp_path / "responses", ROWS)


def settings(target: Path, **changes: Any) -> dict[str, Any]:
    """Of any worker that captures; nothing is measured, which is slow in a large process, but where a test asks."""
    return {
        "target_dir": str(target), "dtype": "float32", "store_dtype": "float32", "layer_ids": LAYERS,
        "final_state": True, "max_tokens_per_batch": 2 * HOLDS, "threads": 1, **changes,
    }  # fmt: skip


def config_of(target: Path, folder: Path, sample: Sequence[FeedRow] = (), **changes: Any) -> bytes:
    config = FeedConfig(
        **settings(target, **{"job_tokens": sum(LENGTHS), **changes}),
        responses_dir=str(folder / "responses"), cache_dir=str(folder / "cache"), sample=tuple(sample),
    )  # fmt: skip
    return msgspec.msgpack.encode(config)


def packs_of(rows: Sequence[FeedRow], *numbers: int) -> list[tuple[int, list[FeedRow]]]:
    return [(number, [rows[i] for i in PACKS[number]]) for number in numbers]


def feeder_of(config: bytes, port: KeepingPort) -> Feeder:
    main = create(config, port)
    feeder = main.__self__  # type: ignore[attr-defined]
    assert isinstance(feeder, Feeder)
    return feeder


def fed(config: bytes, port: KeepingPort) -> Any:
    return decode_summary(create(config, port)())


def shard_rows(target: Path, folder: Path, **changes: Any) -> list[CapturedRow]:
    """All rows as the extraction stage has them."""
    config = ExtractConfig(
        **settings(target, **changes), target="org/tiny", revision="abc", capture_id="cap", out_dir=str(folder)
    )
    item = ExtractItem(
        item_id="all", rows=[ExtractRow(f"r{i}", PROMPT_TOKENS, pack_ids(row)) for i, row in enumerate(ROWS)]
    )
    handler = create_extractor(msgspec.msgpack.encode(config), lambda data: None)
    answer = asyncio.run(handler.handle(msgspec.msgpack.encode(item)))
    with ShardReader(folder / msgspec.msgpack.decode(answer, type=ExtractReceipt).shard) as reader:
        return [reader.row(i) for i in range(len(reader))]


def check_pack(meta: PackMeta, tensors: PackTensors, wanted: dict[str, CapturedRow], tolerance: float = 0.0) -> None:
    """Every row is the shard's, but for rounding where its batch was another one."""
    for response_id, span in zip(meta.response_ids, meta.spans, strict=True):
        want = wanted[response_id]
        assert torch.equal(tensors.input_ids_T[span], want.input_ids_T)
        assert torch.equal(tensors.loss_mask_T[span], want.loss_mask_T)
        got_TLH = tensors.states_TLH[span]
        assert got_TLH.dtype == want.states_TNH.dtype
        difference = (got_TLH.float() - want.states_TNH.float()).abs()
        assert (difference <= tolerance * want.states_TNH.float().pow(2).mean().sqrt()).all()
    assert meta.spans[-1].stop == len(tensors.input_ids_T) == sum(meta.lengths)


@pytest.mark.parametrize("changes", [{}, {"final_state": False}, {"store_dtype": "bfloat16"}])
def test_packs_hold_what_a_shard_holds(
    target: Path, tmp_path: Path, rows: list[FeedRow], changes: dict[str, Any]
) -> None:
    port = KeepingPort([packs_of(rows, 0, 1, 2, 3)])  # one job: the same batches as one shard
    summary = fed(config_of(target, tmp_path, rows[:3], **changes), port)
    wanted = {row.response_id: row for row in shard_rows(target, tmp_path / "hidden", **changes)}
    assert [meta.pack for meta, _ in port.put_packs] == [0, 1, 2, 3]
    for meta, tensors in port.put_packs:
        asked = [rows[i] for i in PACKS[meta.pack]]
        assert meta.response_ids == [row.response_id for row in asked]
        assert meta.categories == [row.category for row in asked]
        assert meta.greedy == [row.greedy for row in asked]
        assert meta.lengths == [LENGTHS[i] for i in PACKS[meta.pack]]
        assert (meta.layers, meta.hidden) == (len(LAYERS) + changes.get("final_state", True), 32)
        assert meta.dtype == changes.get("store_dtype", "float32")
        check_pack(meta, tensors, wanted)
    assert (summary.packs, summary.rows, summary.left_out) == (4, len(ROWS), 0)
    assert Cut(*summary.cut).tokens == sum(LENGTHS)
    (ready,) = port.of(ExtractReady)
    assert 0 < ready.difference < 1e-2
    (done,) = port.of(JobFed)
    assert done.packs == [0, 1, 2, 3]
    assert done.cut == summary.cut


def test_packs_do_not_depend_on_how_they_are_cut_into_jobs(target: Path, tmp_path: Path, rows: list[FeedRow]) -> None:
    port = KeepingPort([packs_of(rows, 3), packs_of(rows, 1, 0), packs_of(rows, 2)])
    summary = fed(config_of(target, tmp_path), port)
    wanted = {row.response_id: row for row in shard_rows(target, tmp_path / "hidden")}
    assert [meta.pack for meta, _ in port.put_packs] == [3, 1, 0, 2]
    for meta, tensors in port.put_packs:
        check_pack(meta, tensors, wanted, tolerance=1e-3)
    assert summary.rows == len(ROWS)
    assert not list((tmp_path / "cache").iterdir())


def test_a_row_may_come_twice_in_one_job(any_target: Path, tmp_path: Path, rows: list[FeedRow]) -> None:
    """The last packs of an epoch and the first ones of the next."""
    port = KeepingPort([[(8, [rows[1], rows[2]]), (9, [rows[2], rows[1]])]])
    fed(config_of(any_target, tmp_path, longest=(64,)), port)
    (ready,) = port.of(ExtractReady)
    assert ready.budgets == {256: 2 * HOLDS}
    assert 0 < ready.loaded_bytes < ready.announced_bytes <= ready.limit_bytes
    (first, here), (second, there) = port.put_packs
    assert first.response_ids == second.response_ids[::-1]
    for span, other in zip(first.spans, second.spans[::-1], strict=True):
        assert torch.equal(here.input_ids_T[span], there.input_ids_T[other])
        assert (here.states_TLH[span] - there.states_TLH[other]).abs().max() < 1e-3


def test_out_of_memory_is_met_by_smaller_batches_and_what_cannot_fit_is_left_out(
    any_target: Path, tmp_path: Path
) -> None:
    lengths = [60, 50, HOLDS + 11, 60, 20, 20]
    rows = answered(tmp_path / "responses", random_rows(lengths))
    packs = [(0, rows[:2]), (1, [rows[2]]), (2, rows[3:])]
    port = KeepingPort([packs, [(3, rows)]])
    feeder = feeder_of(config_of(any_target, tmp_path, job_tokens=sum(lengths)), port)
    refused = hold_few(feeder.capture)
    summary = decode_summary(feeder.run())
    assert [(meta.pack, meta.lengths) for meta, _ in port.put_packs] == [
        (0, [60, 50]), (1, []), (2, [60, 20, 20]), (3, [60, 50, 60, 20, 20]),
    ]  # fmt: skip
    reason = f"out of memory with {HOLDS + 11} tokens alone"
    assert port.of(RowLeftOut) == [
        RowLeftOut(pack=number, response_id="r2", tokens=HOLDS + 11, reason=reason) for number in (1, 3)
    ]
    assert (summary.packs, summary.rows, summary.left_out) == (4, 10, 2)
    lowered = [event.tokens for event in port.of(BudgetLowered)]
    assert lowered
    assert all(tokens <= HOLDS for tokens in lowered)
    assert refused.count(HOLDS + 11) == 1  # in the second job it is not tried again
    full = {meta.pack: tensors for meta, tensors in port.put_packs}
    assert (full[3].states_TLH[:60] - full[0].states_TLH[:60]).abs().max() < 1e-3


def test_states_that_are_held_count_for_the_room_there_is(
    any_target: Path, tmp_path: Path, rows: list[FeedRow]
) -> None:
    """A job whose states take the whole memory leaves none for batches: its rows are not tried, and it is said why."""
    port = KeepingPort([packs_of(rows, 0)])
    fed(config_of(any_target, tmp_path, memory_bytes=8 << 30, job_tokens=20_000_000, longest=(64,)), port)
    (ready,) = port.of(ExtractReady)
    assert ready.announced_bytes > 20_000_000 * 4 * 32 * 4
    ((meta, _),) = port.put_packs
    assert meta.response_ids == []
    assert ["a worker here has 7.73 GB" in event.reason for event in port.of(RowLeftOut)] == [True, True]


def test_a_row_without_tokens_is_left_out(any_target: Path, tmp_path: Path) -> None:
    rows = answered(tmp_path / "responses", [*random_rows([7]), []])
    port = KeepingPort([[(0, rows)]])
    assert fed(config_of(any_target, tmp_path), port).left_out == 1
    assert port.of(RowLeftOut) == [RowLeftOut(pack=0, response_id="r1", tokens=0, reason="it has no tokens")]
    assert port.put_packs[0][0].response_ids == ["r0"]


def test_stopping_within_a_job_puts_none_of_it_and_ends(any_target: Path, tmp_path: Path, rows: list[FeedRow]) -> None:
    port = KeepingPort([packs_of(rows, 0), packs_of(rows, 1, 2), packs_of(rows, 3)])
    feeder = feeder_of(config_of(any_target, tmp_path), port)

    forwards: list[int] = []  # by job: packs that were put before

    def stop_in_the_second_job(*_: Any) -> None:
        forwards.append(len(port.put_packs))
        port.stopping = bool(port.put_packs)

    feeder.capture.decoder.register_forward_pre_hook(stop_in_the_second_job)
    summary = decode_summary(feeder.run())
    assert forwards.count(1) == 1  # of two batches
    assert [meta.pack for meta, _ in port.put_packs] == [0]
    assert summary.packs == 1
    assert port.asked == 3
    assert [event.packs for event in port.of(JobFed)] == [[0]]


def test_stopping_between_packs_leaves_the_others(any_target: Path, tmp_path: Path, rows: list[FeedRow]) -> None:
    port = KeepingPort([packs_of(rows, 0, 1, 2, 3)])
    port.after_put = lambda: setattr(port, "stopping", len(port.put_packs) == 2)
    assert fed(config_of(any_target, tmp_path), port).packs == 2
    assert port.of(JobFed) == []


def test_the_end_of_the_run_is_let_through(any_target: Path, tmp_path: Path, rows: list[FeedRow]) -> None:
    port = KeepingPort([packs_of(rows, 0, 1)], room=1)
    with pytest.raises(Closed):
        create(config_of(any_target, tmp_path), port)()
    assert [meta.pack for meta, _ in port.put_packs] == [0]


def test_each_response_shard_is_read_once(any_target: Path, tmp_path: Path, rows: list[FeedRow]) -> None:
    port = KeepingPort([packs_of(rows, 0, 1, 2, 3), packs_of(rows, 3, 2, 1, 0)])
    port.after_put = lambda: [path.unlink() for path in (tmp_path / "responses").glob("*.parquet")] and None
    fed(config_of(any_target, tmp_path), port)
    assert len(port.put_packs) == 8


def gone(folder: Path, row: FeedRow) -> FeedRow:
    (folder / "responses" / row.shard).unlink()
    return row


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda folder, row: msgspec.structs.replace(row, response_id="r9"), r"0\.parquet: row 2 is not response r9"),
        (lambda folder, row: msgspec.structs.replace(row, shard_row=3), r"0\.parquet: row 3 is not response r0"),
        (gone, r"0\.parquet: the ledger names this shard and it cannot be read"),
    ],
)
def test_a_row_that_is_not_there_is_one_line(
    any_target: Path, tmp_path: Path, rows: list[FeedRow], wrong: Callable[[Path, FeedRow], FeedRow], says: str
) -> None:
    port = KeepingPort([[(0, [wrong(tmp_path, rows[0])])]])
    with pytest.raises(UserError, match=says) as caught:
        create(config_of(any_target, tmp_path), port)()
    assert "\n" not in str(caught.value)
    assert port.put_packs == []


def test_the_self_test_stops_a_worker_before_its_first_job(
    any_target: Path, tmp_path: Path, rows: list[FeedRow], monkeypatch: pytest.MonkeyPatch
) -> None:
    from extraction.capture import Capture

    packed = Capture.packed
    monkeypatch.setattr(Capture, "packed", lambda self, rows, length=0: packed(self, rows, length) * 2)
    port = KeepingPort([packs_of(rows, 0)])
    with pytest.raises(UserError, match="capture self-test: layer 0 differs"):
        create(config_of(any_target, tmp_path, rows[:2]), port)
    assert type(port.events[-1]) is SelfTestFailed
    assert len(port.events) == 3, "what it was at, twice, and the outcome"
    assert port.asked == 0


def test_two_workers_feed_a_real_queue(any_target: Path, tmp_path: Path, rows: list[FeedRow]) -> None:
    """Real processes; the queue holds little more than the largest pack, so that they must take turns."""
    jobs = KeepingPort([packs_of(rows, 0, 1), packs_of(rows, 2), packs_of(rows, 3)])
    config = config_of(any_target, tmp_path)
    members = [Member(f"target {i}", "producer", "extraction.feeding:create", config, Device("cpu", i)) for i in (0, 1)]
    members.append(Member("drafter", "consumer", "tests.extraction.feeds:create_reader", b"", Device("cpu", 0)))
    largest = max(sum(LENGTHS[i] for i in pack) for pack in PACKS)
    gang = Gang(members, pack_bytes(largest, 4, 32, "float32") + 64, jobs.next_work, log_dir=tmp_path / "logs")
    answers = asyncio.run(gang.run())
    read = msgspec.msgpack.decode(answers["drafter"], type=list[Read])
    summaries = [decode_summary(answers[f"target {i}"]) for i in (0, 1)]
    assert sum(summary.packs for summary in summaries) == len(PACKS)
    wanted = {row.response_id: row for row in shard_rows(any_target, tmp_path / "hidden")}
    assert sorted(pack.pack for pack in read) == list(range(len(PACKS)))
    for pack in read:
        of_it = [wanted[f"r{i}"] for i in PACKS[pack.pack]]
        assert pack.response_ids == [row.response_id for row in of_it]
        assert pack.input_ids == torch.cat([row.input_ids_T for row in of_it]).tolist()
        assert pack.loss_mask == torch.cat([row.loss_mask_T for row in of_it]).tolist()
        assert torch.allclose(torch.tensor(pack.states), torch.cat([row.states_TNH for row in of_it]), atol=1e-3)
