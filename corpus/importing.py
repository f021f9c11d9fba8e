"""Adopting a corpus of answers that somebody else's pipeline had a model write.

Its rows are read through a pool, as any source's; each assistant turn becomes a response under a recipe of its own
(corpus, model and tokenizer, `imported`), and the whole is entered as a build, so that every view answers for it. An
import is known by that recipe: its import_id is its recipe_id, candidates_id and build_id. Name, licence and
categories are labels on it: importing the same corpus again changes those that are said then. Two corpora never
share a name.

Files come first, each whole or absent, import.json last; then one transaction. What a killed import left is used by
the next one. Rows of one prompt are its replicas, in the order in which they are read.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from corpus import identity
from corpus.artefacts import read_description
from corpus.canonical import digest
from corpus.classifier import CLASSIFIER_VERSION
from corpus.derived import Derived
from corpus.errors import UserError
from corpus.facts import class_labels
from corpus.import_files import ImportRows, Progress, write_artefacts, write_shards
from corpus.import_source import ImportOptions, misread, resolve_corpus
from corpus.imported import AnswerEncoder
from corpus.ledger import ingest
from corpus.ledger.writer import LedgerWriter, Readable
from corpus.manifest import Target
from corpus.pools import PoolReader, load_chunks
from corpus.sources import FileDigests, ResolvedSource
from corpus.workspace import Workspace

LIGHT_COLUMNS = ["prompt_id", "file", "row_index", "upstream_id", "turns", "prompt_chars"]


@dataclass(frozen=True)
class ImportPlan:
    """A corpus at one revision of its files, and the recipe that its answers come in under. Nothing is read yet."""

    resolved: ResolvedSource
    recipe: dict[str, Any]
    encoder: AnswerEncoder | None
    skip_bad: bool
    digests: FileDigests
    said: frozenset[str] = frozenset()
    """Which of name and license a person said; the others are a guess, or what the corpus's own card says."""

    @property
    def import_id(self) -> str:
        """Identity of the import: of its recipe."""
        return identity.recipe_id(self.recipe)

    @property
    def name(self) -> str:
        """The label under which it is asked for and reused."""
        return self.resolved.source.name

    @property
    def labels(self) -> dict[str, Any]:
        """What may be said otherwise of the same answers."""
        return {"name": self.name, "license": self.resolved.license, "classifier": CLASSIFIER_VERSION}


def plan_import(options: ImportOptions, base: Path, workspace: Workspace) -> ImportPlan:
    """Find the corpus and the tokenizer.

    Raises:
        UserError: there is no such corpus, an option does not fit, or the tokenizer has no template.
    """
    if not options.model.strip():
        raise UserError(
            "import: --model is empty; name the model that wrote these answers, as a manifest's target does."
        )
    digests = FileDigests(workspace.cache / "digests.json")
    resolved = resolve_corpus(options, base, digests)
    target: dict[str, Any] = {"model": options.model, "revision": options.revision}
    encoder = None
    if options.tokenizer is not None:
        from corpus.target import Renderer, resolve_target

        target_ = Target(model=options.tokenizer, chat_template=options.chat_template)
        found = resolve_target(target_, base, digests, tokenizer_only=True)
        encoder = AnswerEncoder(Renderer(found))
        target |= {"tokenizer": found.tokenizer_hash, "template": found.template_hash}
    elif options.chat_template is not None:
        raise UserError("import: --chat-template is used with --tokenizer only. Name both, or neither.")
    digests.save()
    recipe = {
        "imported": True,
        "corpus": _corpus_digest(resolved, options.skip_bad),
        "target": {"tokenizer": None, "template": None, **target},
        # how they were made is not known
        "dtype": None,
        "sampling": {"temperature": None},
        "max_tokens": None,
        "thinking": None,
    }
    said = frozenset(key for key in ("name", "license") if getattr(options, key) is not None)
    return ImportPlan(resolved, recipe, encoder, options.skip_bad, digests, said)


def settle_labels(plan: ImportPlan, ledger: Readable) -> ImportPlan:
    """The plan with the labels that the corpus has here already, where none are said now.

    Raises:
        UserError: its name is another corpus's.
    """
    known = ledger.rows(
        "SELECT i.import_id, i.name, i.model, i.rows, s.license, r.body FROM imports i "
        "JOIN recipes r ON r.recipe_id = i.import_id LEFT JOIN sources s ON s.build_id = i.import_id "
        "ORDER BY i.import_id = ? DESC, i.created_at DESC, i.import_id",
        plan.import_id,
    )
    corpora = [json.loads(body)["corpus"] for *_, body in known]
    same = [row for row, one in zip(known, corpora, strict=True) if one == plan.recipe["corpus"]]
    if same:
        _, name, _, _, licence, _ = same[0]
        plan = _relabelled(plan, name, licence)
    for (_, name, model, rows, _, _), one in zip(known, corpora, strict=True):
        mine = any(row[:2] == (plan.import_id, plan.name) for row in same)
        if name == plan.name and one != plan.recipe["corpus"] and not mine:
            raise UserError(
                f"import: the name {name} is another corpus's here ({rows:,} rows, answered by {ascii(model)[1:-1]}). "
                "Choose another with --name, or free it: import that corpus again with another --name."
            )
    return plan


def _relabelled(plan: ImportPlan, name: str, licence: str | None) -> ImportPlan:
    resolved = plan.resolved
    kept: dict[str, Any] = {}
    if "name" not in plan.said:
        kept["name"] = name
    if "license" not in plan.said:
        kept["license"] = licence
    source = resolved.source.model_copy(update=kept)
    return replace(plan, resolved=replace(resolved, source=source, license=kept.get("license", resolved.license)))


def is_imported(plan: ImportPlan, ledger: LedgerWriter) -> bool:
    """True if the ledger has this import under these labels, and its files are whole."""
    workspace = ledger.workspace
    if not ledger.rows("SELECT 1 FROM imports JOIN builds ON build_id = import_id WHERE import_id = ?", plan.import_id):
        return False
    try:
        body = read_description(workspace.imported(plan.import_id) / "import.json")
        return bool(body["labels"] == plan.labels) and all(
            plan.digests.is_whole(workspace.root / name, sha256) for name, sha256 in body["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def read_import(plan: ImportPlan, workspace: Workspace) -> ImportRows:
    """Read the corpus into its pool and classify its prompts: what was read before is not read again.

    Raises:
        UserError: it cannot be read, or not one row holds an answer.
    """
    import polars as pl

    pool = PoolReader(workspace, plan.resolved, plan.digests, plan.skip_bad, to_skip="add --skip-bad").read(None)
    folder = workspace.pool(pool.pool_id)
    files = [folder / f"{number}.parquet" for number in range(len(pool.chunks))]
    answered = (
        pl.scan_parquet(file, glob=False).select(pl.col("original").is_not_null().any()).collect().item()
        for file in files
    )
    if not any(answered):
        at = f"import: {plan.resolved.source.path}: not one of {pool.rows:,} rows holds an answer"
        raise UserError(
            misread(plan.resolved, at)
            or f"{at} beside its prompt; nothing was entered. To have prompts answered, name it as a manifest's source."
        )
    derived = Derived(workspace, plan.digests)
    light = load_chunks(workspace, pool, LIGHT_COLUMNS).with_columns(at=pl.int_range(pl.len()).over("chunk"))
    labels = [class_labels(workspace, derived, pool, number) for number in range(len(pool.chunks))]
    rows = light.with_columns(category=pl.concat(labels)).filter(pl.col("prompt_id").is_not_null())
    plan.digests.save()
    return ImportRows(pool, rows.with_columns(replica=pl.int_range(pl.len(), dtype=pl.Int32).over("prompt_id")))


def commit_import(plan: ImportPlan, rows: ImportRows, ledger: LedgerWriter, progress: Progress) -> None:
    """Write the import's files as far as they are not there, then enter them all at once."""
    workspace = ledger.workspace
    shards = write_shards(workspace, rows, plan.import_id, plan.encoder, plan.digests, progress)
    progress("entering the ledger")
    body = {"import_id": plan.import_id, "recipe": plan.recipe, "labels": plan.labels}
    write_artefacts(workspace, rows, shards, body, plan.digests)
    named = dict(ledger.rows("SELECT shard, sha256 FROM response_shards"))

    def enter(connection: Any) -> None:
        for shard in shards.files:
            if named.get(shard.path.name) != shard.sha256:
                ingest.ingest_response_shard(connection, shard.path)
        ingest.enter_import(connection, workspace, plan.import_id)

    ledger.call(enter)
    plan.digests.save()


def unusable_rows(rows: ImportRows, workspace: Workspace) -> list[tuple[str, int]]:
    """(reason, rows) of the corpus's rows that hold no prompt, most first."""
    reasons = load_chunks(workspace, rows.pool, ["reason"])["reason"].drop_nulls()
    return Counter(reasons.to_list()).most_common()


def _corpus_digest(resolved: ResolvedSource, skip_bad: bool) -> str:
    """Identity of what is read: as of a pool, but the same wherever the files lie."""
    spec = resolved.source.model_dump(mode="json", exclude={*identity.LEFT_OUT["pool"], "path"})
    return digest(
        "corpus",
        {
            "spec": spec, "revision": resolved.revision, "files": [file.name for file in resolved.files],
            "skip_bad": skip_bad, "reader": identity.READER_VERSION, "format": identity.FORMAT_VERSION,
        },
        length=24,
    )  # fmt: skip
