"""The offline estimate of a drafter that somebody exported: a walk over held-out rows, without training.

Spawned by fleet.Pool as "training.measure_worker:create". One item is one exported folder and the rows of a plan;
the answer is the same sums that training ends with, so both stand in one table.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch

from training.data import TrainingData
from training.evaluation import measure
from training.export import load_exported
from training.frozen import load_frozen
from training.messages import AcceptanceRow, MeasureItem
from training.worker import acceptance_sums, evaluation_settings


class MeasureHandler:
    """Measures one drafter at a time."""

    capacity = 1

    async def handle(self, item: bytes) -> bytes:
        """Walk a MeasureItem's drafter; answers with a list of AcceptanceRow.

        Raises:
            UserError: the folder holds no drafter, or a shard is damaged.
        """
        decoded = msgspec.msgpack.decode(item, type=MeasureItem)
        return msgspec.msgpack.encode(await asyncio.to_thread(measure_export, decoded))

    def close(self) -> None:
        """Nothing is left open."""


def create(config: bytes, emit: Callable[[bytes], None]) -> MeasureHandler:
    """Called once in a spawned process; everything comes with the item."""
    del config, emit
    return MeasureHandler()


def measure_export(item: MeasureItem) -> list[AcceptanceRow]:
    """Walk and all-anchors acceptance of the exported drafter on the item's held-out rows."""
    rows = item.rows
    if rows.threads:
        torch.set_num_threads(rows.threads)
    data = TrainingData(rows.shards, rows.layer_ids, rows.labels, held_out_only=True)
    try:
        target = load_frozen(rows.target_dir, "float32" if rows.device == "cpu" else "bfloat16", rows.device)
        drafter = load_exported(Path(item.drafter_dir), rows.device)
        return acceptance_sums(measure(drafter, target, data, evaluation_settings(rows)))
    finally:
        data.close()
