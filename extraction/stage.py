"""What is left to capture of a build, read from the ledger: which states, of which rows, in how many bytes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from corpus import identity, layers
from corpus.columns import counted
from corpus.errors import UserError
from corpus.ledger.writer import Readable
from corpus.manifest import Manifest
from corpus.model_config import text_config
from corpus.shard_writer import BYTES
from corpus.target import ResolvedTarget
from extraction.items import rows_in_turn, rows_that_fit

ID_BYTES = 5
"""A token's id and its place in the loss mask, beside its states."""


@dataclass(frozen=True, slots=True)
class Row:
    """One response to capture, and where its tokens lie."""

    response_id: str
    shard: str
    shard_row: int
    tokens: int


@dataclass(frozen=True)
class ExtractionPlan:
    """What is captured, of which rows."""

    build_id: str
    capture_id: str
    layer_ids: tuple[int, ...]
    final_state: bool
    hidden_size: int
    stored_dtype: str
    rows: tuple[Row, ...]
    captured: int
    set_aside: int = 0
    """Rows that an earlier run could not capture."""
    left_out: int = 0
    """Rows that --limit, --max-disk or a limit of held-out rows leaves for another time."""
    holdout_only: bool = False
    """Training is fed live: nothing but held-out rows is captured."""
    disk_note: str = ""
    """Why --max-disk leaves no room for another row; "" where it does."""

    @property
    def wanted(self) -> int:
        """Rows that the build has for this capture."""
        return len(self.rows) + self.captured + self.set_aside + self.left_out

    @property
    def bytes_per_token(self) -> int:
        """What a shard holds of one token."""
        states = len(self.layer_ids) + self.final_state
        return states * self.hidden_size * BYTES[self.stored_dtype] + ID_BYTES

    @property
    def tokens(self) -> int:
        """Tokens still to be captured."""
        return sum(row.tokens for row in self.rows)

    @property
    def size_bytes(self) -> int:
        """What they take on the disk."""
        return self.tokens * self.bytes_per_token

    def lines(self) -> list[str]:
        """For a person, a sentence each."""
        live = " (training is fed live)" if self.holdout_only else ""
        left = [f"{len(self.rows):,} to capture", *self._not_captured()]
        return [
            f"{self._counted(self.wanted)}{live}: {', '.join([f'{self.captured:,} captured', *left])}",
            f"{states_line(self.layer_ids, self.final_state)}, in {self.stored_dtype}",
            f"{self.tokens:,} tokens of {self.bytes_per_token:,} bytes: {gigabytes(self.size_bytes)}",
            *([self.disk_note] if self.disk_note else []),
        ]

    def nothing_line(self) -> str:
        """Why nothing is to be captured."""
        return ", ".join([f"{self._counted(self.captured)} captured", *self._not_captured()])

    def _counted(self, rows: int) -> str:
        return counted(rows, "held-out row" if self.holdout_only else "row")

    def _not_captured(self) -> list[str]:
        parts = []
        if self.set_aside:
            tries = "tries them again" if self.set_aside > 1 else "tries it again"
            parts.append(f"{self.set_aside:,} set aside by earlier runs (--retry-set-aside {tries})")
        if self.left_out:
            parts.append(f"{self.left_out:,} left for later")
        return parts


def plan_extraction(
    manifest: Manifest,
    target: ResolvedTarget,
    build_id: str,
    ledger: Readable,
    limit: int | None = None,
    *,
    max_disk_bytes: int | None = None,
    retry_set_aside: bool = False,
    holdout_only: bool = False,
    holdout_limit: int | None = None,
) -> ExtractionPlan:
    """What is left to capture of a build's accepted responses, held-out ones included.

    States count as captured where their shard is there with the size that the ledger names: a run forgets the others.

    Args:
        limit: capture at most so many rows now.
        max_disk_bytes: keep the states of this build below so many bytes, those that are there included.
        holdout_only: nothing but held-out rows, for training that is fed live.
        holdout_limit: keep at most so many held-out rows, the first of each category as its share asks, those that
            are there included.
        retry_set_aside: rows that an earlier run could not capture are tried again.

    Raises:
        UserError: the layers do not fit the target, or not one row fits into `max_disk_bytes`.
    """
    capture, layer_ids = plan_capture(manifest, target)
    section = manifest.extraction
    # a source's rank is the nested order: the first of each are kept
    found = ledger.rows(
        """
        SELECT r.response_id, r.shard, r.shard_row, r.prompt_tokens + r.response_tokens,
               h.response_id IS NOT NULL, f.response_id IS NOT NULL,
               concat_ws('/', b.category, b.source, b.holdout), b.holdout
        FROM build_responses b JOIN accepted_responses r USING (response_id)
        JOIN builds USING (build_id)
        LEFT JOIN (
            SELECT DISTINCT response_id FROM hidden_rows
            WHERE capture_id = ? AND shard NOT IN (SELECT unnest(?::VARCHAR[]))
        ) h USING (response_id)
        LEFT JOIN (SELECT response_id FROM hidden_failures WHERE capture_id = ?) f USING (response_id)
        LEFT JOIN prompts p ON p.candidates_id = builds.candidates_id AND p.prompt_id = b.prompt_id
        WHERE b.build_id = ? AND b.left_out IS NULL AND (b.holdout OR NOT ?)
        ORDER BY p.source_rank, b.prompt_id, b.replica, b.turn, r.response_id
        """,
        capture,
        broken_shards(ledger, capture),
        capture,
        build_id,
        holdout_only,
    )
    aside = {row[0] for row in found if row[5] and not row[4]} if not retry_set_aside else set()
    rows = [row for row in found if row[0] not in aside]
    hidden_size = int(text_config(target.config)["hidden_size"])
    plan = ExtractionPlan(
        build_id, capture, layer_ids, section.final_state, hidden_size, section.dtype,
        (), sum(row[4] for row in found), len(aside), holdout_only=holdout_only,
    )  # fmt: skip
    if holdout_limit is not None:
        held_out = [row for row in rows if row[7]]
        kept = rows_that_fit([row[6] for row in held_out], [1] * len(held_out), holdout_limit)
        chosen = {held_out[i][0] for i in kept}
        rows = [row for row in rows if not row[7] or row[0] in chosen]
    left, disk_note = [row for row in rows if not row[4]], ""
    if max_disk_bytes is not None and left:
        left, disk_note = _within(max_disk_bytes, rows, plan)
    if limit is not None:
        left = [left[i] for i in rows_that_fit([row[6] for row in left], [1] * len(left), limit)]
    left_out = len(found) - plan.captured - plan.set_aside - len(left)
    return replace(plan, rows=tuple(Row(*row[:4]) for row in left), left_out=left_out, disk_note=disk_note)


def _within(max_disk_bytes: int, rows: list[Any], plan: ExtractionPlan) -> tuple[list[Any], str]:
    """(rows to capture, why there are none): the first of the nested order, with those that are captured already.

    Raises:
        UserError: nothing is captured, and not one row fits.
    """
    room = max_disk_bytes // plan.bytes_per_token
    groups, tokens = [row[6] for row in rows], [row[3] for row in rows]
    kept = rows_that_fit(groups, tokens, room)
    there = sum(row[3] for row in rows if row[4])
    if not kept and not plan.captured:
        least = tokens[rows_in_turn(groups)[0]] * plan.bytes_per_token
        raise UserError(
            f"--max-disk: {gigabytes(max_disk_bytes)} hold not one row; a token takes {plan.bytes_per_token:,} "
            f"bytes, and the first row {gigabytes(least)}. Allow --max-disk {-(-least // 1000)}kB at least."
        )
    left = [rows[i] for i in kept if not rows[i][4]]
    # what is captured beyond those first rows takes room too
    fit = rows_that_fit([row[6] for row in left], [row[3] for row in left], max(0, room - there))
    if fit:
        return [left[i] for i in fit], ""
    size = gigabytes(there * plan.bytes_per_token)
    over = "less than" if there > room else "no room for a row beside"
    return [], f"--max-disk {gigabytes(max_disk_bytes)} is {over} the {size} captured already: nothing more is captured"


def broken_shards(ledger: Readable, capture_id: str, only: Collection[str] | None = None) -> list[str]:
    """Shards that the ledger names and that are not there with the size it says. `only`: look at no others."""
    folder = ledger.workspace.hidden(capture_id)
    named = ledger.rows("SELECT shard, size_bytes FROM hidden_shards WHERE capture_id = ? ORDER BY shard", capture_id)
    return [shard for shard, size in named if (only is None or shard in only) and file_size(folder / shard) != size]


def file_size(path: Path) -> int | None:
    """In bytes; None where there is no such file."""
    return path.stat().st_size if path.is_file() else None


def plan_capture(manifest: Manifest, target: ResolvedTarget) -> tuple[str, tuple[int, ...]]:
    """(capture_id, 0-based layer outputs): what is captured of this target, whatever the rows.

    Raises:
        UserError: as target_layers.
    """
    layer_ids = target_layers(manifest, int(text_config(target.config)["num_hidden_layers"]))
    final_state, stored_dtype = manifest.extraction.final_state, manifest.extraction.dtype
    return (
        identity.capture_id(target.identity(), list(layer_ids), final_state, manifest.target.dtype, stored_dtype),
        layer_ids,
    )


def target_layers(manifest: Manifest, num_layers: int) -> tuple[int, ...]:
    """The 0-based layer outputs that are captured.

    Raises:
        UserError: a listed layer does not exist, stands twice, or the formula gives duplicates.
    """
    listed = manifest.extraction.layers
    if listed == "auto":
        return tuple(layers.draft_layer_ids(num_layers, manifest.extraction.features))
    if doubled := sorted({layer for layer in listed if listed.count(layer) > 1}):
        raise UserError(
            f"extraction.layers is {list(listed)}, which names {', '.join(map(str, doubled))} more than once. "
            "Name each layer once."
        )
    return layers.check_layer_ids(sorted(listed), num_layers)


def states_line(layer_ids: Sequence[int], final_state: bool) -> str:
    """What is kept of a token, for a person."""
    final = " and the final state" if final_state else ", no final state"
    return f"layer{'s' if len(layer_ids) != 1 else ''} {listed_ids(layer_ids)}{final}"


def listed_ids(ids: Sequence[int]) -> str:
    """Ascending ids, for a person; three and more in a row as "0 to 29"."""
    runs: list[list[int]] = []
    for one in ids:
        if runs and one == runs[-1][-1] + 1:
            runs[-1].append(one)
        else:
            runs.append([one])
    parts = [[f"{run[0]} to {run[-1]}"] if len(run) > 2 else list(map(str, run)) for run in runs]
    return ", ".join(part for own in parts for part in own)


def gigabytes(size_bytes: float) -> str:
    """For a person: GB; TB from a thousand of them on, less where there would be nothing before the point."""
    for size, unit in ((1e12, "TB"), (1e7, "GB"), (1e6, "MB")):
        if size_bytes >= size:
            return f"{size_bytes / (1e9 if unit == 'GB' else size):.2f} {unit}"
    if size_bytes < 1e3:
        return f"{size_bytes:.0f} bytes"
    return f"{size_bytes / 1e3:.1f} kB"
