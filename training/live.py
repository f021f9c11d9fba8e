"""The thin run of a live-fed drafter: target workers capture, drafter workers train, one bounded queue between them.

Who captures is not known here: the caller gives the producers and how a job is said to them. A run that goes on from
a checkpoint has its targets make only the packs that are left. Held-out rows are read from shards. When it ends, each
worker's idle share and the queue's peak are in the run's figures, beside what dealing packs in turn would have cost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from corpus.columns import counted
from corpus.errors import UserError
from corpus.ledger.writer import LedgerWriter
from corpus.manifest import Live, Manifest
from corpus.responses import used_token_ids
from corpus.runlog import RunLog
from corpus.target import ResolvedTarget
from fleet.devices import Device
from fleet.gang import Account, Depth, Gang, GangError, Member
from fleet.interrupt import Interrupt
from fleet.shared_bytes import SharedBytesError
from training.meeting import meeting_folder
from training.messages import LiveItem, TrainProgress, TrainSummary
from training.plan import PackRows, TrainingPlan, live_jobs, live_rows, train_item
from training.progress import CHECKPOINTS, left_to_do, newest_progress
from training.run import AGAIN, RunRecord, enter_drafter, stopped

PACKS_PER_WORKER = 4
"""Room of the queue where the manifest leaves it open."""
TARGETS_OF_DEVICES = 5 / 8
"""A 27B target's forward costs more than a drafter's step: five targets fed three drafters of the mission's run."""
DRAFTER = "training.live_worker:create"
FIGURES_S = 10.0


@dataclass(frozen=True)
class Crew:
    """Devices of a live run by duty. On one device both share it."""

    targets: tuple[Device, ...]
    drafters: tuple[Device, ...]

    def lines(self, queue_bytes: int) -> list[str]:
        """For a person."""
        return [
            f"{counted(len(self.targets), 'target worker')} on {_names(self.targets)}",
            f"{counted(len(self.drafters), 'drafter')} on {_names(self.drafters)}, "
            f"a queue of {queue_bytes / 1e9:.2f} GB",
        ]


@dataclass(frozen=True)
class Producers:
    """The caller's side: workers that capture."""

    factory: str
    configs: Sequence[bytes]
    """By target device."""
    encode_job: Callable[[Sequence[PackRows]], bytes]
    hear: Callable[[bytes], None]
    """What they emit."""
    left_out: Collection[str] = ()
    """Rows that they could not capture, as far as they have told."""


def share_devices(live: Live, devices: Sequence[Device]) -> Crew:
    """Which devices capture and which train.

    Raises:
        UserError: more workers are asked for than there are devices.
    """
    count = len(devices)
    targets = None if live.targets == "auto" else live.targets
    drafters = None if live.drafters == "auto" else live.drafters
    if count == 1 and max(targets or 1, drafters or 1) == 1:
        return Crew(tuple(devices), tuple(devices))
    if targets is None:
        wanted = round(count * TARGETS_OF_DEVICES) if drafters is None else count - drafters
        targets = max(1, min(wanted, count - 1))
    if drafters is None:
        drafters = max(1, count - targets)
    if targets + drafters > count:
        raise UserError(
            f"training.live asks for {counted(targets, 'target')} and {counted(drafters, 'drafter')}, and there "
            f"{'is' if count == 1 else 'are'} {counted(count, 'device')}. Give it more --devices, or ask for fewer."
        )
    return Crew(tuple(devices[:targets]), tuple(devices[targets : targets + drafters]))


def queue_bytes(live: Live, largest: int, usual: int, workers: int) -> int:
    """The queue's bound.

    Args:
        largest, usual: bytes of the largest pack, and of one that is just full.

    Raises:
        UserError: the manifest's bound does not hold the largest pack.
    """
    if live.queue_gb == "auto":
        return max(largest, PACKS_PER_WORKER * workers * usual)
    bound = int(live.queue_gb * 1e9)
    if bound < largest:
        raise UserError(
            f"training.live.queue_gb is {live.queue_gb:g}; the largest pack alone has {largest / 1e9:.3f} GB. "
            "Raise it, or lower training.tokens_per_batch."
        )
    return bound


async def run_live(
    plan: TrainingPlan,
    packs: Sequence[tuple[int, list[int]]],
    manifest: Manifest,
    target: ResolvedTarget,
    ledger: LedgerWriter,
    log: RunLog,
    crew: Crew,
    producers: Producers,
    room_bytes: int,
    threads: int,
    interrupt: Interrupt,
    report: Callable[[TrainProgress], None],
    fed: Callable[[Depth], None],
    stopping: Callable[[], None],
) -> tuple[TrainSummary | None, Account]:
    """Train, export, measure, and enter the drafter; no summary if an interrupt ended it at a checkpoint.

    Args:
        packs: (epoch, indices into plan.live) of every pack, as training.pack.all_packs numbers them.

    Raises:
        UserError: a worker failed; checkpoints stay and the next run goes on from them.
    """
    item = train_item(plan, manifest, target, ledger, crew.drafters[0], threads)
    used = used_token_ids(ledger.workspace.responses, [(row.shard, row.shard_row) for row in plan.live])
    item = msgspec.structs.replace(item, live=live_rows(plan, packs, used, manifest.extraction.final_state))
    folder = Path(item.out_dir) / CHECKPOINTS
    progress = newest_progress(folder, item.fingerprint(), len(packs), item.packs_per_step)
    jobs = live_jobs(plan, packs, left_to_do(progress.done, len(packs)))
    record = RunRecord(plan, ledger, report, progress.step, log)
    names = [f"drafter {rank}" for rank in range(len(crew.drafters))]

    def hear(name: str, data: bytes) -> None:
        if name in names:
            record.hear(data)
        else:
            producers.hear(data)

    with meeting_folder() as meeting:
        members = [
            Member(f"target {i}", "producer", producers.factory, config, device)
            for i, (device, config) in enumerate(zip(crew.targets, producers.configs, strict=True))
        ]
        for rank, device in enumerate(crew.drafters):
            live = LiveItem(
                item=msgspec.structs.replace(item, device=device.torch_name),
                rank=rank,
                size=len(crew.drafters),
                meeting_file=f"{meeting}/drafters",
                average_every=manifest.training.live.average_every,
            )
            config = msgspec.msgpack.encode(live)
            members.append(Member(names[rank], "consumer", DRAFTER, config, device, ahead=int(device.kind == "cuda")))
        gang = Gang(
            members,
            room_bytes,
            lambda: _next(jobs, producers.encode_job),
            on_event=hear,
            log_dir=log.folder / "workers",
            on_up=lambda: setattr(interrupt, "can_drain", True),
        )
        figures = asyncio.create_task(_keep_figures(gang, record, fed))
        watch = asyncio.create_task(_announce(interrupt, stopping))
        try:
            results = await gang.run(interrupt.asked)
        except (GangError, SharedBytesError) as error:
            record.write()
            raise UserError(stopped(error, folder, again=_next_step(error))) from error
        finally:
            figures.cancel()
            watch.cancel()
    account = gang.account()
    for member in account.members:
        record.add(record.last_step, manifest.training.epochs, f"idle_share {member.name}", None, member.idle_share)
    record.add(record.last_step, manifest.training.epochs, "queue_peak_bytes", None, account.peak_bytes)
    summary = msgspec.msgpack.decode(results[names[0]], type=TrainSummary | None)
    if summary is None:
        record.write()
    else:
        enter_drafter(without(plan, producers.left_out), manifest, target, item, summary, record, ledger)
    return summary, account


def without(plan: TrainingPlan, left_out: Collection[str]) -> TrainingPlan:
    """The plan of the rows that were trained: not those that no target could capture. Its id stays."""
    kept = [i for i, row in enumerate(plan.live) if row.response_id not in left_out]
    return replace(
        plan,
        live=tuple(plan.live[i] for i in kept),
        tokens=tuple(plan.tokens[i] for i in kept),
        answers=tuple(plan.answers[i] for i in kept),
    )


def account_lines(account: Account) -> list[str]:
    """A live run's times, for a person."""
    lines = []
    for role, what in (("producer", "targets waited for room"), ("consumer", "drafters waited for packs")):
        own = [member for member in account.members if member.role == role]
        shares = ", ".join(f"{member.idle_share:.0%}" for member in own)
        lines.append(f"{what} {shares} of their time")
    lines.append(
        f"drafters waited {account.idle_s:.1f} s in all "
        f"({account.round_robin_idle_s:.1f} s had packs been dealt in turn)"
    )
    lines.append(f"the queue was {account.peak_bytes / account.queue_bytes:.0%} full at most")
    return lines


def _next(jobs: Iterator[list[PackRows]], encode: Callable[[Sequence[PackRows]], bytes]) -> bytes | None:
    job = next(jobs, None)
    return None if job is None else encode(job)


async def _keep_figures(gang: Gang, record: RunRecord, fed: Callable[[Depth], None]) -> None:
    """The queue's depth while it runs, every few seconds."""
    while True:
        await asyncio.sleep(FIGURES_S)
        depth = gang.depth()
        record.add(record.last_step, record.last_epoch, "queue_bytes", None, depth.queued_bytes)
        fed(depth)


async def _announce(interrupt: Interrupt, stopping: Callable[[], None]) -> None:
    await interrupt.asked.wait()
    stopping()


def _next_step(error: Exception) -> str:
    step = getattr(error, "next_step", "")
    return f"{step[:1].upper()}{step[1:]}." if step else AGAIN


def _names(devices: Sequence[Device]) -> str:
    return ", ".join(device.label for device in devices)
