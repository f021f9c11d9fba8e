"""What selection needs to know of a prompt's text, chunk by chunk, each fact computed once and cached.

Near-dedup sketches and overlaps with evaluation sets come from one table of words; category and language from the
stored messages. Facts are aligned with the rows of a chunk (`at` is the row in it).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from corpus import decontamination, near
from corpus.classifier import CLASSIFIER_VERSION, classify_rows
from corpus.decontamination import EvalIndex, Overlaps, index_items
from corpus.derived import Derived
from corpus.evalsets import ResolvedEvalSets
from corpus.language import languages
from corpus.manifest import Manifest
from corpus.pairs import PairMemory
from corpus.pools import Pool, read_chunk
from corpus.words import hash_words
from corpus.workspace import Workspace

if TYPE_CHECKING:
    import numpy.typing as npt
    import polars as pl


CLASSIFIER = {"classifier": CLASSIFIER_VERSION}
WORDS_VERSION = 1  # of the words, their hashes and what is made of them: sketches and overlaps

TokenCounter = Callable[[Sequence[tuple[str, str | None]]], list[int | None]]
"""(messages, tools) as stored to tokens of the first turn's prompt; None where the template refuses it."""


class _Turn(msgspec.Struct):
    role: str
    content: str | None = None


_turns = msgspec.json.Decoder(list[_Turn]).decode


def user_texts(messages: Sequence[str | None]) -> list[str]:
    """The user turns' text of prompts as stored; empty where there is no prompt."""
    return ["\n".join([t.content for t in _turns(m) if t.role == "user" and t.content]) if m else "" for m in messages]


def all_texts(messages: Sequence[str | None]) -> list[str]:
    """The text of all messages of prompts as stored."""
    return ["\n".join([turn.content for turn in _turns(m) if turn.content]) if m else "" for m in messages]


def _minhash_version() -> int:
    import rensa

    return int(rensa.RMinHash.ALGORITHM_VERSION)


@dataclass(frozen=True)
class TextRules:
    """Which facts a manifest asks for, and what their values depend on."""

    manifest: Manifest
    eval_sets: ResolvedEvalSets

    @property
    def near(self) -> dict[str, Any] | None:
        """Parameters of the sketches, None where there is no near dedup."""
        if self.manifest.dedup.near is None:
            return None
        plan = near.plan_bands(self.manifest.dedup.near)
        return {"words": WORDS_VERSION, "minhash": _minhash_version(), "bands": plan.bands, "rows": plan.rows}

    @property
    def overlaps(self) -> dict[str, Any] | None:
        """Parameters of the overlaps, None where nothing is decontaminated."""
        rule = self.manifest.decontaminate
        if rule is None:
            return None
        asked = {"ngram": rule.ngram, "common": rule.common}
        return {"words": WORDS_VERSION, **asked, "sets": self.eval_sets.identity()}

    @property
    def language(self) -> dict[str, Any] | None:
        """Parameters of the languages, None where none is filtered."""
        return {"py3langid": version("py3langid")} if self.manifest.filters.language else None

    @property
    def classifier(self) -> dict[str, Any] | None:
        """Parameters of the labels, None where no source is classified."""
        asked = any(source.category == "classify" for source in self.manifest.sources)
        return CLASSIFIER if asked else None

    def identity(self) -> dict[str, Any]:
        """Everything here that candidates depend on beside the manifest."""
        names = ("near", "overlaps", "language", "classifier")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


def _overlap_rows(found: Overlaps, index: EvalIndex, rows: npt.NDArray[np.int64] | None) -> pl.DataFrame:
    """Overlaps as they are cached; `rows` are the rows of the chunk that were looked at, None for all."""
    import polars as pl

    items = [index.items[i] for i in found.items]
    return pl.DataFrame(
        {
            "at": pl.Series(found.rows if rows is None else rows[found.rows], dtype=pl.Int64),
            "eval_set": pl.Series([item.set_name for item in items], dtype=pl.String),
            "eval_item": pl.Series([item.label for item in items], dtype=pl.String),
            "overlap": pl.Series(found.texts, dtype=pl.String),
        }
    )


def class_labels(workspace: Workspace, derived: Derived, pool: Pool, chunk: int) -> pl.Series:
    """The classifier's category of each row of a chunk."""
    import polars as pl

    def compute() -> pl.DataFrame:
        stored = read_chunk(workspace, pool, chunk, ["messages", "tools"])
        held = stored.filter(pl.col("messages").is_not_null())
        labels = iter(classify_rows(held["messages"].to_list(), held["tools"].to_list()))
        values = [next(labels) if is_held else None for is_held in stored["messages"].is_not_null().to_list()]
        return pl.DataFrame({"label": pl.Series(values, dtype=pl.String)})

    return derived.frame(pool, chunk, "labels", CLASSIFIER, compute)["label"]


@dataclass
class Facts:
    """The facts of a workspace's pools under one manifest's rules."""

    workspace: Workspace
    rules: TextRules
    derived: Derived

    def labels(self, pool: Pool, chunk: int) -> pl.Series:
        """The classifier's category of each row."""
        return class_labels(self.workspace, self.derived, pool, chunk)

    def languages(self, pool: Pool, chunk: int) -> pl.Series:
        """The language of each row's user turns."""
        import polars as pl

        def compute() -> pl.DataFrame:
            texts = user_texts(self._chunk(pool, chunk, ["messages"])["messages"].to_list())
            return pl.DataFrame({"language": pl.Series(languages(texts), dtype=pl.String)})

        return self.derived.frame(pool, chunk, "languages", self.rules.language, compute)["language"]

    def prepare(self, pool: Pool, chunk: int) -> None:
        """Compute what is missing of a chunk's sketches and overlaps, from one table of its words."""
        import polars as pl

        kinds = {"bands": self.rules.near, "overlaps": self.rules.overlaps}
        missing = [
            kind for kind, parameters in kinds.items()
            if parameters is not None and not self.derived.has(pool, chunk, kind, parameters)
        ]  # fmt: skip
        if not missing:
            return
        messages = self._chunk(pool, chunk, ["messages"])["messages"].to_list()
        asked = user_texts(messages)
        words = hash_words(asked)  # of both, once
        if "bands" in missing:
            assert self.rules.manifest.dedup.near is not None
            keys = near.sketch(words, near.plan_bands(self.rules.manifest.dedup.near))
            frame = pl.DataFrame({f"b{i}": keys[:, i] for i in range(keys.shape[1])})
            self.derived.keep(pool, chunk, "bands", self.rules.near, frame)
        if "overlaps" in missing:
            frame = _overlap_rows(decontamination.overlaps(words, asked, self._index), self._index, None)
            shown = all_texts(messages)
            more = [i for i, (one, other) in enumerate(zip(asked, shown, strict=True)) if one != other]
            if more:  # system, tool and recorded assistant turns are shown too
                rest = [shown[i] for i in more]
                found = decontamination.overlaps(hash_words(rest), rest, self._index)
                others = _overlap_rows(found, self._index, np.array(more))
                frame = pl.concat([frame, others]).unique("at", keep="first", maintain_order=True)
            self.derived.keep(pool, chunk, "overlaps", self.rules.overlaps, frame)

    def overlaps(self, pool: Pool, chunk: int) -> pl.DataFrame:
        """at, eval_set, eval_item, overlap of the rows that overlap."""
        return self._prepared(pool, chunk, "overlaps", self.rules.overlaps)

    def bands(self, pool: Pool, chunk: int) -> npt.NDArray[np.uint64]:
        """Band keys [rows, bands] of a chunk."""
        return self._prepared(pool, chunk, "bands", self.rules.near).to_numpy()

    def texts(self, pool: Pool, chunk: int, at: npt.NDArray[np.int64]) -> list[str]:
        """The user turns' texts of some rows of a chunk."""
        return user_texts(self._chunk(pool, chunk, ["messages"])["messages"][at].to_list())

    def pairs(self) -> PairMemory:
        """What is known of pairs of prompts."""
        return PairMemory(self.derived.root / f"pairs-{WORDS_VERSION}.parquet", self.derived.digests)

    def token_counts(
        self, pool: Pool, chunk: int, at: npt.NDArray[np.int64], count: TokenCounter, tokenizer: str
    ) -> npt.NDArray[np.int64]:
        """Tokens of some rows of a chunk, -1 where the template refuses; only those never counted before are."""
        import polars as pl

        parameters = {"tokenizer": tokenizer}
        known = self.derived.known(pool, chunk, "tokens", parameters)
        if known is None:
            known = pl.DataFrame(schema={"at": pl.Int64, "tokens": pl.Int64})
        missing = np.setdiff1d(at, known["at"].to_numpy())
        if len(missing):
            stored = self._chunk(pool, chunk, ["messages", "tools"])[missing]
            counted = count(list(zip(stored["messages"].to_list(), stored["tools"].to_list(), strict=True)))
            tokens = [-1 if tokens is None else tokens for tokens in counted]
            known = pl.concat([known, pl.DataFrame({"at": missing, "tokens": tokens}, schema=known.schema)]).sort("at")
            self.derived.keep(pool, chunk, "tokens", parameters, known)
        places = np.searchsorted(known["at"].to_numpy(), at)
        found: npt.NDArray[np.int64] = known["tokens"].to_numpy()[places]
        return found

    def _prepared(self, pool: Pool, chunk: int, kind: str, parameters: Any) -> pl.DataFrame:
        self.prepare(pool, chunk)
        found = self.derived.known(pool, chunk, kind, parameters)
        assert found is not None
        return found

    @cached_property
    def _index(self) -> EvalIndex:
        assert self.rules.manifest.decontaminate is not None
        rule = self.rules.manifest.decontaminate
        return index_items(self.rules.eval_sets.items(), rule.ngram, rule.common)

    def _chunk(self, pool: Pool, chunk: int, columns: list[str]) -> pl.DataFrame:
        return read_chunk(self.workspace, pool, chunk, columns)
