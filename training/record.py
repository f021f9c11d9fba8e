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

from corpus.artefacts import write_atomically, write_text
from corpus.errors import DamagedError
from training.messages import TrainProgress

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

    for message in progress:
        add(message, "loss", None, message.loss)
        add(message, "learning_rate", None, message.lr)
        add(message, "gradient_norm", None, message.gradient_norm)
        add(message, "tokens_per_s", None, message.tokens_per_s)
        for slot, (right, of) in enumerate(zip(message.correct_by_slot, message.total_by_slot, strict=True), start=1):
            if of:
                add(message, f"accuracy_slot_{slot}", None, right / of)
        for category, (total, count) in message.loss_by_category.items():
            if count:
                add(message, "loss", category, total / count)
        for category, (drafts, accepted) in message.acceptance.items():
            if drafts:
                add(message, "walk_acceptance_length", category, 1 + accepted / drafts)
    return rows


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
    again = {row["metric"] for row in rows} - {"loss"} if first is None else {"label_agreement"}
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
