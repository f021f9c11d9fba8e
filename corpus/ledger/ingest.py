"""From artefacts to ledger rows: the only way in, for a run that writes and for `ledger rebuild` alike.

One function a kind of artefact, each set-wise and safe to run twice. An artefact says everything about itself
(a JSON file beside its parquet), so the whole ledger can be made again from the workspace. Files come in by
name order: for one response_id the lowest shard and row win.
"""

from __future__ import annotations

import glob
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corpus.acceptance import nonsense
from corpus.artefacts import sha256_file
from corpus.errors import DamagedError
from corpus.set_aside import read_set_aside
from corpus.shards import shard_index
from corpus.workspace import Workspace

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection as Connection


def ingest_pool(connection: Connection, workspace: Workspace, pool_id: str) -> None:
    """pools/<pool_id>/: what was read from one source. Chunks are append-only; known ones are left alone."""
    folder = workspace.pool(pool_id)
    pool = _json(folder / "pool.json")
    chunks = pool["chunks"]
    _replace(
        connection,
        "pools",
        {"pool_id": pool_id},
        {
            **{key: pool[key] for key in ("dataset", "config", "split", "revision", "license")},
            "format": _formats(pool),
            "where_sql": pool["where"],
            "row_limit": pool["limit"],
            "trust_remote_code": pool["trust_remote_code"],
            "chunks": len(chunks),
            "rows_read": sum(chunk["rows"] for chunk in chunks),
            "rows_left_out": sum(chunk["left_out"] for chunk in chunks),
            "complete": pool["complete"],
            "rows_unread": pool.get("rows_unread"),  # an older draftmill did not count them
        },
    )
    known = connection.execute(
        "SELECT coalesce(max(chunk), -1) FROM source_rows WHERE pool_id = ?", [pool_id]
    ).fetchone()
    for number, chunk in enumerate(chunks):
        if number > (known[0] if known else -1):
            # a chunk of an older draftmill is of one file, which pool.json names
            file, named = ("?", [chunk["file"]]) if "file" in chunk else ("file", [])
            connection.execute(
                f"INSERT INTO source_rows SELECT ?, ?::INTEGER, {file}, row_index, upstream_id, upstream_label, "
                "prompt_id, reason, detail FROM read_parquet(?)",
                [pool_id, number, *named, _literal(folder / f"{number}.parquet")],
            )


def ingest_candidates(connection: Connection, workspace: Workspace, candidates_id: str) -> None:
    """candidates/<id>/: the nested order, and what was dropped on the way to it."""
    folder = workspace.candidates(candidates_id)
    for table in ("prompts", "drops"):
        connection.execute(f"DELETE FROM {table} WHERE candidates_id = ?", [candidates_id])
    connection.execute(
        "INSERT INTO prompts SELECT ?, prompt_id, source, category, holdout, source_rank, turns, prompt_chars, "
        "prompt_tokens, pool_id, chunk, file, row_index, upstream_id FROM read_parquet(?)",
        [candidates_id, _literal(folder / "prompts.parquet")],
    )
    drops = _literal(folder / "drops.parquet")
    lifted = _lifted(connection, drops, "similarity", "eval_set", "eval_item", "overlap")
    connection.execute(
        "INSERT INTO drops SELECT ?, source, pool_id, chunk, file, row_index, prompt_id, reason, detail, "
        f"winner_prompt_id, winner_source, {lifted}, upstream_id FROM read_parquet(?)",
        [candidates_id, drops],
    )


def ingest_build(connection: Connection, workspace: Workspace, build_id: str) -> None:
    """builds/<build_id>/: shares, sources, and the prefixes that every round takes."""
    folder = workspace.build(build_id)
    build = _json(folder / "build.json")
    candidates = _literal(workspace.candidates(build["candidates_id"]) / "prompts.parquet")
    for table in ("sources", "build_targets", "selections"):
        connection.execute(f"DELETE FROM {table} WHERE build_id = ?", [build_id])
    for source in build["sources"]:
        _insert(connection, "sources", {"build_id": build_id, **source})
    for target in build["targets"]:
        _insert(connection, "build_targets", {"build_id": build_id, **target})
    rounds = f"{_literal(folder / 'rounds')}/*.parquet"
    connection.execute(
        f"""
        INSERT INTO selections
        WITH ordered AS (
            SELECT prompt_id, category, source, holdout, source_rank,
                   count(*) OVER (PARTITION BY category, source, holdout) AS there
            FROM read_parquet(?)
        ),
        rounds AS (
            SELECT category, source, holdout, prefix, round, {_lifted(connection, rounds, "available")}
            FROM read_parquet(?)
        ),
        chosen AS (
            SELECT p.prompt_id, p.category, p.source, p.holdout, p.source_rank, coalesce(t.available, p.there) AS n,
                   unnest(range((t.prefix - p.source_rank + n - 1) // n)) AS replica
            FROM ordered p JOIN rounds t USING (category, source, holdout)
            WHERE p.source_rank < t.prefix AND t.round = (SELECT max(round) FROM rounds)
        )
        SELECT ?, c.prompt_id, c.replica, c.category, c.source, c.holdout, min(t.round)
        FROM chosen c JOIN rounds t USING (category, source, holdout)
        WHERE c.source_rank + c.replica * c.n < t.prefix
        GROUP BY c.prompt_id, c.replica, c.category, c.source, c.holdout
        """,
        [candidates, rounds, build_id],
    )
    counts = connection.execute(
        "SELECT count(*) FILTER (NOT holdout), count(*) FILTER (holdout) FROM selections WHERE build_id = ?",
        [build_id],
    ).fetchone()
    assert counts is not None
    _replace(
        connection,
        "builds",
        {"build_id": build_id},
        {
            **{key: build[key] for key in ("candidates_id", "name", "seed", "unit", "total", "shortage")},
            "tolerance": build["tolerance"],
            "selected": counts[0],
            "held_out": counts[1],
            "created_at": _time(build["created_at"]),
        },
    )


def ingest_response_plan(connection: Connection, workspace: Workspace, build_id: str) -> None:
    """builds/<build_id>/responses.parquet and recipes.json: the answers that the build wants."""
    folder = workspace.build(build_id)
    if not (folder / "responses.parquet").exists():
        return
    for recipe_id, body in _json(folder / "recipes.json").items():
        _replace(
            connection,
            "recipes",
            {"recipe_id": recipe_id},
            {
                "model": body["target"]["model"],
                "revision": body["target"]["revision"],
                "dtype": body["dtype"],
                "thinking": body["thinking"],
                "temperature": body["sampling"]["temperature"],
                "max_tokens": body["max_tokens"],
                "body": json.dumps(body, sort_keys=True),
            },
        )
    connection.execute("DELETE FROM build_responses WHERE build_id = ?", [build_id])
    wanted = _literal(folder / "responses.parquet")
    connection.execute(
        "INSERT INTO build_responses SELECT ?, response_id, prompt_id, recipe_id, replica, turn, category, source, "
        f"holdout, {_lifted(connection, wanted, 'left_out')} FROM read_parquet(?)",
        [build_id, wanted],
    )


def ingest_response_shard(connection: Connection, path: Path) -> int:
    """responses/<shard>.parquet: every attempt in it; returns its rows.

    A second accepted answer of one response_id (two coordinators' worth of luck) is kept and marked; the lowest
    shard and row are the first, whichever file comes in first.
    """
    connection.execute("DELETE FROM responses WHERE shard = ?", [path.name])
    lifted = _lifted(connection, _literal(path), "notes", "reasoning_tokens", "extends_turn")
    connection.execute(
        f"""
        INSERT INTO responses
        SELECT response_id, prompt_id, recipe_id, replica, turn, attempt, state, reason,
               finish_reason, stop_reason, len(prompt_token_ids), len(token_ids), seed, engine, device,
               to_timestamp(queued_at), to_timestamp(started_at), to_timestamp(first_token_at), to_timestamp(ended_at),
               run_id, ?, file_row_number, {lifted}
        FROM read_parquet(?, file_row_number = true) ORDER BY file_row_number
        """,
        [path.name, _literal(path)],
    )
    connection.execute(
        """
        WITH ranked AS (
            SELECT shard, shard_row, state, row_number() OVER (PARTITION BY response_id ORDER BY shard, shard_row) AS n
            FROM responses
            WHERE (state = 'accepted' OR reason = 'answered_twice')
              AND response_id IN (SELECT response_id FROM responses WHERE shard = ?)
        )
        UPDATE responses SET state = CASE WHEN n = 1 THEN 'accepted' ELSE 'rejected' END,
                             reason = CASE WHEN n = 1 THEN NULL ELSE 'answered_twice' END
        FROM ranked
        WHERE responses.shard = ranked.shard AND responses.shard_row = ranked.shard_row
          AND (n = 1) <> (ranked.state = 'accepted')
        """,
        [path.name],
    )
    rows = connection.execute("SELECT count(*) FROM responses WHERE shard = ?", [path.name]).fetchone()
    count = int(rows[0]) if rows else 0
    _replace(
        connection,
        "response_shards",
        {"shard": path.name},
        {"rows": count, "size_bytes": path.stat().st_size, "sha256": sha256_file(path)},
    )
    return count


def ingest_import(connection: Connection, workspace: Workspace, import_id: str) -> None:
    """imports/<import_id>/: what an imported corpus is, and the row that each of its answers comes from."""
    folder = workspace.imported(import_id)
    body = _json(folder / "import.json")
    target = body["recipe"]["target"]
    _replace(
        connection,
        "imports",
        {"import_id": import_id},
        {
            "name": body["labels"]["name"],
            **{key: target[key] for key in ("model", "revision", "tokenizer", "template")},
            **{key: body[key] for key in ("rows", "prompts", "answers", "accepted")},
            "created_at": _time(body["created_at"]),
        },
    )
    connection.execute("DELETE FROM imported_answers WHERE import_id = ?", [import_id])
    connection.execute(
        "INSERT INTO imported_answers SELECT ?, response_id, file, row_index, upstream_id FROM read_parquet(?)",
        [import_id, _literal(folder / "answers.parquet")],
    )


def enter_import(connection: Connection, workspace: Workspace, import_id: str) -> None:
    """Everything of an imported corpus but its response shards: it is pool, candidates and build too."""
    ingest_pool(connection, workspace, _json(workspace.imported(import_id) / "import.json")["pool_id"])
    ingest_candidates(connection, workspace, import_id)
    ingest_build(connection, workspace, import_id)
    ingest_response_plan(connection, workspace, import_id)
    ingest_import(connection, workspace, import_id)


def ingest_capture(connection: Connection, workspace: Workspace, capture_id: str) -> None:
    """hidden/<capture_id>/: capture.json, and the rows that could not be captured, nor were since."""
    body = _json(workspace.hidden(capture_id) / "capture.json")
    keys = ("model", "revision", "layer_ids", "final_state", "dtype", "hidden_size")
    _replace(connection, "captures", {"capture_id": capture_id}, {key: body[key] for key in keys})
    connection.execute("DELETE FROM hidden_failures WHERE capture_id = ?", [capture_id])
    for response_id, entry in read_set_aside(workspace.hidden(capture_id)).items():
        _insert(connection, "hidden_failures", {"capture_id": capture_id, "response_id": response_id, **asdict(entry)})
    connection.execute(
        "DELETE FROM hidden_failures WHERE capture_id = $1 "
        "AND response_id IN (SELECT response_id FROM hidden_rows WHERE capture_id = $1)",
        [capture_id],
    )


def ingest_hidden_shard(connection: Connection, path: Path, sha256: str | None = None) -> int:
    """hidden/<capture_id>/<shard>.safetensors; returns its rows, which are no longer set aside.

    Raises:
        UserError: the file is not a shard, or one of another capture than its folder's.
    """
    meta, response_ids, tokens = shard_index(path)
    if path.parent.name != meta.capture_id:
        raise DamagedError(f"{path}: a shard of capture {meta.capture_id} in the folder of {path.parent.name}")
    key = {"capture_id": meta.capture_id, "shard": path.name}
    connection.execute("DELETE FROM hidden_rows WHERE capture_id = ? AND shard = ?", list(key.values()))
    connection.execute(
        "INSERT INTO hidden_rows SELECT ?, unnest(?::VARCHAR[]), ?, unnest(?::BIGINT[]), unnest(?::BIGINT[])",
        [meta.capture_id, response_ids, path.name, list(range(len(response_ids))), tokens],
    )
    connection.execute(
        "DELETE FROM hidden_failures WHERE capture_id = ? AND list_contains(?::VARCHAR[], response_id)",
        [meta.capture_id, response_ids],
    )
    _replace(
        connection,
        "hidden_shards",
        key,
        {
            "rows": len(response_ids),
            "tokens": sum(tokens),
            "size_bytes": path.stat().st_size,
            "sha256": sha256 or sha256_file(path),
        },
    )
    return len(response_ids)


def ingest_drafter(connection: Connection, workspace: Workspace, drafter_id: str) -> None:
    """drafters/<drafter_id>/: what it is, what it was trained on, and what was measured."""
    folder = workspace.drafter(drafter_id)
    body = _json(folder / "drafter.json")
    for table in ("drafter_responses", "train_metrics", "acceptance"):
        connection.execute(f"DELETE FROM {table} WHERE drafter_id = ?", [drafter_id])
    keys = ("build_id", "capture_id", "algorithm", "steps", "path", "rows")
    _replace(
        connection,
        "drafters",
        {"drafter_id": drafter_id},
        {key: body[key] for key in keys}
        | {"training": json.dumps(body["training"], sort_keys=True), "created_at": _time(body["created_at"])},
    )
    if (folder / "responses.parquet").exists():
        connection.execute(
            "INSERT INTO drafter_responses SELECT ?, response_id FROM read_parquet(?)",
            [drafter_id, _literal(folder / "responses.parquet")],
        )
    if (folder / "metrics.parquet").exists():
        connection.execute(
            "INSERT INTO train_metrics SELECT ?, step, epoch, metric, category, value FROM read_parquet(?)",
            [drafter_id, _literal(folder / "metrics.parquet")],
        )
    if (folder / "acceptance.json").exists():
        for row in _json(folder / "acceptance.json"):
            values = {key: row[key] for key in ("build_id", "category", "measured_by", "drafts", "accepted_tokens")}
            sums = {key: row.get(key) for key in ("sum_drafts_sq", "sum_accepted_sq", "sum_cross")}  # not all have them
            if wrong := nonsense(row, _block_size(body)):
                raise DamagedError(
                    f"{folder / 'acceptance.json'}: {wrong} ({row['measured_by']}, {row['category']}), which cannot "
                    "have been measured. Remove the file and run `draftmill serve-check`."
                )
            values |= {"rows": row["rows"], **sums, "measured_at": _time(row["measured_at"])}
            _insert(connection, "acceptance", {"drafter_id": drafter_id, **values})


def _block_size(body: dict[str, Any]) -> int | None:
    """Of a drafter, where its description says it."""
    size = body["training"].get("block_size")
    return size if isinstance(size, int) else None


def ingest_run(connection: Connection, workspace: Workspace, run_id: str) -> None:
    """runs/<run_id>/: when it ran, its events and its engine samples."""
    folder = workspace.run(run_id)
    body = _json(folder / "run.json")
    times = {key: _time(body[key]) for key in ("started_at", "ended_at")}
    _replace(
        connection,
        "runs",
        {"run_id": run_id},
        {key: body[key] for key in ("command", "build_id", "outcome")} | times,
    )
    for table in RUN_TABLES:
        connection.execute(f"DELETE FROM {table} WHERE run_id = ?", [run_id])
        if any(folder.glob(f"{table}-*.parquet")):
            _insert_run_rows(connection, table, run_id, f"{_literal(folder)}/{table}-*.parquet")


def ingest_run_parts(connection: Connection, paths: Sequence[Path]) -> None:
    """runs/<run_id>/<table>-<n>.parquet: parts of a run that goes on, which were not entered before."""
    for path in paths:
        _insert_run_rows(connection, path.stem.rpartition("-")[0], path.parent.name, _literal(path))


RUN_TABLES = {
    "events": ("to_timestamp(happened_at), kind, message", ()),
    "engine_samples": (
        "engine, device, to_timestamp(sampled_at), running, waiting, tokens_per_s, kv_use",
        ("prefix_hits",),
    ),
}
"""Of each table of a run the columns of its files, and those that an older draftmill did not write."""


def _insert_run_rows(connection: Connection, table: str, run_id: str, files: str) -> None:
    columns, newer = RUN_TABLES[table]
    # parts of one run are of one draftmill, but a rebuild may read any
    lifted = f", {_lifted(connection, files, *newer)}" if newer else ""
    connection.execute(f"INSERT INTO {table} SELECT ?, {columns}{lifted} FROM read_parquet(?)", [run_id, files])


def _formats(pool: dict[str, Any]) -> str | None:
    """The formats that rows of a pool were read as, the commonest first; what was recognised where none was."""
    counts: Counter[str] = Counter()
    for chunk in pool["chunks"]:
        counts.update(chunk.get("formats", {}))
    named = [form for form, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
    recognised = pool["format"]
    return ", ".join(named) or (json.dumps(recognised) if isinstance(recognised, dict) else recognised)


def _lifted(connection: Connection, files: str, *names: str) -> str:
    """These columns of parquet files, for a SELECT: NULL where an older draftmill wrote none."""
    described = connection.execute("DESCRIBE SELECT * FROM read_parquet(?)", [files]).fetchall()
    there = {row[0] for row in described}
    return ", ".join(name if name in there else f"NULL AS {name}" for name in names)


def _literal(path: Path) -> str:
    """A path that read_parquet takes as it is: a folder may well be called "runs [old]"."""
    return glob.escape(str(path))


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text).astimezone(UTC) if text else None


def _insert(connection: Connection, table: str, values: dict[str, Any]) -> None:
    names, marks = ", ".join(values), ", ".join("?" for _ in values)
    connection.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", list(values.values()))


def _replace(connection: Connection, table: str, key: dict[str, Any], values: dict[str, Any]) -> None:
    where = " AND ".join(f"{name} = ?" for name in key)
    connection.execute(f"DELETE FROM {table} WHERE {where}", list(key.values()))
    _insert(connection, table, {**key, **values})
