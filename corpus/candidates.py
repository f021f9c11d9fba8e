"""Candidates: the rows of all pools, labelled, filtered, deduplicated, and put into the nested order.

They are found again by identity. What is dropped on the way is a row with its reason. Texts are never held all at
once: what selection needs to know of them comes from facts. How both lie on disk is in candidate_files.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from corpus import identity, near, selection
from corpus.candidate_files import drop_schema, known_candidates, padded, write_candidates
from corpus.derived import Derived
from corpus.evalsets import ResolvedEvalSets
from corpus.facts import Facts, TextRules, TokenCounter
from corpus.language import UNDETERMINED
from corpus.manifest import Manifest
from corpus.pools import Pool, load_chunks
from corpus.sources import FileDigests
from corpus.workspace import Workspace

if TYPE_CHECKING:
    import numpy.typing as npt
    import polars as pl

log = logging.getLogger("draftmill")

LIGHT_COLUMNS = [
    "row_index", "file", "upstream_id", "upstream_label", "prompt_id", "likeness", "turns", "prompt_chars", "letters",
    "reason", "detail",
]  # fmt: skip


@dataclass(frozen=True)
class Candidates:
    """One nested order: how many prompts each group has, and what became of the other rows."""

    candidates_id: str
    counts: dict[selection.GroupKey, int]
    dropped: dict[str, dict[str, int]]
    """Dropped rows of each source, by reason."""


@dataclass(frozen=True)
class TokenRule:
    """How prompts are measured: the counter, and the identity of template and tokenizer."""

    count: TokenCounter
    tokenizer: str


def ordered_candidates(
    manifest: Manifest,
    workspace: Workspace,
    pools: list[Pool],
    eval_sets: ResolvedEvalSets,
    tokens: TokenRule | None,
    digests: FileDigests,
    report: Callable[[str], None] = lambda text: None,
) -> Candidates:
    """The nested order over some pools, made where it is not there whole.

    `tokens` is needed where filters.prompt_tokens is set, and is left out of the identity elsewhere.
    """
    keys = [{"source": p.source.name, "pool_id": p.pool_id, "chunks": len(p.chunks)} for p in pools]
    rules = TextRules(manifest, eval_sets)
    tokens = tokens if manifest.filters.prompt_tokens is not None else None
    identity_ = identity.candidates_id(manifest, keys, rules.identity(), tokens.tokenizer if tokens else None)
    folder = workspace.candidates(identity_)
    body = known_candidates(folder, identity_, digests)
    if body is None:
        facts = Facts(workspace, rules, Derived(workspace, digests))
        selected = _Selection(manifest, pools, facts, tokens, report).run()
        body = write_candidates(folder, identity_, keys, workspace, pools, selected, digests)
    counts = {(category, source, holdout): rows for category, source, holdout, rows in body["counts"]}
    return Candidates(identity_, counts, dict(body["dropped"]))


class _Selection:
    """One pass from labelled rows to the nested order and the drops."""

    def __init__(
        self,
        manifest: Manifest,
        pools: list[Pool],
        facts: Facts,
        tokens: TokenRule | None,
        report: Callable[[str], None],
    ) -> None:
        self.manifest, self.facts, self.tokens, self.report = manifest, facts, tokens, report
        self.pools = sorted(pools, key=lambda pool: pool.source.name)
        self._drops: list[pl.DataFrame] = []

    def run(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """(kept rows in nested order, dropped rows), both without texts."""
        import polars as pl

        rows = self._take_out(selection.filter_rows(self._labelled(), self.manifest.filters))
        rows = self._take_out(self._decontaminated(rows))
        rows = selection.best_first(selection.rank_rows(rows, self.manifest.seed, self.manifest.mix.holdout))
        while True:
            kept, lost = self._deduplicated(rows)
            measured = self._measured(kept)
            unfit = measured.filter(pl.col("reason").is_not_null())
            if not unfit.height or not lost["winner_prompt_id"].is_in(unfit["prompt_id"].implode()).any():
                break
            # what lost to a prompt that is itself too long must be looked at again
            place = ["pool", "chunk", "at"]
            rows = rows.join(unfit.select(place), on=place, how="anti", maintain_order="left")
            self._take_out(unfit)
        kept = self._take_out(measured)
        self._drops.append(padded(lost, drop_schema()))
        drops = pl.concat(self._drops).sort("source", "chunk", "file", "row_index")
        return selection.nested_order(kept), drops

    def _take_out(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Rows without a reason; the others are drops, unless their pool has their reason already."""
        import polars as pl

        out = rows.filter(pl.col("reason").is_not_null() & pl.col("prompt_id").is_not_null())
        self._drops.append(padded(out, drop_schema()))
        return rows.filter(pl.col("reason").is_null())

    def _labelled(self) -> pl.DataFrame:
        import polars as pl

        categories = sorted(self.manifest.mix.shares)
        frames = []
        for number, pool in enumerate(self.pools):
            light = load_chunks(self.facts.workspace, pool, LIGHT_COLUMNS)
            named = {
                "pool": pl.lit(number, pl.Int32),
                "pool_id": pl.lit(pool.pool_id),
                "language": pl.lit(UNDETERMINED),
            }
            frame = light.with_columns(at=pl.int_range(pl.len(), dtype=pl.Int64).over("chunk"), **named)
            chunks = range(len(pool.chunks))
            if pool.source.category == "classify":
                frame = frame.with_columns(upstream_label=_joined(list(self._labels(pool))))
            if self.manifest.filters.language:
                frame = frame.with_columns(language=_joined([self.facts.languages(pool, chunk) for chunk in chunks]))
            frames.append(selection.label_rows(frame, pool.source, categories))
        return pl.concat(frames)

    def _labels(self, pool: Pool) -> Iterator[pl.Series]:
        """The classifier's category of each row, chunk after chunk: some of them take milliseconds a row."""
        for chunk in range(len(pool.chunks)):
            self.report(f"categories of {pool.source.name}: part {chunk + 1} of {len(pool.chunks)}")
            yield self.facts.labels(pool, chunk)

    def _decontaminated(self, rows: pl.DataFrame) -> pl.DataFrame:
        import polars as pl

        empty: dict[str, Any] = {"pool": pl.Int32, "chunk": pl.Int32, "at": pl.Int64}
        empty |= dict.fromkeys(("eval_set", "eval_item", "overlap"), pl.String)
        frames = [pl.DataFrame(schema=empty)]
        if self.manifest.decontaminate is not None:
            for number, pool in enumerate(self.pools):
                self.report(f"words and evaluation sets: {pool.source.name}")
                for chunk in range(len(pool.chunks)):
                    found = self.facts.overlaps(pool, chunk)
                    where = {"pool": pl.lit(number, pl.Int32), "chunk": pl.lit(chunk, pl.Int32)}
                    frames.append(found.with_columns(**where).select(list(empty)))
        joined = rows.join(pl.concat(frames), on=["pool", "chunk", "at"], how="left", maintain_order="left")
        overlaps = pl.col("eval_set").is_not_null()
        return joined.with_columns(reason=pl.when(overlaps).then(pl.lit("contaminated")).otherwise("reason"))

    def _deduplicated(self, rows: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        """(kept, lost) of rows that are best first; near losers name winners that are kept themselves."""
        import polars as pl

        self.report(f"duplicates among {rows.height:,} prompts")
        kept, lost = selection.deduplicate(rows, self.manifest.dedup.exact)
        threshold = self.manifest.dedup.near
        if threshold is None:
            return kept, lost
        self.report(f"near duplicates among {kept.height:,} prompts")
        memory, words = self.facts.pairs(), selection.first_words(kept["prompt_id"].to_list())
        texts_of = partial(self._texts, kept)
        compare = partial(memory.compare, words_R=words, count=partial(near.similarities, texts_of=texts_of))
        found = near.near_losers(self._bands(kept), threshold, texts_of, compare)
        memory.save()
        winners = kept[found.winner].select(winner_prompt_id="prompt_id", winner_source="source")
        losers = kept[found.loser].with_columns(
            winners["winner_prompt_id"],
            winners["winner_source"],
            similarity=pl.Series(found.similarity, dtype=pl.Float64),
            reason=pl.lit("near_duplicate"),
        )
        mask = np.ones(kept.height, dtype=bool)
        mask[found.loser] = False
        kept = kept.filter(pl.Series(mask))
        # an exact loser's winner may have lost in its turn: it names the one that is kept
        chain = losers.select(
            pl.col("prompt_id").alias("winner_prompt_id"), via="winner_prompt_id", via_source="winner_source"
        )
        lost = lost.join(chain, on="winner_prompt_id", how="left", maintain_order="left").with_columns(
            winner_prompt_id=pl.coalesce("via", "winner_prompt_id"),
            winner_source=pl.coalesce("via_source", "winner_source"),
        )
        return kept, pl.concat([lost.drop("via", "via_source"), losers.select(lost.drop("via", "via_source").columns)])

    def _bands(self, rows: pl.DataFrame) -> npt.NDArray[np.uint64]:
        assert self.manifest.dedup.near is not None
        keys = np.zeros((rows.height, near.plan_bands(self.manifest.dedup.near).bands), dtype=np.uint64)
        for pool, chunk, places, at in _by_chunk(rows):
            keys[places] = self.facts.bands(self.pools[pool], chunk)[at]
        return keys

    def _texts(self, rows: pl.DataFrame, wanted: npt.NDArray[np.int64]) -> list[str]:
        texts: list[str] = [""] * len(wanted)
        for pool, chunk, places, at in _by_chunk(rows[wanted]):
            for place, text in zip(places, self.facts.texts(self.pools[pool], chunk, at), strict=True):
                texts[place] = text
        return texts

    def _measured(self, kept: pl.DataFrame) -> pl.DataFrame:
        """Rows with prompt_tokens, and a reason where those are outside the filter or the template refuses."""
        import polars as pl

        if self.tokens is None:
            return kept.with_columns(prompt_tokens=pl.lit(None, pl.Int64))
        counts = np.full(kept.height, -1, dtype=np.int64)
        self.report(f"tokens of {kept.height:,} prompts")
        for pool, chunk, places, at in _by_chunk(kept):
            counts[places] = self.facts.token_counts(
                self.pools[pool], chunk, at, self.tokens.count, self.tokens.tokenizer
            )
        tokens = pl.Series("prompt_tokens", counts).replace(-1, None)
        refused = pl.when(pl.col("prompt_tokens").is_null()).then(pl.lit("template_error"))
        return selection.filter_rows(kept.with_columns(tokens).with_columns(reason=refused), self.manifest.filters)


def _by_chunk(rows: pl.DataFrame) -> Iterator[tuple[int, int, npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """(pool, chunk, places in rows, rows in the chunk) of each chunk that rows come from."""
    pool, chunk, at = (rows[name].to_numpy() for name in ("pool", "chunk", "at"))
    key = pool.astype(np.int64) << 32 | chunk
    order = np.argsort(key, kind="stable")
    ends = np.flatnonzero(np.diff(key[order])) + 1
    for places in np.split(order, ends):
        if len(places):
            yield int(pool[places[0]]), int(chunk[places[0]]), places, at[places]


def _joined(parts: list[pl.Series]) -> pl.Series:
    """One series of texts; of a source without a row an empty one."""
    import polars as pl

    return pl.concat([pl.Series(dtype=pl.String), *parts])
