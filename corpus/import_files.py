"""What an imported corpus is on disk: response shards, and the files of candidates, a build and an import.

Candidates and build have the form that every build has, so that views, texts and `ledger rebuild` know them as they
are: a prompt is taken once, and other rows with the same prompt are drops named `replica`, whose answers are there
all the same. imports/<import_id>/ says which row each answer comes from; import.json is written last and names
every file with its digest. Chunks are worked on one at a time; all that is held of all of them is ids.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corpus.artefacts import Written, write_atomically, write_description, write_text
from corpus.candidate_files import SCHEMA_VERSION as CANDIDATES_VERSION
from corpus.candidate_files import TEXT_COLUMNS, drop_schema, padded, prompt_schema
from corpus.canonical import canonical_json
from corpus.imported import AnswerEncoder, answer_rows, shard_rows
from corpus.pools import Pool, read_chunk
from corpus.responses import SCHEMA_VERSION as RESPONSES_VERSION
from corpus.sources import FileDigests
from corpus.workspace import Workspace

if TYPE_CHECKING:
    import polars as pl

SCHEMA_VERSION = 1
REPLICA = "replica"
"""The reason of a row whose prompt another row has shown: its answers are replicas of that row's."""
SHOWN_COLUMNS = ["messages", "tools"]
WANTED_COLUMNS = ["response_id", "prompt_id", "recipe_id", "replica", "turn", "category", "source", "holdout"]
ORIGIN_COLUMNS = ["response_id", "file", "row_index", "upstream_id"]

Progress = Callable[[str], None]


@dataclass(frozen=True)
class ImportRows:
    """The rows of a corpus that hold prompts, in reading order and without texts.

    rows: prompt_id, replica, category, turns, prompt_chars, chunk, at (row in it), file, row_index, upstream_id.
    """

    pool: Pool
    rows: pl.DataFrame

    def by_chunk(self) -> Iterator[tuple[int, pl.DataFrame]]:
        """(number, its rows) of each chunk that has any."""
        import polars as pl

        for number in range(len(self.pool.chunks)):
            part = self.rows.filter(pl.col("chunk") == number)
            if part.height:
                yield number, part


@dataclass(frozen=True)
class Shards:
    """The response shards of an import, and what is in them: its answers without texts and tokens."""

    files: tuple[Written, ...]
    answers: pl.DataFrame


def write_shards(
    workspace: Workspace, rows: ImportRows, import_id: str, encoder: AnswerEncoder | None, digests: FileDigests,
    progress: Progress,
) -> Shards:  # fmt: skip
    """A response shard for each chunk; one that an earlier try wrote is taken as it is, its tokens with it."""
    import polars as pl

    files, answers = [], []
    for number, part in rows.by_chunk():
        progress(f"answers of chunk {number + 1:,} of {len(rows.pool.chunks):,}")
        whole = part.hstack(read_chunk(workspace, rows.pool, number, TEXT_COLUMNS)[part["at"]])
        found = answer_rows(whole, import_id)
        path = workspace.responses / f"import-{import_id}-{number:05}.parquet"
        if _holds(path, found["response_id"]):
            files.append(Written(path, path.stat().st_size, digests.sha256(path)))
        else:
            files.append(_write_shard(path, found if encoder is None else found.hstack(encoder.token_rows(whole))))
            digests.remember(path, files[-1].sha256)
        answers.append(found.drop("text"))
    return Shards(tuple(files), pl.concat(answers))


def _holds(path: Path, response_ids: pl.Series) -> bool:
    """True if a shard has these answers. Shards are whole or absent, and their name says how they were tokenised."""
    import polars as pl

    try:
        return pl.read_parquet(path, columns=["response_id"], glob=False)["response_id"].equals(response_ids)
    except (OSError, pl.exceptions.PolarsError):
        return False


def _write_shard(path: Path, answers: pl.DataFrame) -> Written:
    shard, metadata = shard_rows(answers), {"schema_version": RESPONSES_VERSION}
    return write_atomically(path, lambda to: shard.write_parquet(to, compression_level=3, metadata=metadata))


def write_artefacts(
    workspace: Workspace, rows: ImportRows, shards: Shards, body: dict[str, Any], digests: FileDigests
) -> None:
    """Everything else, import.json last.

    Args:
        body: import_id, recipe and labels, as import.json holds them.
    """
    import polars as pl

    import_id, name = body["import_id"], body["labels"]["name"]
    candidates, build = workspace.candidates(import_id), workspace.build(import_id)
    first = pl.col("replica") == 0
    kept = rows.rows.filter(first).with_columns(source_rank=pl.int_range(pl.len(), dtype=pl.Int64).over("category"))
    counts = kept.group_by("category").len("available").sort("category")
    labelled = shards.answers.with_columns(source=pl.lit(name), holdout=pl.lit(value=False))
    lost = rows.rows.filter(~first).with_columns(
        pl.col("prompt_id").alias("winner_prompt_id"), winner_source=pl.lit(name), reason=pl.lit(REPLICA)
    )
    written = [
        *shards.files,
        write_atomically(
            candidates / "prompts.parquet", lambda to: _write_prompts(to, workspace, rows.pool, kept, name)
        ),
        _write_frame(candidates / "drops.parquet", _of_import(lost, rows.pool, name, drop_schema())),
        _write_frame(build / "rounds" / "0.parquet", _rounds(counts, name)),
        _write_frame(build / "responses.parquet", labelled.select(WANTED_COLUMNS)),
        _write_frame(workspace.imported(import_id) / "answers.parquet", labelled.select(ORIGIN_COLUMNS)),
        write_text(build / "recipes.json", json.dumps({import_id: body["recipe"]}, indent=1, sort_keys=True)),
    ]
    pools = [{"source": name, "pool_id": rows.pool.pool_id, "chunks": len(rows.pool.chunks)}]
    ordered = {
        "schema_version": CANDIDATES_VERSION,
        "candidates_id": import_id,
        "pools": pools,
        "rows": kept.height,
        "counts": [[category, name, False, available] for category, available in counts.iter_rows()],
        "dropped": {name: {REPLICA: lost.height}} if lost.height else {},
        "files": {path.path.name: path.sha256 for path in written if path.path.parent == candidates},
    }
    written += [
        write_description(candidates / "candidates.json", ordered),
        write_description(build / "build.json", _build_body(body, pools[0], kept.height)),
    ]
    for one in written:
        digests.remember(one.path, one.sha256)
    states = Counter(shards.answers["state"].to_list())
    more = {
        "schema_version": SCHEMA_VERSION,
        "pool_id": rows.pool.pool_id,
        "rows": rows.pool.rows,
        "prompts": kept.height,
        "answers": shards.answers.height,
        "accepted": states["accepted"],
        "created_at": datetime.now(UTC).isoformat(),
        "files": {one.path.relative_to(workspace.root).as_posix(): one.sha256 for one in written},
    }
    write_description(workspace.imported(import_id) / "import.json", body | more)


def _build_body(body: dict[str, Any], pool: dict[str, Any], prompts: int) -> dict[str, Any]:
    """build.json of an import: nothing was declared, so it has no targets and no seed."""
    source = {
        "weight": None,
        "priority": 0,
        "license": body["labels"]["license"],
        "category_rule": canonical_json("classify"),
    }
    return {
        "schema_version": 1,
        "kind": "import",
        "build_id": body["import_id"],
        "candidates_id": body["import_id"],
        "name": body["labels"]["name"],
        "seed": None,
        "unit": "prompts",
        "total": prompts,
        "shortage": None,
        "tolerance": None,
        "created_at": datetime.now(UTC).isoformat(),
        "targets": [],
        "sources": [{**pool, **source}],
    }


def _rounds(counts: pl.DataFrame, name: str) -> pl.DataFrame:
    """Every prompt of every category, taken once."""
    import polars as pl

    return counts.select(
        "category",
        source=pl.lit(name),
        holdout=pl.lit(value=False),
        prefix=pl.col("available").cast(pl.Int64),
        available=pl.col("available").cast(pl.Int64),
        round=pl.lit(0, pl.Int32),
    )


def _of_import(rows: pl.DataFrame, pool: Pool, name: str, schema: dict[str, Any]) -> pl.DataFrame:
    """Rows as candidates' files have them; what an import does not say is null."""
    import polars as pl

    said = rows.with_columns(source=pl.lit(name), pool_id=pl.lit(pool.pool_id), holdout=pl.lit(value=False))
    return padded(said, schema)


def _write_frame(path: Path, frame: pl.DataFrame) -> Written:
    return write_atomically(path, lambda to: frame.write_parquet(to, compression_level=1))


def _write_prompts(path: Path, workspace: Workspace, pool: Pool, kept: pl.DataFrame, name: str) -> None:
    """Write the prompts with their texts, chunk by chunk; the corpus's answers are in the response shards."""
    import polars as pl
    import pyarrow.parquet as pq

    metadata = {"schema_version": str(CANDIDATES_VERSION)}
    schema = pl.DataFrame(schema=prompt_schema()).to_arrow().schema.with_metadata(metadata)
    with path.open("wb") as file, pq.ParquetWriter(file, schema, compression="zstd", compression_level=1) as writer:
        for (number,), part in kept.group_by("chunk", maintain_order=True):
            texts = read_chunk(workspace, pool, int(number), SHOWN_COLUMNS)[part["at"]]
            prompts = _of_import(part.hstack(texts), pool, name, prompt_schema())
            writer.write_table(prompts.to_arrow().cast(schema))
