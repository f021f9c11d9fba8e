"""What the coordinator and a training worker say to each other, as msgpack.

One TrainItem is one drafter. While it trains the worker emits TrainProgress; its answer is a TrainSummary. All
figures are raw sums and counts, so that they pool. No torch here: the coordinator imports this module.
"""

from __future__ import annotations

import msgspec

from corpus.canonical import digest

AUTO_TOKENS_CPU = 1024
AUTO_TOKENS_GPU = 4096
AUTO_MASK_TOKEN = -1
WHERE_AND_HOW_FAST = (
    "item_id", "target_dir", "out_dir", "device", "threads", "export_dtype", "init_dir",
    "activation_checkpointing", "checkpoint_every", "eval_rows",
)  # fmt: skip
"""Fields of a TrainItem that a checkpoint does not depend on."""


class TrainRow(msgspec.Struct, frozen=True, array_like=True):
    """One row of a shard. `greedy`: it was sampled at temperature 0."""

    row: int
    response_id: str
    category: str
    source: str
    greedy: bool
    holdout: bool


class ShardRows(msgspec.Struct, frozen=True, array_like=True):
    """Rows of one shard, by absolute path."""

    path: str
    rows: list[TrainRow]
    sha256: str = ""
    """What the ledger says of the file; it is compared when the file is first opened."""


class LiveRows(msgspec.Struct, frozen=True, kw_only=True):
    """What a drafter worker knows beforehand of the rows that it will be fed."""

    rows: int
    digest: str
    """Of their response ids and lengths, in order."""
    packs_by_epoch: list[int]
    used_token_ids: list[int]
    """That occur in them, ascending."""
    final_state: bool
    """The states' last layer is the target's final state."""


class TrainItem(msgspec.Struct, frozen=True, kw_only=True):
    """All that makes a drafter: data, and the manifest's training section with `auto` and defaults resolved."""

    item_id: str
    target_dir: str
    out_dir: str
    """The drafter's own folder: checkpoints/ and export/ go below it."""
    shards: list[ShardRows]
    layer_ids: tuple[int, ...]
    """0-based; must be the shards' own."""
    block_size: int
    draft_layers: int
    sliding_layers: int
    sliding_window: int
    anchors_per_document: int
    loss_weights: str = "decay"
    """decay or d_pace."""
    gamma: float
    d_pace_alpha: float = 0.5
    labels: str
    """auto, teacher, sampled or kl."""
    epochs: int
    tokens_per_batch: int = 0
    """Of a pack; 0 chooses by device."""
    packs_per_step: int = 1
    activation_checkpointing: bool = False
    init_dir: str = ""
    """A drafter in z-lab's format to start from; empty: from `seed`."""
    init: str = ""
    """The digest of its files."""
    live: LiveRows | None = None
    """Training rows that come from target workers; None: all rows are in `shards`."""
    learning_rate: float
    warmup: float
    weight_decay: float
    clip: float
    mask_token_id: int = AUTO_MASK_TOKEN
    checkpoint_every: int
    seed: int
    device: str = "cpu"
    threads: int = 0
    export_dtype: str = "float32"
    """Numbers of the exported weights: the target's dtype."""
    eval_rows: int = 256
    """Held-out rows that are walked at each checkpoint; at the end all of them are."""

    def fingerprint(self) -> str:
        """What must be equal for a checkpoint to be gone on with: all but where and how fast it runs."""
        body = msgspec.to_builtins(self)
        for name in WHERE_AND_HOW_FAST:
            body.pop(name)
        # held-out rows are measured, not trained on: another number of them may be captured meanwhile
        # packs are numbered: another budget makes others of the same rows
        body["tokens_per_batch"] = tokens_per_pack(self)
        kept = [own for shard in self.shards if (own := [row for row in shard.rows if not row.holdout])]
        body["shards"] = msgspec.to_builtins(kept)
        return digest("training", body)


def auto_tokens(device: str) -> int:
    """Context tokens of a pack where nobody says how many: cpu, or a GPU as torch names it."""
    return AUTO_TOKENS_CPU if device == "cpu" else AUTO_TOKENS_GPU


def tokens_per_pack(item: TrainItem) -> int:
    """Context tokens of a pack, chosen by device where the item leaves it open."""
    return item.tokens_per_batch or auto_tokens(item.device)


class SlotSums(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over supervised slots of one category. Slots 1 to block_size - 1 are at index 0 on."""

    loss: float
    """Of unweighted slot losses."""
    slots: int
    correct_by_slot: list[int]
    """Predictions equal to the label."""
    total_by_slot: list[int]
    streak: int
    """Leading correct slots of a block, summed."""
    blocks: int


class TrainProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over the steps since the last message."""

    item_id: str
    step: int
    """Steps done."""
    steps: int
    """Steps in all."""
    epoch: int
    loss: float
    """Mean over these steps."""
    lr: float
    gradient_norm: float
    by_category: dict[str, SlotSums]
    tokens_per_s: float
    """Context tokens."""
    acceptance: dict[str, tuple[int, int]] = {}
    """Held-out walk by category (drafts, accepted); empty where it was not measured."""
    worker: int = 0
    """Which of the drafters that train at once says so."""
    own_steps: int = 1
    """Steps that the sums are of; 0: there is nothing but what is known of checkpoints."""
    saved: bool = False
    """A checkpoint was written at this step."""
    tau: float | None = None
    """Mean held-out walk of the newest checkpoint; None: not measured. Worker 0 alone knows it and the next two."""
    best_step: int = 0
    best_tau: float | None = None
    """Of the checkpoint that will be exported, as far as it is known."""
    note: str = ""
    """Something that a person should know, in one line; then the message has no figures."""


class AcceptanceRow(msgspec.Struct, frozen=True, array_like=True):
    """acceptance_length is 1 + accepted_tokens / drafts."""

    measured_by: str
    """walk, anchors, or ddtree_B."""
    category: str
    drafts: int
    accepted_tokens: int
    rows: int
    open_drafts: int
    """Drafts that matched all that is known behind the recorded end (see training.walk)."""
    sum_drafts_sq: int = 0
    """Over rows; with the next two an interval follows (see corpus.acceptance)."""
    sum_accepted_sq: int = 0
    sum_cross: int = 0


class TrainSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A trained drafter."""

    item_id: str
    checkpoint: str
    """Folder of the best checkpoint."""
    export: str
    """Folder in z-lab's format."""
    steps: int
    best_step: int
    mask_token_id: int
    training_rows: int
    holdout_rows: int
    acceptance: list[AcceptanceRow]
    label_agreement: dict[str, tuple[int, int]]
    """By category: supervised training positions where the sampled token is the target's arg max, of how many."""
    seconds: float


class LiveItem(msgspec.Struct, frozen=True, kw_only=True):
    """One drafter worker of several that are fed live."""

    item: TrainItem
    rank: int
    size: int
    meeting_file: str
    """Where the drafters find one another."""
    average_every: int


class MeasureItem(msgspec.Struct, frozen=True, kw_only=True):
    """An exported drafter to be walked over the held-out rows of a TrainItem."""

    drafter_dir: str
    rows: TrainItem
