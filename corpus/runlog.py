"""One execution of a stage: when it ran, what happened, and how busy the engines were.

Written to runs/<run_id>/ as parquet parts and entered in the ledger as they are written. A run_id sorts by time.
Nothing that a row says, and no secret, is ever an event.
"""

from __future__ import annotations

import json
import secrets
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corpus.artefacts import write_atomically, write_text
from corpus.ledger import ingest
from corpus.ledger.writer import LedgerWriter

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

FLUSH_EVERY_S = 60.0


def make_run_id(now: datetime | None = None) -> str:
    """A time-ordered name for one execution."""
    return f"{(now or datetime.now(UTC)).strftime('%Y%m%dT%H%M%S%f')[:-3]}Z-{secrets.token_hex(3)}"


class RunLog:
    """Collects events and samples of one run; `finish` must be called once."""

    def __init__(self, ledger: LedgerWriter, command: str, build_id: str | None) -> None:
        self.run_id = make_run_id()
        self.ledger = ledger
        self.build_id = build_id
        self.folder = ledger.workspace.run(self.run_id)
        self._body: dict[str, Any] = {
            "command": command,
            "build_id": build_id,
            "started_at": datetime.now(UTC).isoformat(),
            "ended_at": None,
            "outcome": None,
        }
        self._rows: dict[str, list[dict[str, Any]]] = {"events": [], "engine_samples": []}
        self._part = 0
        self._flushed = time.monotonic()
        self._write_body()
        ledger.call(self._ingest)

    def event(self, kind: str, message: str) -> None:
        """Note what happened."""
        self._rows["events"].append({"happened_at": time.time(), "kind": kind, "message": message[:500]})

    def worker_died(self, label: str) -> None:
        """Note that the process on a device ended by itself or was killed."""
        self.event(
            "worker_died", f"{label}: its process ended; its work goes back, and runs/{self.run_id}/workers says why"
        )

    def sample(self, engine: str, device: str, values: dict[str, Any]) -> None:
        """Note how busy an engine is: sampled_at, running, waiting, tokens_per_s, kv_use, prefix_hits."""
        self._rows["engine_samples"].append({"engine": engine, "device": device, **values})
        if time.monotonic() - self._flushed > FLUSH_EVERY_S:
            parts = self._flush()
            self.ledger.submit(lambda c: ingest.ingest_run_parts(c, parts))  # nobody waits for it

    def _flush(self) -> list[Path]:
        """Write what was collected; returns the files."""
        import polars as pl

        schemas: dict[str, dict[str, Any]] = {
            "events": {"happened_at": pl.Float64, "kind": pl.String, "message": pl.String},
            "engine_samples": {
                "engine": pl.String, "device": pl.String, "sampled_at": pl.Float64, "running": pl.Int64,
                "waiting": pl.Int64, "tokens_per_s": pl.Float64, "kv_use": pl.Float64, "prefix_hits": pl.Float64,
            },
        }  # fmt: skip
        written = []
        for kind, rows in self._rows.items():
            if rows:
                frame = pl.DataFrame(rows, schema=schemas[kind])
                path = self.folder / f"{kind}-{self._part:05d}.parquet"
                written.append(write_atomically(path, frame.write_parquet).path)
                rows.clear()
        self._part += 1
        self._flushed = time.monotonic()
        return written

    def finish(self, outcome: str) -> None:
        """Write the last of it and how the run ended."""
        self._body |= {"ended_at": datetime.now(UTC).isoformat(), "outcome": outcome}
        self._write_body()
        self._flush()
        self.ledger.call(self._ingest)

    def _ingest(self, connection: DuckDBPyConnection) -> None:
        ingest.ingest_run(connection, self.ledger.workspace, self.run_id)

    def _write_body(self) -> None:
        write_text(self.folder / "run.json", json.dumps(self._body, indent=1, sort_keys=True))
