"""A drafter's figures on disk: metrics.parquet of its steps and acceptance.json of its measurements.

Both are beside the drafter and are what the ledger is filled from. A run that goes on from a checkpoint keeps the
figures of the steps before it and replaces those that it makes again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from corpus.acceptance import nonsense
from corpus.artefacts import write_atomically, write_text
from corpus.errors import DamagedError
from training.messages import AcceptanceRow, SlotSums, TrainProgress

log = logging.getLogger("draftmill")

METRICS = "metrics.parquet"
ACCEPTANCE_KEYS = {"build_id", "category", "measured_by", "drafts", "accepted_tokens", "rows", "measured_at"}


def metric_rows(progress: Sequence[TrainProgress]) -> list[dict[str, Any]]:
    """Progress messages in the ledger's long form; category is None for figures of all rows."""
    rows: list[dict[str, Any]] = []

    def add(message: TrainProgress, metric: str, category: str | None, value: float) -> None:
        rows.append(
            {"step": message.step, "epoch": message.epoch, "metric": metric, "category": category, "value": value}
        )

    def add_slots(message: TrainProgress, category: str | None, sums: Sequence[SlotSums]) -> None:
        by_slot = zip(
            _total([one.correct_by_slot for one in sums]), _total([one.total_by_slot for one in sums]), strict=True
        )
        for slot, (right, of) in enumerate(by_slot, start=1):
            if of:
                add(message, f"accuracy_slot_{slot}", category, right / of)
        if blocks := sum(one.blocks for one in sums):
            add(message, "streak", category, sum(one.streak for one in sums) / blocks)

    for message in progress:
        if message.own_steps:  # else it only says what a checkpoint accepts
            add(message, "loss", None, message.loss)
            add(message, "learning_rate", None, message.lr)
            add(message, "gradient_norm", None, message.gradient_norm)
            add(message, "tokens_per_s", None, message.tokens_per_s)
        add_slots(message, None, list(message.by_category.values()))
        for category, own in message.by_category.items():
            if own.slots:
                add(message, "loss", category, own.loss / own.slots)
            add_slots(message, category, [own])
        for category, (drafts, accepted) in message.acceptance.items():
            if drafts:
                add(message, "walk_acceptance_length", category, 1 + accepted / drafts)
    return rows


def _total(parts: Sequence[Sequence[int]]) -> list[int]:
    """Sums place by place; parts without places count nothing."""
    return [sum(own) for own in zip(*(part for part in parts if part), strict=True)]


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Figures of the steps before this run, as metric_rows gives them; none if there are none that can be read."""
    import polars as pl

    try:
        rows = pl.read_parquet(folder / METRICS, columns=list(_metrics_schema()), glob=False).to_dicts()
    except FileNotFoundError:
        return []
    except (OSError, pl.exceptions.PolarsError) as error:
        log.warning("%s is damaged (%s); the figures of earlier steps are lost", folder / METRICS, type(error).__name__)
        return []
    return rows


def write_metrics(folder: Path, earlier: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]]) -> None:
    """Write this run's figures behind the earlier ones, in the place of those that it made again."""
    import polars as pl

    first = min((row["step"] for row in rows if row["metric"] == "loss"), default=None)
    again = {"label_agreement"} & {row["metric"] for row in rows}  # of the whole run: the newest counts
    kept = [row for row in earlier if (first is None or row["step"] < first) and row["metric"] not in again]
    frame = pl.DataFrame([*kept, *rows], schema=_metrics_schema())
    write_atomically(folder / METRICS, frame.write_parquet)


def _metrics_schema() -> dict[str, Any]:
    import polars as pl

    return {"step": pl.Int64, "epoch": pl.Int64, "metric": pl.String, "category": pl.String, "value": pl.Float64}


def read_acceptance(folder: Path) -> list[dict[str, Any]]:
    """A drafter's measurements.

    Raises:
        UserError: the file is damaged.
    """
    path = folder / "acceptance.json"
    try:
        rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
        for row in rows:
            if not row.keys() >= ACCEPTANCE_KEYS:
                raise KeyError("a key")
            datetime.fromisoformat(row["measured_at"])
            if wrong := nonsense(row, None):
                raise ValueError(wrong)
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"{path}: damaged. Remove it and run `draftmill serve-check` again.") from error
    return rows


def add_acceptance(folder: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Append measurements to a drafter's acceptance.json.

    Raises:
        UserError: as read_acceptance.
    """
    known = read_acceptance(folder)
    write_text(folder / "acceptance.json", json.dumps([*known, *rows], indent=1, sort_keys=True))


def acceptance_row(
    build_id: str, category: str, measured_by: str, drafts: int, accepted: int, rows: int, measured_at: str
) -> dict[str, Any]:
    """One measurement, as acceptance.json holds it."""
    return {
        "build_id": build_id, "category": category, "measured_by": measured_by, "drafts": drafts,
        "accepted_tokens": accepted, "rows": rows, "measured_at": measured_at,
    }  # fmt: skip


def acceptance_rows(build_id: str, measured: Sequence[AcceptanceRow], measured_at: str) -> list[dict[str, Any]]:
    """Measurements of a worker, with the sums over rows that an interval is made of."""
    return [
        acceptance_row(build_id, one.category, one.measured_by, one.drafts, one.accepted_tokens, one.rows, measured_at)
        | {
            "sum_drafts_sq": one.sum_drafts_sq,
            "sum_accepted_sq": one.sum_accepted_sq,
            "sum_cross": one.sum_cross,
        }
        for one in measured
    ]
