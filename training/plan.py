"""Which rows a drafter is trained and measured on, and its identity: a pure plan over what the ledger says.

Fed from shards, training rows are those that are captured. Fed live they need no capture: their packs are planned
here from the lengths of the answers, in the very order in which shards would be read, and target workers make the
states of each pack when it is due. Held-out rows are read from shards either way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from corpus import identity
from corpus.canonical import digest
from corpus.errors import UserError
from corpus.ledger.writer import Readable
from corpus.manifest import Manifest
from corpus.target import ResolvedTarget
from fleet.devices import Device
from training.memory import most_anchors
from training.messages import (
    AUTO_MASK_TOKEN,
    LiveRows,
    ShardRows,
    TrainItem,
    TrainRow,
    auto_tokens,
)
from training.pack import epoch_packs

LEFT_TO_WORKER = 0
LEAST_ANSWER = 2
"""Tokens of an answer that something can be learned from: one to draft from, and one to draft."""
PACKS_OF_A_JOB = 4
"""A target captures so many packs at once: their rows, sorted by length, fill its batches."""


@dataclass(frozen=True)
class LiveRow:
    """A training row that a target worker will capture. `shard` and `shard_row` are its answer's."""

    response_id: str
    category: str
    source: str
    greedy: bool
    shard: str
    shard_row: int
    tokens: int


@dataclass(frozen=True)
class PackRows:
    """One pack of a live run."""

    number: int
    rows: tuple[LiveRow, ...]


@dataclass(frozen=True)
class TrainingPlan:
    """A drafter and the rows that it is trained and measured on."""

    drafter_id: str
    build_id: str
    capture_id: str
    layer_ids: tuple[int, ...]
    seed: int
    rows: dict[str, tuple[TrainRow, ...]]
    """By hidden shard; fed live, held-out rows alone."""
    not_captured: int
    live: tuple[LiveRow, ...] = ()
    """By response id; empty unless fed live."""
    init_dir: str = ""
    init: str = ""
    tokens: tuple[int, ...] = ()
    """Of each training row, by response id: prompt and answer."""
    answers: tuple[int, ...] = ()
    """The answers' part of it."""

    @property
    def training_rows(self) -> int:
        """Rows outside the holdout."""
        return len(self.live) or sum(not row.holdout for rows in self.rows.values() for row in rows)

    @property
    def holdout_rows(self) -> int:
        """Rows that are measured on."""
        return sum(row.holdout for rows in self.rows.values() for row in rows)

    @property
    def training_ids(self) -> list[str]:
        """Response ids of the rows outside the holdout, sorted."""
        return sorted(
            [row.response_id for row in self.live]
            + [row.response_id for rows in self.rows.values() for row in rows if not row.holdout]
        )

    @property
    def silent_rows(self) -> int:
        """Training rows of answers of one token: without a successor there is nothing to learn from them."""
        return sum(answer < LEAST_ANSWER for answer in self.answers)

    def lines(self) -> list[str]:
        """For a person."""
        fed = f", fed live: {sum(row.tokens for row in self.live):,} tokens" if self.live else ""
        lines = [f"drafter {self.drafter_id}: {self.training_rows:,} rows, {self.holdout_rows:,} held out{fed}"]
        if self.not_captured:
            lines.append(f"{self.not_captured:,} accepted rows are not captured")
        if silent := self.silent_rows:
            lines.append(f"{silent:,} of {self.training_rows:,} answers are of one token: nothing to learn from them")
        if self.init:
            lines.append(f"starts from {self.init}")
        return lines


def plan_training(
    manifest: Manifest,
    build_id: str,
    capture_id: str,
    layer_ids: tuple[int, ...],
    ledger: Readable,
    limit: int | None = None,
    init: tuple[str, str] | None = None,
) -> TrainingPlan:
    """The drafter of a build's rows: of its captured ones, or fed live of all that are accepted.

    Args:
        limit: most training rows, in nested order with category shares kept; held-out rows all stay.
        init: (folder, digest) of the published drafter that training.init_from names.

    Raises:
        UserError: there is nothing to train on.
    """
    live = manifest.training.feed == "live"
    found = ledger.rows(
        """
        WITH one AS (
            SELECT response_id, shard, shard_row FROM hidden_rows WHERE capture_id = ?
            QUALIFY row_number() OVER (PARTITION BY response_id ORDER BY shard, shard_row) = 1
        ), aside AS (SELECT DISTINCT response_id FROM hidden_failures WHERE capture_id = ?)
        SELECT b.response_id, b.category, b.source, b.holdout, rc.temperature = 0, one.shard, one.shard_row,
               r.shard, r.shard_row, r.prompt_tokens + r.response_tokens, aside.response_id IS NOT NULL,
               r.response_tokens
        FROM build_responses b JOIN accepted_responses r USING (response_id)
        JOIN recipes rc ON rc.recipe_id = b.recipe_id
        LEFT JOIN one USING (response_id)
        LEFT JOIN aside USING (response_id)
        WHERE b.build_id = ? AND b.left_out IS NULL
        ORDER BY (row_number() OVER (PARTITION BY b.category, b.holdout ORDER BY b.response_id) - 0.5)
                 / count(*) OVER (PARTITION BY b.category, b.holdout), b.category, b.response_id
        """,
        capture_id,
        capture_id,
        build_id,
    )
    captured = [row for row in found if row[5] is not None]
    held_out = [row for row in captured if row[3]]
    usable = [row for row in found if not row[10]] if live else captured
    if live and not held_out and any(row[3] for row in found):
        raise UserError(
            f"{manifest.name}: no held-out row of build {build_id} is captured, so nothing could be measured. Run "
            "`draftmill extract` first: fed live, it captures held-out rows alone."
        )
    kept = [row for row in usable if not row[3]][:limit]
    if not kept:
        what, command = ("accepted", "generate") if live else ("captured", "extract")
        raise UserError(
            f"{manifest.name}: build {build_id} has no {what} rows to train on. Run `draftmill {command}` first."
        )
    if all(row[11] < LEAST_ANSWER for row in kept):
        raise UserError(f"{manifest.name}: {nothing_to_learn(len(kept))}")
    in_shards = held_out if live else kept + held_out
    rows: dict[str, list[TrainRow]] = {}
    for response_id, category, source, holdout, greedy, shard, shard_row, *_ in sorted(
        in_shards, key=lambda row: (row[5], row[6])
    ):
        rows.setdefault(shard, []).append(TrainRow(shard_row, response_id, category, source, bool(greedy), holdout))
    fed = [LiveRow(row[0], row[1], row[2], bool(row[4]), row[7], row[8], row[9]) for row in sorted(kept)]
    seed = manifest.seed if manifest.training.seed is None else manifest.training.seed
    training = manifest.training.model_dump(mode="json") | {"seed": seed, "init": init[1] if init else None}
    ids = [row[0] for row in kept]
    return TrainingPlan(
        identity.drafter_id(build_id, ids, capture_id, training),
        build_id, capture_id, layer_ids, seed, {shard: tuple(own) for shard, own in rows.items()},
        0 if live else len(found) - len(captured),
        tuple(fed) if live else (), *(init or ("", "")),
        tuple(row[9] for row in sorted(kept)), tuple(row[11] for row in sorted(kept)),
    )  # fmt: skip


def nothing_to_learn(rows: int) -> str:
    """The line about a run in which no row has two generated tokens in a row."""
    return (
        f"all {rows:,} training rows are answers of one token, from which nothing can be learned: a drafter drafts "
        "the token behind a generated one. Raise generation.max_tokens, or take prompts with longer answers."
    )


def live_jobs(
    plan: TrainingPlan, packs: Sequence[tuple[int, list[int]]], left: Iterator[int]
) -> Iterator[list[PackRows]]:
    """Jobs of the packs that are left, in order."""
    job: list[PackRows] = []
    for number in left:
        job.append(PackRows(number, tuple(plan.live[i] for i in packs[number][1])))
        if len(job) == PACKS_OF_A_JOB:
            yield job
            job = []
    if job:
        yield job


def largest_pack(plan: TrainingPlan, tokens_per_batch: int, anchors_per_document: int) -> tuple[int, int]:
    """(tokens, anchors) that one pack of the first epoch has at most."""
    tokens = anchors = 0
    for own in epoch_packs(plan.tokens, tokens_per_batch, seed=plan.seed, epoch=0):
        tokens = max(tokens, sum(plan.tokens[i] for i in own))
        anchors = max(anchors, most_anchors([plan.answers[i] for i in own], anchors_per_document))
    return tokens, anchors


def live_rows(
    plan: TrainingPlan, packs: Sequence[tuple[int, list[int]]], used_token_ids: Collection[int], final_state: bool
) -> LiveRows:
    """What drafter workers know of them."""
    by_epoch = [0] * (packs[-1][0] + 1)
    for epoch, _ in packs:
        by_epoch[epoch] += 1
    return LiveRows(
        rows=len(plan.live),
        digest=digest("live-rows", [[row.response_id, row.tokens] for row in plan.live]),
        packs_by_epoch=by_epoch,
        used_token_ids=sorted(used_token_ids),
        final_state=final_state,
    )


def pack_budget(tokens_per_batch: int | Literal["auto"], device: Device) -> int:
    """The same, as the manifest says it."""
    if tokens_per_batch != "auto":
        return tokens_per_batch
    return auto_tokens(device.torch_name)


def computes_again(activation_checkpointing: bool | Literal["auto"], device: Device) -> bool:
    """Whether draft layers are computed again in the backward pass."""
    return device.kind != "cpu" if activation_checkpointing == "auto" else activation_checkpointing


def train_item(
    plan: TrainingPlan, manifest: Manifest, target: ResolvedTarget, ledger: Readable, device: Device, threads: int
) -> TrainItem:
    """The plan as the worker reads it: absolute paths, defaults resolved."""
    section = manifest.training
    hidden = ledger.workspace.hidden(plan.capture_id).resolve()
    tokens = section.tokens_per_batch
    checksums = dict(ledger.rows("SELECT shard, sha256 FROM hidden_shards WHERE capture_id = ?", plan.capture_id))
    return TrainItem(
        item_id=plan.drafter_id,
        target_dir=str(target.folder),
        out_dir=str(ledger.workspace.drafter(plan.drafter_id).resolve()),
        shards=[
            ShardRows(str(hidden / shard), list(rows), checksums.get(shard, ""))
            for shard, rows in sorted(plan.rows.items())
        ],
        layer_ids=plan.layer_ids,
        block_size=section.block_size,
        draft_layers=section.draft_layers,
        sliding_layers=section.sliding_layers,
        sliding_window=section.sliding_window,
        anchors_per_document=section.anchors_per_document,
        loss_weights=section.loss_weights,
        gamma=section.gamma,
        d_pace_alpha=section.d_pace_alpha,
        labels=section.labels,
        epochs=section.epochs,
        tokens_per_batch=LEFT_TO_WORKER if tokens == "auto" else tokens,
        packs_per_step=section.gradient_accumulation,
        activation_checkpointing=computes_again(section.activation_checkpointing, device),
        learning_rate=section.learning_rate,
        warmup=section.warmup,
        weight_decay=section.weight_decay,
        clip=section.clip,
        mask_token_id=AUTO_MASK_TOKEN if section.mask_token_id == "auto" else section.mask_token_id,
        checkpoint_every=section.checkpoint_every,
        seed=plan.seed,
        init_dir=plan.init_dir,
        init=plan.init,
        device=device.torch_name,
        threads=threads,
        export_dtype=manifest.target.dtype,
    )
