"""A workspace of a million made-up prompts and answers, for benchmarks that look at one.

The ledger is filled by INSERT … SELECT into the real schema; pools and response shards are real parquet files, as large
and in the order that their writers make them: chunks of 50,000 rows, a shard every five seconds of a night. Hidden
states, metrics and checkpoints are in the ledger alone; token ids in shards are sixteen an answer, whatever it counts.
Drops, rejections and the holdout come in known parts; equal arguments give equal ids.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corpus.artefacts import write_text
from corpus.chunks import chunk_schema
from corpus.ledger.writer import open_ledger
from corpus.responses import SCHEMA_VERSION, response_schema
from corpus.workspace import Workspace

if TYPE_CHECKING:
    import polars as pl
    from duckdb import DuckDBPyConnection as Connection

SOURCES = {
    "infinity-instruct": ("general", 0.16), "tulu": ("general", 0.08), "chats": ("general", 0.04),
    "code-feedback": ("coding", 0.22), "commits": ("coding", 0.14), "notebooks": ("coding", 0.09),
    "openmath": ("math", 0.08), "olympiads": ("math", 0.04), "tool-calls": ("agent", 0.06),
    "traces": ("agent", 0.03), "sql-and-shell": ("code-other", 0.06),
}  # fmt: skip
"""Name, category and share of the rows."""
SHARES = {"coding": 46, "general": 26, "math": 11, "agent": 9, "code-other": 7}
CHUNK_ROWS = 50_000
NIGHT_S = 12 * 3600
SHARD_S = 5
ENGINES = 8
NIGHT = datetime(2026, 3, 4, 19, tzinfo=UTC)
RUN, BUILD_RUN = "20260304T190000000Z-10ad00", "20260304T180000000Z-b01d00"
CANDIDATES = "c" * 24
BUILDS = {"a" * 24: ("balanced-v1", 0.72), "b" * 24: ("balanced-v2", 0.92)}
"""Id, name, and the part of each source's order that it takes."""
CAPTURE, DRAFTER, MODEL = "d" * 24, "e" * 24, "Qwen/Qwen3.6-27B"
WORDS = (
    "of",
    "the",
    "a",
    "to",
    "is",
    "that",
    "it",
    "in",
    "for",
    "on",
    "as",
    "with",
    "be",
    "at",
    "this",
    "from",
    "when",
)


def make_workspace(root: Path, prompts: int) -> None:
    """Make it in an empty folder; a minute and 1.2 GB for a million."""
    workspace = Workspace(root)
    with open_ledger(workspace, "benchmark") as ledger:
        ledger.call(lambda c: _rows(c, prompts))
        ledger.call(_orders)
        ledger.call(_answers)
        ledger.call(_after)
        ledger.call(lambda c: _pool_files(c, workspace))
        ledger.call(lambda c: _shard_files(c, workspace))
        ledger.call(lambda c: _descriptions(c, workspace))


def _rows(c: Connection, prompts: int) -> None:
    """source_rows, pools, and what becomes of each row: 4.6% hold no prompt, 18.5% are dropped."""
    rows = round(prompts * 1.3)
    c.execute("CREATE TEMP MACRO draw(a, b := 0) AS (hash(a, b) >> 1)::BIGINT")
    c.execute("CREATE TEMP TABLE origin (source VARCHAR, category VARCHAR, low DOUBLE, high DOUBLE, pool_id VARCHAR)")
    low = 0.0
    for name, (category, share) in SOURCES.items():
        c.execute(
            "INSERT INTO origin VALUES ($1, $2, $3, $4, substr(md5($1), 1, 24))", [name, category, low, low + share]
        )
        low += share
    c.execute(
        f"""
        CREATE TEMP TABLE row_of AS
        SELECT source, category, pool_id, (n // {CHUNK_ROWS})::INTEGER AS chunk, source || '.parquet' AS file,
               n AS row_index, source || '-' || n AS upstream_id,
               CASE WHEN luck < 46 THEN list_value('not_text', 'no_user_turn', 'empty_prompt')[1 + luck % 3] END AS bad,
               CASE WHEN luck >= 46 AND luck < 231 THEN list_value('same_prompt', 'duplicate', 'near_duplicate',
                    'near_duplicate', 'contaminated', 'too_many_tokens', 'prompt_chars')[1 + luck % 7] END AS drop,
               i, luck, md5('prompt ' || i) AS prompt_id, (h // 1000 % 50 = 0) AS holdout,
               CASE WHEN h // 50000 % 10 = 0 THEN 2 ELSE 1 END AS turns, 120 + h // 500000 % 1500 AS chars
        FROM (
            SELECT o.*, r.i, r.i - ceil(o.low * {rows})::BIGINT AS n, draw(r.i) AS h, draw(r.i) % 1000 AS luck
            FROM range({rows}) r(i) JOIN origin o ON r.i >= ceil(o.low * {rows}) AND r.i < ceil(o.high * {rows})
        )
        ORDER BY i
        """
    )
    # a dropped row has the prompt of an earlier one, where that is why
    c.execute(
        "CREATE TEMP TABLE kept AS SELECT *, row_number() OVER (ORDER BY draw(i)) - 1 AS k FROM row_of "
        "WHERE bad IS NULL AND drop IS NULL"
    )
    c.execute(
        """
        INSERT INTO source_rows
        SELECT r.pool_id, r.chunk, r.file, r.row_index, r.upstream_id, r.category,
               CASE WHEN r.drop = 'same_prompt' THEN w.prompt_id WHEN r.bad IS NULL THEN r.prompt_id END, r.bad,
               CASE WHEN r.bad IS NOT NULL THEN 'column 3 is int' END
        FROM row_of r LEFT JOIN kept w ON w.k = r.i % (SELECT count(*) FROM kept) ORDER BY r.i
        """
    )
    c.execute(
        """
        INSERT INTO drops (candidates_id, source, pool_id, chunk, file, row_index, prompt_id, reason, detail,
                           winner_prompt_id, winner_source, similarity, eval_set, eval_item, overlap, upstream_id)
        SELECT $1, r.source, r.pool_id, r.chunk, r.file, r.row_index,
               CASE WHEN drop_kind = 'same_prompt' THEN w.prompt_id ELSE r.prompt_id END, drop_kind,
               CASE WHEN drop_kind = 'too_many_tokens' THEN (3100 + r.i % 900)::VARCHAR END,
               CASE WHEN twin THEN w.prompt_id END, CASE WHEN twin THEN w.source END,
               CASE WHEN drop_kind = 'near_duplicate' THEN 0.7 + r.luck / 1000 END,
               CASE WHEN drop_kind = 'contaminated' THEN 'evals/gsm8k.jsonl' END,
               CASE WHEN drop_kind = 'contaminated' THEN (r.i % 1319)::VARCHAR END,
               CASE WHEN drop_kind = 'contaminated' THEN 'how many apples are left when she has given three away' END,
               r.upstream_id
        FROM (SELECT *, drop AS drop_kind, drop IN ('same_prompt', 'duplicate', 'near_duplicate') AS twin FROM row_of
              WHERE drop IS NOT NULL) r
        LEFT JOIN kept w ON w.k = r.i % (SELECT count(*) FROM kept) ORDER BY r.source, drop_kind, r.i
        """,
        [CANDIDATES],
    )
    c.execute(
        """
        INSERT INTO pools (pool_id, dataset, config, split, revision, format, license, trust_remote_code, chunks,
                           rows_read, rows_left_out, complete, rows_unread)
        SELECT pool_id, 'org/' || source, 'default', 'train', substr(md5('revision' || source), 1, 40), 'messages',
               'apache-2.0', false, max(chunk) + 1, count(*), 0, true, 0 FROM row_of GROUP BY pool_id, source
        """
    )


def _orders(c: Connection) -> None:
    """prompts in the nested order, builds, sources, targets, selections."""
    c.execute(
        """
        INSERT INTO prompts (candidates_id, prompt_id, source, category, holdout, source_rank, turns, prompt_chars,
                             prompt_tokens, pool_id, chunk, file, row_index, upstream_id)
        SELECT $1, prompt_id, source, category, holdout,
               row_number() OVER (PARTITION BY source, category, holdout ORDER BY chunk, prompt_id) - 1, turns, chars,
               chars // 4, pool_id, chunk, file, row_index, upstream_id
        FROM kept ORDER BY source, category, holdout, chunk, prompt_id
        """,
        [CANDIDATES],
    )
    for number, (build_id, (name, part)) in enumerate(BUILDS.items()):
        c.execute(
            """
            INSERT INTO selections
            SELECT $1, prompt_id, 0, category, source, holdout, 0 FROM (
                SELECT *, count(*) OVER (PARTITION BY source, category, holdout) AS there FROM prompts
                WHERE candidates_id = $3
            ) WHERE holdout OR source_rank < there * $2 ORDER BY draw(prompt_id)
            """,
            [build_id, part, CANDIDATES],
        )
        c.execute(
            """
            INSERT INTO builds SELECT $1, $2, $3, 17, 'prompts', count(*) FILTER (NOT holdout),
            count(*) FILTER (NOT holdout), count(*) FILTER (holdout), 'fail', 0.5, $4
            FROM selections WHERE build_id = $1
            """,
            [build_id, CANDIDATES, name, NIGHT.replace(hour=17 + number)],
        )
        c.execute(
            """
            INSERT INTO sources SELECT $1, o.source, o.pool_id, p.chunks, 1, 0, 'apache-2.0', '"' || o.category || '"'
            FROM origin o JOIN pools p USING (pool_id)
            """,
            [build_id],
        )
        for category, share in SHARES.items():
            c.execute(
                "INSERT INTO build_targets SELECT $1, $2, $3, round(total * $3), NULL FROM builds WHERE build_id = $1",
                [build_id, category, share / sum(SHARES.values())],
            )


def _answers(c: Connection) -> None:
    """recipes, build_responses and responses: 97.2% accepted at once, the others rejected and mostly tried again."""
    for number, thinking in enumerate((False, True)):
        c.execute(
            "INSERT INTO recipes VALUES ($1, $2, 'f00d', 'bfloat16', $3, 0.7, 4096, '{}')",
            [str(number) * 24, MODEL, thinking],
        )
    c.execute(
        """
        CREATE TEMP TABLE wanted AS
        SELECT md5(k.prompt_id || '/' || t.turn) AS response_id, k.prompt_id, k.category, k.source, k.holdout,
               (draw(k.prompt_id) % 2)::VARCHAR AS bit, t.turn::INTEGER AS turn, k.chars
        FROM kept k, unnest(range(k.turns)) t(turn)
        """
    )
    for build_id in BUILDS:
        c.execute(
            """
            INSERT INTO build_responses
            SELECT s.build_id, w.response_id, w.prompt_id, repeat(w.bit, 24), 0, w.turn, w.category, w.source,
                   w.holdout, CASE WHEN draw(w.response_id) % 400 = 0 THEN 'earlier_turn_rejected' END
            FROM selections s JOIN wanted w USING (prompt_id) WHERE s.build_id = $1 ORDER BY draw(w.prompt_id), w.turn
            """,
            [build_id],
        )
    c.execute(
        f"""
        CREATE TEMP TABLE tries AS
        WITH asked AS (
            SELECT w.*, draw(w.response_id, 1) AS h FROM wanted w SEMI JOIN build_responses USING (response_id)
            WHERE draw(w.response_id) % 400 <> 0 AND draw(w.response_id) % 300 <> 1
        ), tried AS (
            SELECT *, 0 AS attempt,
                   CASE WHEN h % 1000 < 28 THEN list_value('truncated', 'repetition', 'empty')[1 + h % 3] END AS reason
            FROM asked
            UNION ALL
            SELECT *, 1, CASE WHEN h % 1000 < 4 THEN 'repetition' END FROM asked WHERE h % 1000 < 28
        )
        SELECT *, h // 1000 % 8 AS engine, 40 + h // 8000 % 1600 AS tokens,
               (attempt * 0.3 + row_number() OVER (ORDER BY draw(response_id, attempt)) / count(*) OVER ()) / 1.3
               * {NIGHT_S} AS ended_s
        FROM tried
        """
    )
    c.execute(
        f"""
        INSERT INTO responses (response_id, prompt_id, recipe_id, replica, turn, attempt, state, reason, finish_reason,
            stop_reason, prompt_tokens, response_tokens, seed, engine, device, queued_at, started_at, first_token_at,
            ended_at, run_id, shard, shard_row, notes, reasoning_tokens, extends_turn)
        SELECT response_id, prompt_id, repeat(bit, 24), 0, turn, attempt,
               CASE WHEN reason IS NULL THEN 'accepted' ELSE 'rejected' END, reason,
               CASE WHEN reason = 'truncated' OR h % 97 = 0 THEN 'length' ELSE 'stop' END, NULL,
               chars // 4 + 20 + turn * 300,
               CASE WHEN reason = 'empty' THEN 0 ELSE tokens END, h % 1000000, 'vllm 0.32.0', 'cuda:' || engine,
               moment - INTERVAL 40 SECOND, moment - INTERVAL 30 SECOND, moment - INTERVAL 29 SECOND, moment, $1,
               format('{{}}-{{:05d}}.parquet', $1::VARCHAR, number),
               row_number() OVER (PARTITION BY number ORDER BY ended_s, response_id) - 1,
               CASE WHEN reason IS NULL THEN [] ELSE [reason] END, CASE WHEN bit = '1' THEN tokens // 2 END,
               CASE WHEN turn = 1 THEN 0 END
        FROM (SELECT *, $2::TIMESTAMPTZ + to_seconds(ended_s) AS moment, (ended_s // {SHARD_S})::BIGINT AS number
              FROM tries)
        ORDER BY number, ended_s, response_id
        """,
        [RUN, NIGHT],
    )


def _after(c: Connection) -> None:
    """Hidden rows, a drafter, acceptance, metrics, runs, samples and events."""
    c.execute(
        "INSERT INTO captures VALUES ($1, $2, 'f00d', [1, 16, 31, 46, 61], 'before_norm', 'bfloat16', 5120)",
        [CAPTURE, MODEL],
    )
    c.execute(
        """
        INSERT INTO hidden_rows
        SELECT $1, response_id, md5((n // 400)::VARCHAR) || '.safetensors', n % 400, tokens FROM (
            SELECT response_id, prompt_tokens + response_tokens AS tokens,
                   row_number() OVER (ORDER BY (prompt_tokens + response_tokens) // 64, draw(response_id)) - 1 AS n
            FROM responses WHERE state = 'accepted' AND draw(response_id, 2) % 12 <> 0
        ) ORDER BY n
        """,
        [CAPTURE],
    )
    c.execute(
        "INSERT INTO hidden_shards SELECT capture_id, shard, count(*), sum(tokens), sum(tokens) * 61440, md5(shard) "
        "FROM hidden_rows GROUP BY ALL"
    )
    newest = list(BUILDS)[-1]
    c.execute(
        """
        INSERT INTO drafter_responses
        SELECT $1, b.response_id FROM build_responses b SEMI JOIN hidden_rows USING (response_id)
        WHERE b.build_id = $2 AND NOT b.holdout AND b.left_out IS NULL ORDER BY draw(b.response_id, 3)
        """,
        [DRAFTER, newest],
    )
    c.execute(
        "INSERT INTO drafters SELECT $1, $2, $3, 'dflash', 24000, '{}', 'drafters/' || $1 || '/export', count(*), $4 "
        "FROM drafter_responses",
        [DRAFTER, newest, CAPTURE, NIGHT.replace(day=6)],
    )
    for measured_by in ("walk", "anchors", "vllm"):
        for number, category in enumerate(SHARES):
            sums = (None,) * 3 if measured_by == "vllm" else (9_000_000, 81_000_000, 26_000_000)
            c.execute(
                "INSERT INTO acceptance VALUES ($1, $2, $3, $4, 40000, $5, 200, $6, $7, $8, $9)",
                [DRAFTER, newest, category, measured_by, 90_000 + 9_000 * number, NIGHT.replace(day=6), *sums],
            )
    c.execute(
        "INSERT INTO train_metrics SELECT $1, s * 10, s // 800, m, NULL, 1 / (1 + s) FROM range(2400) t(s), "
        "unnest(['loss', 'accuracy']) u(m)",
        [DRAFTER],
    )
    c.execute(
        f"""
        INSERT INTO engine_samples
        SELECT $1, 'vllm 0.32.0', 'cuda:' || e, $2::TIMESTAMPTZ + to_seconds(s * 5), 256, greatest(0, 4000 - s), 2400
               + 300 * sin(s / 500 + e) + draw(s, e) % 200, 0.8 + draw(e, s) % 100 / 1000, 0.1
        FROM range({NIGHT_S} // 5) t(s), range({ENGINES}) u(e) ORDER BY s, e
        """,
        [RUN, NIGHT],
    )
    c.execute(
        "INSERT INTO runs VALUES ($1, 'build', $3, $4, $4, 'done'), ($2, 'generate', $3, $4, $5, 'done')",
        [BUILD_RUN, RUN, newest, NIGHT, NIGHT.replace(day=5, hour=7)],
    )
    c.execute(
        "INSERT INTO events SELECT $1, $2::TIMESTAMPTZ + to_seconds(s * 9), 'engine_ready', 'cuda:' || s % 8 "
        "FROM range(4000) t(s)",
        [RUN, NIGHT],
    )


def _text(seed: str, words: str) -> str:
    """SQL of a made-up text of so many words."""
    vocabulary = "[" + ", ".join(f"'{word}'" for word in WORDS) + "]"
    drawn = f"{vocabulary}[1 + draw({seed}, j) % {len(WORDS)}]"
    return f"array_to_string(list_transform(range({words}), lambda j: {drawn}), ' ')"


def _pool_files(c: Connection, workspace: Workspace) -> None:
    """pools/<pool_id>/<n>.parquet with texts."""
    for pool_id, source, chunks in c.execute(
        "SELECT pool_id, source, max(chunk) + 1 FROM row_of GROUP BY ALL ORDER BY 2"
    ).fetchall():
        described = []
        for chunk in range(chunks):
            frame = _frame(
                c,
                f"""
                SELECT r.row_index, r.file, r.upstream_id, r.upstream_label, r.prompt_id, r.prompt_id AS likeness,
                       '[{{"role":"user","content":"' || {_text("r.prompt_id", "16")} || '"}}]' AS messages,
                       '[]' AS tools, NULL AS original, 1 AS turns, 60 AS prompt_chars, 'messages' AS format,
                       60 AS letters,
                       r.reason, r.detail
                FROM source_rows r WHERE r.pool_id = '{pool_id}' AND r.chunk = {chunk} ORDER BY r.row_index
                """,
                chunk_schema(),
            )
            path = workspace.pool(pool_id) / f"{chunk}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            frame.write_parquet(path, compression_level=1, metadata={"schema_version": "2"})
            described.append(
                {
                    "files": [f"{source}.parquet"],
                    "rows": frame.height,
                    "left_out": 0,
                    "sha256": "",
                    "next": [1, 0, 0],
                    "formats": {"messages": frame.height},
                    "reasons": {},
                }
            )
        body = {"pool_id": pool_id, "dataset": f"org/{source}", "chunks": described, "complete": True}
        write_text(workspace.pool(pool_id) / "pool.json", json.dumps(body))


def _shard_files(c: Connection, workspace: Workspace) -> None:
    """responses/<shard>.parquet, one for every SHARD_S seconds of the night."""
    workspace.responses.mkdir(parents=True, exist_ok=True)
    shards = [row[0] for row in c.execute("SELECT DISTINCT shard FROM responses ORDER BY 1").fetchall()]
    c.execute(f"CREATE TEMP TABLE words_of AS SELECT n, {_text('n', '24 + n % 40')} AS text FROM range(4096) t(n)")
    at = 400
    for first in range(0, len(shards), at):
        last = shards[min(first + at, len(shards)) - 1]
        frame = _frame(
            c,
            f"""
            SELECT r.* REPLACE (epoch(queued_at) AS queued_at, epoch(started_at) AS started_at,
                                epoch(first_token_at) AS first_token_at, epoch(ended_at) AS ended_at),
                   [1, 2, 3, 4, 5, 6, 7, 8] AS prompt_token_ids, [9, 10, 11, 12, 13, 14, 15, 16] AS token_ids,
                   substr(response_id, 1, 8) || ' ' || w.text AS text, NULL AS token_logprobs
            FROM responses r JOIN words_of w ON w.n = draw(response_id) % 4096
            WHERE r.shard >= '{shards[first]}' AND r.shard <= '{last}' ORDER BY r.shard, r.shard_row
            """,
            None,
        )
        for (name,), part in frame.group_by("shard", maintain_order=True):
            rows = part.select([_cast(column, kind) for column, kind in response_schema().items()])
            path = workspace.responses / str(name)
            rows.write_parquet(path, compression_level=3, metadata={"schema_version": SCHEMA_VERSION})
            assert rows.height == part["shard_row"][-1] + 1
    sizes = _sizes(workspace.responses)
    c.execute(
        "INSERT INTO response_shards SELECT shard, count(*), any_value(s.size), md5(shard) FROM responses "
        "JOIN (SELECT unnest($1::VARCHAR[]) AS shard, unnest($2::BIGINT[]) AS size) s USING (shard) "
        "GROUP BY shard ORDER BY shard",
        [list(sizes), list(sizes.values())],
    )


def _sizes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in sorted(folder.glob("*.parquet"))}


def _descriptions(c: Connection, workspace: Workspace) -> None:
    """builds/<id>/: build.json, and manifest.lock.yaml as a short stand-in."""
    for build_id, (name, _) in BUILDS.items():
        body = {"build_id": build_id, "candidates_id": CANDIDATES, "name": name, "unit": "prompts", "schema_version": 1}
        write_text(workspace.build(build_id) / "build.json", json.dumps(body))
        mix = {"total": c.execute("SELECT total FROM builds WHERE build_id = ?", [build_id]).fetchall()[0][0]}
        manifest = {
            "name": name, "mix": {**mix, "shares": SHARES}, "target": {"model": MODEL},
            "sources": [{"name": source, "dataset": f"org/{source}"} for source in SOURCES],
        }  # fmt: skip
        write_text(
            workspace.build(build_id) / "manifest.lock.yaml", json.dumps({"build_id": build_id, "manifest": manifest})
        )
    write_text(workspace.run(RUN) / "run.json", json.dumps({"command": "generate", "outcome": "done"}))


def _frame(c: Connection, sql: str, schema: dict[str, Any] | None) -> pl.DataFrame:
    import polars as pl

    frame = pl.DataFrame(c.sql(sql).to_arrow_table())
    return frame if schema is None else frame.select([pl.col(name).cast(kind) for name, kind in schema.items()])


def _cast(column: str, kind: Any) -> Any:
    import polars as pl

    return pl.col(column).cast(kind)
