"""Candidates: the rows of all pools, labelled, filtered, deduplicated, and put into the nested order.

They are found again by identity. What is dropped on the way is a row with its reason. Both files are checked by
digest when they are used again; what is damaged is made again, and is the same.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from corpus import identity, selection
from corpus.artefacts import Written, write_atomically, write_text
from corpus.manifest import Manifest
from corpus.pools import Pool, load_chunks
from corpus.sources import FileDigests
from corpus.workspace import Workspace

if TYPE_CHECKING:
    import polars as pl

log = logging.getLogger("draftmill")

TokenCounter = Callable[[Sequence[tuple[str, str | None]]], list[int | None]]
"""(messages, tools) as stored to tokens of the first turn's prompt; None where the template refuses it."""

DROP_COLUMNS = (
    "source", "pool_id", "chunk", "file", "row_index", "upstream_id", "prompt_id", "reason", "detail",
    "winner_prompt_id", "winner_source",
)  # fmt: skip
PROMPT_COLUMNS = (
    "prompt_id", "messages", "tools", "category", "source", "holdout", "source_rank", "turns", "prompt_chars",
    "prompt_tokens", "pool_id", "chunk", "file", "row_index", "upstream_id",
)  # fmt: skip


def ordered_candidates(
    manifest: Manifest,
    workspace: Workspace,
    pools: list[Pool],
    count_tokens: TokenCounter | None,
    tokenizer: str | None,
    digests: FileDigests,
) -> tuple[str, pl.DataFrame]:
    """(candidates_id, the nested order with its light columns), made where it is not there whole.

    Args:
        count_tokens: needed where filters.prompt_tokens is set.
        tokenizer: identity of template and tokenizer, which then are part of the candidates'.
    """
    import polars as pl

    keys = [{"source": p.source.name, "pool_id": p.pool_id, "chunks": len(p.chunks)} for p in pools]
    needs_tokens = manifest.filters.prompt_tokens is not None
    identity_ = identity.candidates_id(manifest, keys, tokenizer if needs_tokens else None)
    folder = workspace.candidates(identity_)
    if not _are_ordered(folder, identity_, digests):
        selected = _select(manifest, workspace, pools, count_tokens if needs_tokens else None)
        frames = dict(zip(CANDIDATE_FILES, selected, strict=True))
        marks = {name: _write_frame(folder / name, frame).sha256 for name, frame in frames.items()}
        for name, sha256 in marks.items():
            digests.remember(folder / name, sha256)
        rows = frames["prompts.parquet"].height
        body = {"schema_version": 1, "candidates_id": identity_, "pools": keys, "rows": rows, "files": marks}
        write_text(folder / "candidates.json", json.dumps(body, indent=1, sort_keys=True))
    light = ["prompt_id", "category", "source", "holdout", "source_rank"]
    return identity_, pl.read_parquet(folder / "prompts.parquet", columns=light, glob=False)


_VERSION = {"schema_version": "1"}
CANDIDATE_FILES = ("prompts.parquet", "drops.parquet")


def _write_frame(path: Path, frame: pl.DataFrame) -> Written:
    return write_atomically(path, lambda to: frame.write_parquet(to, compression_level=1, metadata=_VERSION))


def _are_ordered(folder: Path, candidates_id: str, digests: FileDigests) -> bool:
    """True if these candidates are there, whole; what is damaged is made again, and is the same."""
    path = folder / "candidates.json"
    try:
        body = json.loads(path.read_text())
        files = body["files"]
        whole = body["candidates_id"] == candidates_id and all(
            digests.is_whole(folder / name, files[name]) for name in CANDIDATE_FILES
        )
    except FileNotFoundError:
        return False
    except (ValueError, KeyError, TypeError):
        whole = False
    if not whole:
        log.warning("%s is damaged or of an older draftmill; it is made again", folder)
    return whole


def _select(
    manifest: Manifest, workspace: Workspace, pools: list[Pool], count_tokens: TokenCounter | None
) -> tuple[pl.DataFrame, pl.DataFrame]:
    import polars as pl

    labelled = [
        selection.label_rows(load_chunks(workspace, pool), pool.source, sorted(manifest.mix.shares)).with_columns(
            pool_id=pl.lit(pool.pool_id)
        )
        for pool in pools
    ]
    rows = selection.filter_rows(pl.concat(labelled), manifest.filters)
    parsed = rows.filter(pl.col("prompt_id").is_not_null())
    unfit = parsed.filter(pl.col("reason").is_not_null())
    fit = selection.rank_rows(parsed.filter(pl.col("reason").is_null()), manifest.seed, manifest.mix.holdout)
    kept, lost = selection.deduplicate(fit, manifest.dedup.exact)
    tokens = pl.Series("prompt_tokens", [None] * kept.height, pl.Int64)
    if count_tokens is not None:
        texts = list(zip(kept["messages"].to_list(), kept["tools"].to_list(), strict=True))
        tokens = pl.Series("prompt_tokens", count_tokens(texts), pl.Int64)
    kept = kept.with_columns(tokens)
    if count_tokens is not None:
        refused = pl.when(pl.col("prompt_tokens").is_null()).then(pl.lit("template_error"))
        kept = selection.filter_rows(kept.with_columns(reason=refused), manifest.filters)
    too_long = kept.filter(pl.col("reason").is_not_null())
    kept = kept.filter(pl.col("reason").is_null())
    nothing = pl.lit(None, pl.String)
    dropped = [unfit, too_long.drop("order", "holdout", "prompt_tokens")]
    named = [frame.with_columns(winner_prompt_id=nothing, winner_source=nothing) for frame in dropped]
    drops = pl.concat([frame.select(DROP_COLUMNS) for frame in [*named, lost]])
    order = ["source", "chunk", "file", "row_index"]
    return selection.nested_order(kept).select(PROMPT_COLUMNS), drops.sort(order)
