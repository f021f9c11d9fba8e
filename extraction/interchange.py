"""Which captured rows another trainer is given, as which row of its folder, in how many bytes: the plan alone.

speculators' offline trainer reads a saved dataset with one file of states a row beside it, and splits it by a ratio of
its rows. So rows to train on come first and held-out ones last, each in the order of the shards, and the ratio that
falls between the two is part of the plan. Frames and numbers in, a plan out: `extraction.interchange_stage` asks the
ledger and the disk, `extraction.interchange_files` writes the folder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corpus.columns import counted
from corpus.errors import UserError
from corpus.layers import to_vllm_ids
from corpus.shard_writer import BYTES
from extraction.stage import gigabytes, listed_ids, states_line

if TYPE_CHECKING:
    import polars as pl

FORMAT = "speculators"
DESCRIPTION = "draftmill.json"
"""What the folder says of itself; written first."""
STATES = "hidden_states"
LABELS = ("response_id", "prompt_id", "category", "source", "license", "holdout")
"""Columns that say where a row is from, beside those that the trainer reads."""
TOKEN_BYTES = 8
"""A token's id, in the file of its row."""
DATASET_BYTES = 2 * (8 + 8)
"""A token's id and loss mask in the dataset, which is written twice: as its rows come, and saved."""
ROW_BYTES = 4096 + 512
"""What a row takes beside its tokens: the rest of a block, and its labels."""
NORM_RULE = "the final state is the residual stream before the target's final norm: logits are lm_head(norm(state))"


@dataclass(frozen=True)
class Capture:
    """What is stored of a token. `layer_ids` are 0-based layer outputs; `target` is the model as it is told."""

    capture_id: str
    target: str
    revision: str
    layer_ids: tuple[int, ...]
    final_state: bool
    hidden_size: int
    dtype: str

    @property
    def vllm_layer_ids(self) -> tuple[int, ...]:
        """The same layers as vLLM and speculators count them."""
        return to_vllm_ids(self.layer_ids)

    @property
    def bytes_per_token(self) -> int:
        """In the file of a row."""
        return (len(self.layer_ids) + self.final_state) * self.hidden_size * BYTES[self.dtype] + TOKEN_BYTES


@dataclass(frozen=True)
class Found:
    """What lies in the folder before a run."""

    foreign: str = ""
    """A name there that no export begins with; "": it is empty, new, or an export."""
    export_id: str | None = None
    said: str = ""
    """What that export is, in words."""
    rows: frozenset[int] = frozenset()
    """Rows whose file is there: files are whole or absent."""
    dataset: bool = False
    """Whether the dataset, which is written last, is there."""


@dataclass(frozen=True, eq=False)
class InterchangePlan:
    """A folder to be, and what of it is there. Of `rows`, in the order of the shards:

    row (its number in the dataset), LABELS, shard, shard_row, tokens, done (its file is there).
    """

    folder: Path
    name: str
    build_id: str
    capture: Capture
    rows: pl.DataFrame
    not_captured: int
    """Accepted answers of the build without states."""
    dataset_there: bool
    export_id: str

    @property
    def training_rows(self) -> int:
        """Rows outside the holdout, which are the first."""
        return self.rows.height - int(self.rows["holdout"].sum())

    @property
    def tokens(self) -> int:
        """Of all rows."""
        return int(self.rows["tokens"].sum())

    @property
    def train_ratio(self) -> float:
        """See train_ratio."""
        return train_ratio(self.training_rows, self.rows.height)

    @property
    def unread(self) -> pl.DataFrame:
        """Rows whose shards are still to be read: for the dataset all of them."""
        return self.rows.filter(~self.rows["done"]) if self.dataset_there else self.rows

    @property
    def finished(self) -> bool:
        """Whether nothing is left to write."""
        return self.dataset_there and bool(self.rows["done"].all())

    @property
    def size_bytes(self) -> int:
        """At most what is still to be written."""
        left = self.rows.filter(~self.rows["done"])
        dataset = 0 if self.dataset_there else self.tokens * DATASET_BYTES
        return int(left["tokens"].sum()) * self.capture.bytes_per_token + left.height * ROW_BYTES + dataset

    def lines(self) -> list[str]:
        """For a person, a sentence each."""
        capture, held_out = self.capture, self.rows.height - self.training_rows
        done = int(self.rows["done"].sum())
        there = f"; {done:,} row{'s are' if done > 1 else ' is'} there already" if done else ""
        lines = [
            f"build {self.build_id} ({self.name}): {counted(self.training_rows, 'row')} to train on, "
            f"{held_out:,} held out, {self.tokens:,} tokens",
            f"{states_line(capture.layer_ids, capture.final_state)}, in {capture.dtype}; as speculators and vLLM count "
            f"layers, {listed_ids(capture.vllm_layer_ids)}",
            f"{gigabytes(self.size_bytes)} to write{there}",
            self.split_line(),
        ]
        if self.not_captured:
            answers = f"{self.not_captured:,} accepted answer{'s have' if self.not_captured > 1 else ' has'} no states"
            lines.append(f"{answers}; `draftmill extract` captures {'them' if self.not_captured > 1 else 'it'}")
        return lines

    def split_line(self) -> str:
        """How the trainer is told which rows are held out."""
        if self.training_rows == self.rows.height:
            return "no row is held out: the trainer will hold out the last rows of whatever ratio it is given"
        return f"--train-data-ratio {self.train_ratio} splits them there"

    def description(self) -> dict[str, Any]:
        """What the folder says of itself."""
        capture = self.capture
        return {
            "schema_version": 1,
            "format": FORMAT,
            "export_id": self.export_id,
            "mix": self.name,
            "build_id": self.build_id,
            "capture_id": capture.capture_id,
            "target": capture.target,
            "revision": capture.revision,
            "layer_ids": list(capture.layer_ids),
            "vllm_layer_ids": list(capture.vllm_layer_ids),
            "final_state": "before_norm",
            "norm_rule": NORM_RULE,
            "hidden_size": capture.hidden_size,
            "dtype": capture.dtype,
            "rows": self.rows.height,
            "training_rows": self.training_rows,
            "tokens": self.tokens,
            "longest_row": int(self.rows["tokens"].max()),  # type: ignore[arg-type]
            "train_ratio": self.train_ratio,
        }

    def readme(self) -> str:
        """The same for a person, with the trainer's own options."""
        body = self.description()
        options = [
            f"--verifier-name-or-path {self.capture.target}",
            "--data-path FOLDER",
            f"--target-layer-ids {' '.join(map(str, body['vllm_layer_ids']))}",
            "--on-missing raise",
        ]
        if self.train_ratio < 1:
            options.append(f"--train-data-ratio {self.train_ratio}")
        shown = ("build_id", "capture_id", "target", "revision", "layer_ids", "vllm_layer_ids", "dtype", "rows",
                 "training_rows", "tokens", "longest_row", "train_ratio")  # fmt: skip
        lines = [
            f"# Hidden states of the mix {self.name}",
            "",
            f"For the offline trainer of {FORMAT}; `{DESCRIPTION}` says the same for programs.",
            "",
            *(f"- {name}: {_plain(body[name])}" for name in shown),
            f"- {NORM_RULE}",
            "",
            f"Row r of the dataset has its states in `{STATES}/hs_r.safetensors`: `hidden_states` [tokens, layers + 1,",
            "hidden size], layers ascending, the final state last, and `token_ids`. `layer_ids` are 0-based layer",
            f"outputs; `vllm_layer_ids`, as {FORMAT} and vLLM count, are these plus one. Rows to train on come first,",
            f"held-out ones last: {self.split_line()}.",
            f"The columns {', '.join(LABELS)} say where a row is from.",
            "",
            "```",
            "python -m speculators.train --speculator-type dflash \\",
            *(f"  {option} \\" for option in options[:-1]),
            f"  {options[-1]}",
            "```",
        ]
        return "\n".join(lines) + "\n"


def plan_interchange(
    folder: Path,
    name: str,
    build_id: str,
    capture: Capture,
    rows: pl.DataFrame,
    not_captured: int,
    found: Found,
    free_bytes: int,
) -> InterchangePlan:
    """The folder that these rows make, and what of it is left to write.

    Args:
        rows: LABELS, shard, shard_row and tokens of each, in any order.
        found: what is there.
        free_bytes: of the disk that the folder is on.

    Raises:
        UserError: the capture keeps no final state, there is no row to train on, the folder holds something else, or
            the disk is too small.
    """
    import polars as pl

    if not capture.final_state:
        raise UserError(
            f"{name}: extraction.final_state is false, and speculators' trainer makes its labels from the final state. "
            "Set it to true and run `draftmill extract` again."
        )
    if rows.is_empty() or rows["holdout"].all():
        kind = "captured rows but held-out ones" if rows.height else "captured rows"
        raise UserError(
            f"{name}: build {build_id} has no {kind}, and the trainer wants some to train on. "
            "Run `draftmill extract` first."
        )
    numbered = rows.sort("holdout", "shard", "shard_row").with_row_index("row")
    export_id = _export_id(build_id, capture.capture_id, numbered)
    if found.foreign:
        raise UserError(
            f"{str(folder)!a}: holds {found.foreign!a}, and is no export of states. Name a new folder, or an empty one."
        )
    if found.export_id not in (None, export_id):
        raise UserError(
            f"{str(folder)!a}: holds an export of other rows ({found.said}). Name a new folder, or remove this one."
        )
    done = pl.Series(sorted(found.rows), dtype=numbered["row"].dtype)
    plan = InterchangePlan(
        folder, name, build_id, capture,
        numbered.sort("shard", "shard_row").with_columns(done=pl.col("row").is_in(done.implode())),
        not_captured, found.dataset, export_id,
    )  # fmt: skip
    if plan.size_bytes > free_bytes:
        raise UserError(
            f"{str(folder)!a}: the export needs {gigabytes(plan.size_bytes)} and {gigabytes(free_bytes)} are free. "
            "Free space, choose another disk, or export fewer rows with --limit N (category shares are kept)."
        )
    return plan


def train_ratio(training_rows: int, rows: int) -> float:
    """The shortest number r with int(rows * r) == training_rows, which is how speculators splits; 1.0 is all rows."""
    if training_rows == rows:
        return 1.0
    for digits in range(1, 18):
        for part in (training_rows / rows, (training_rows + 0.5) / rows):
            ratio = round(part, digits)
            if 0 < ratio < 1 and int(rows * ratio) == training_rows:
                return ratio
    raise ValueError(f"{training_rows} of {rows} rows cannot be split by a ratio")


def _export_id(build_id: str, capture_id: str, numbered: pl.DataFrame) -> str:
    """Which rows these are, in which order, and from where: a folder is gone on with only by the same."""
    made = hashlib.sha256(f"interchange:v1:{build_id}:{capture_id}".encode())
    for response_id, shard, shard_row in numbered.select("response_id", "shard", "shard_row").iter_rows():
        made.update(f"\n{response_id} {shard} {shard_row}".encode())
    return made.hexdigest()[:32]


def _listed(ids: Sequence[int]) -> str:
    return ", ".join(map(str, ids))


def _plain(value: Any) -> str:
    return _listed(value) if isinstance(value, list) else f"{value:,}" if isinstance(value, int) else str(value)
