"""Extraction's capture joined with training's drafters: what training.feed: live runs, and on which devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from corpus.ledger.writer import LedgerWriter
from corpus.model_config import text_config
from corpus.packs import pack_bytes
from corpus.runlog import RunLog
from draftmill.drafter_memory import drafter_memory
from draftmill.session import Session
from draftmill.training_screen import TrainingScreen
from extraction.configuration import feed_config
from extraction.feed_messages import FeedJob, FeedRow, RowLeftOut, decode_event, encode_job
from extraction.messages import BudgetLowered, SelfTestFailed
from fleet.gang import Account
from fleet.interrupt import Interrupt
from training.live import Crew, Producers, account_lines, queue_bytes, run_live, share_devices
from training.messages import TrainSummary
from training.pack import all_packs
from training.plan import PACKS_OF_A_JOB, LiveRow, PackRows, TrainingPlan, pack_budget

TARGET = "extraction.feeding:create"
"""The factory of the workers that capture; tests take others."""


@dataclass
class LiveRun:
    """A live run that is planned, then run once."""

    session: Session
    plan: TrainingPlan
    crew: Crew
    packs: Sequence[tuple[int, list[int]]]
    """(epoch, indices into plan.live), as training.pack.all_packs numbers them."""
    room_bytes: int
    job_tokens: int
    left_out: dict[str, str] = field(default_factory=dict)
    """Why, by response: rows that no target could capture."""
    account: Account | None = None

    def lines(self) -> list[str]:
        """Before it begins, for a person."""
        return self.crew.lines(self.room_bytes)

    def ended(self) -> list[str]:
        """After it, for a person."""
        lines = account_lines(self.account) if self.account else []
        if self.left_out:
            response_id, why = next(iter(self.left_out.items()))
            count = len(self.left_out)
            were = "row had no states and was" if count == 1 else "rows had no states and were"
            lines.append(f"{count:,} {were} left out: {response_id[:12]}, {why}")
        return lines

    async def run(
        self, ledger: LedgerWriter, log: RunLog, interrupt: Interrupt, screen: TrainingScreen
    ) -> TrainSummary | None:
        """Train; None if it was stopped.

        Raises:
            UserError: as training.live.run_live.
        """
        session, plan = self.session, self.plan
        target = session.target_with_weights
        rows = [feed_row(row) for row in plan.live]
        tokens = [row.tokens for row in plan.live]
        shared = self.crew.targets == self.crew.drafters
        others = drafter_memory(session, plan, self.crew.drafters[0]).estimate.total_bytes if shared else 0
        configs = [
            feed_config(session.manifest, target, device, session.workspace, rows, tokens, self.job_tokens, others)
            for device in self.crew.targets
        ]
        told = [msgspec.msgpack.encode(config) for config in configs]
        producers = Producers(TARGET, told, encode_packs, lambda data: self._hear(log, data), self.left_out)
        summary, self.account = await run_live(
            plan, self.packs, session.manifest, target, ledger, log, self.crew, producers, self.room_bytes,
            1 if self.crew.drafters[0].kind == "cpu" else 0, interrupt, screen.show, screen.fed, screen.stopping,
        )  # fmt: skip
        return summary

    def _hear(self, log: RunLog, data: bytes) -> None:
        """What a target tells: rows that it had to leave out are data that lacks, and are kept."""
        match decode_event(data):
            case RowLeftOut(response_id=response_id, tokens=tokens, reason=reason):
                if response_id not in self.left_out:
                    self.left_out[response_id] = reason
                    log.event("row_left_out", f"{response_id} of {tokens} tokens: {reason}")
            case BudgetLowered(length=length, tokens=tokens):
                log.event("budget_lowered", f"rows of up to {length} tokens: {tokens} tokens a batch")
            case SelfTestFailed() as failed:
                log.event("self_test_failed", str(failed))


def live_run(session: Session, plan: TrainingPlan) -> LiveRun:
    """Plan it: who captures, who trains, and the room between them.

    Raises:
        UserError: the devices do not suffice.
    """
    section = session.manifest.training
    crew = share_devices(section.live, session.local_devices)
    budget = pack_budget(section.tokens_per_batch, crew.drafters[0])
    packs = all_packs(plan.tokens, budget, epochs=section.epochs, seed=plan.seed)
    lengths = [sum(plan.tokens[i] for i in own) for _, own in packs]
    states = len(plan.layer_ids) + session.manifest.extraction.final_state
    hidden = int(text_config(session.target.config)["hidden_size"])
    largest, usual = (
        pack_bytes(tokens, states, hidden, session.manifest.extraction.dtype) for tokens in (max(lengths), budget)
    )
    room = queue_bytes(section.live, largest, usual, len(crew.targets) + len(crew.drafters))
    # whichever packs are left after a resume come together
    return LiveRun(session, plan, crew, packs, room, sum(sorted(lengths)[-PACKS_OF_A_JOB:]))


def feed_row(row: LiveRow) -> FeedRow:
    """A training row as a target worker is asked for it."""
    return FeedRow(row.shard, row.shard_row, row.response_id, row.category, row.greedy)


def encode_packs(packs: Sequence[PackRows]) -> bytes:
    """A job as a target worker is told it."""
    return encode_job(FeedJob(packs=[(pack.number, [feed_row(row) for row in pack.rows]) for pack in packs]))
