"""The build: sources to candidates to a selection, exact, cached and explained.

Pools are read as deep as the quotas need, always by the same steps, so the same manifest and lock give the same
candidates beside deeper cached pools too. Candidates are found again by identity; a build is a mix over them.
Nothing is named by the ledger before its files are whole.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corpus import identity, selection
from corpus.artefacts import read_description, write_description, write_text
from corpus.candidates import Candidates, TokenRule, ordered_candidates
from corpus.canonical import canonical_json
from corpus.errors import UserError
from corpus.evalsets import resolve_eval_sets
from corpus.hub import pinned_revision
from corpus.ledger import ingest
from corpus.ledger.writer import LedgerWriter
from corpus.manifest import Manifest
from corpus.mixing import available_prompts, losses, lost_sources, quota_notes, shortage_table, wanted_quotas
from corpus.pools import Pool, PoolReader
from corpus.rounds import last_round, prefixes_of, round_files, taken_rows, write_round
from corpus.selection import GroupKey
from corpus.sources import FileDigests, ResolvedSource, resolve_source
from corpus.workspace import Workspace

if TYPE_CHECKING:
    import polars as pl

log = logging.getLogger("draftmill")

FOLDER = "manifest_folder"
"""Key of build.json: where relative paths of the manifest start."""
NO_LICENSE = "unknown"  # as licenses.deny may name it
MOST_SELECTED = 100_000_000  # rows of a selection, which are held at once
MOST_DEEPENING = 64  # chunks are read before anybody knows how many of their rows are kept


@dataclass(frozen=True)
class BuildPlan:
    """What a build takes from where: printable, made without writing anything but cached pools and candidates."""

    build_id: str
    candidates_id: str
    manifest: Manifest
    shares: dict[str, float]
    quotas: selection.Quotas
    prefixes: dict[GroupKey, int]
    """Rows taken of each group, replicas included."""
    counts: dict[GroupKey, int]
    """Prompts that each group has."""
    available: dict[str, int]
    weights: dict[str, float]
    pools: tuple[Pool, ...]
    notes: tuple[str, ...]
    revisions: dict[str, str]
    """Resolved revision of each source."""
    eval_sets: tuple[dict[str, Any], ...]
    """Set, field and resolved revision of each evaluation set."""
    base: Path | None = None
    """Where relative paths of the manifest start; part of no identity."""

    @property
    def selected(self) -> int:
        """Prompts outside the holdout, replicas included."""
        return sum(rows for (_, _, holdout), rows in self.prefixes.items() if not holdout)

    @property
    def held_out(self) -> int:
        """Prompts that are generated and never trained on."""
        return sum(rows for (_, _, holdout), rows in self.prefixes.items() if holdout)

    def taken(self) -> pl.DataFrame:
        """What is taken of each group: GROUP, prefix (rows, replicas included) and available (its prompts)."""
        return _taken_frame(self.prefixes, self.counts)


def _taken_frame(prefixes: Mapping[GroupKey, int], counts: Mapping[GroupKey, int]) -> pl.DataFrame:
    import polars as pl

    labels = {"category": pl.String, "source": pl.String, "holdout": pl.Boolean}
    rows = [(*group, prefix, counts[group]) for group, prefix in sorted(prefixes.items())]
    return pl.DataFrame(rows, schema=labels | {"prefix": pl.Int64, "available": pl.Int64}, orient="row")


def plan_build(
    manifest: Manifest,
    base: Path,
    workspace: Workspace,
    tokens: TokenRule | None,
    report: Callable[[str], None] = lambda text: None,
) -> BuildPlan:
    """Read what is needed, and decide what is taken.

    `tokens` is needed where filters.prompt_tokens is set; `report` is told what is being done.

    Raises:
        UserError: a source cannot be read, a licence is denied, or a category runs short and shortage is fail.
    """
    digests = FileDigests(workspace.cache / "digests.json")
    resolved = [resolve_source(source, base, digests) for source in manifest.sources]
    eval_sets = resolve_eval_sets(manifest, base, digests)
    digests.save()
    refuse_licenses(manifest, resolved)
    readers = {
        source.source.name: PoolReader(workspace, source, digests, manifest.on_bad_row == "skip", report)
        for source in resolved
    }
    # local files are read whole, the Hub's as deep as the quotas need
    depth: dict[str, int | None] = {source.source.name: 1 if source.streamed else None for source in resolved}
    while True:
        pools = [reader.read(depth[name]) for name, reader in readers.items()]
        candidates = ordered_candidates(manifest, workspace, pools, eval_sets, tokens, digests, report)
        quotas = wanted_quotas(manifest, candidates)
        hungry = _deepen(manifest, candidates, pools)
        if not hungry:
            break
        depth |= hungry
    digests.save()
    prefixes, notes = _prefixes(manifest, candidates, quotas, pools)
    weights = _weights(pools)
    return BuildPlan(
        build_id=identity.build_id(candidates.candidates_id, manifest, weights),
        candidates_id=candidates.candidates_id,
        manifest=manifest,
        shares=manifest.mix.normalised(),
        quotas=quotas,
        prefixes=prefixes,
        counts=candidates.counts,
        available=available_prompts(manifest, candidates),
        weights=weights,
        pools=tuple(pools),
        notes=tuple(notes),
        revisions={source.source.name: source.revision for source in resolved},
        eval_sets=tuple(eval_sets.identity()),
        base=base,
    )


def refuse_licenses(manifest: Manifest, resolved: list[ResolvedSource]) -> None:
    """Refuse sources under a licence that the manifest denies.

    Raises:
        UserError: naming the source, its licence and the pattern.
    """
    for source in resolved:
        for pattern in manifest.licenses.deny:
            stated = source.license or NO_LICENSE
            if fnmatchcase(stated.lower(), pattern.lower()):
                raise UserError(
                    f"{manifest.name}: source {source.source.name} is under {stated}, which licenses.deny ({pattern}) "
                    "excludes. Remove the source or the pattern, or set its license: if you know better."
                )


def commit_build(plan: BuildPlan, workspace: Workspace, ledger: LedgerWriter) -> bool:
    """Write the build's files and enter it, or what of both is gone or damaged; True if it is new."""
    folder = workspace.build(plan.build_id)
    known = ledger.rows("SELECT created_at FROM builds WHERE build_id = ?", plan.build_id)
    created_at = (known[0][0] if known else datetime.now(UTC)).astimezone(UTC)
    first = plan.taken()
    pools = {row[0] for row in ledger.rows("SELECT pool_id FROM pools")}
    ordered = bool(ledger.rows("SELECT 1 FROM prompts WHERE candidates_id = ? LIMIT 1", plan.candidates_id))
    body = _build_body(plan) | {"created_at": created_at.isoformat()} | _folder(plan.base)
    written = _written(folder, plan, first)
    # name, licences and the like make no other build, and may be other ones now
    current = written is not None and written | {"created_at": body["created_at"]} == body
    if written is not None and known:
        _refresh_lock(folder, plan)
    entered = current and _held(plan.build_id, ledger) == prefixes_of(taken_groups(workspace, plan))
    if known and entered and ordered and pools >= {pool.pool_id for pool in plan.pools}:
        return False
    if known and written is None:
        log.warning("%s is missing or damaged; it is written again", folder)
    if written is None:
        for path in round_files(folder):  # later rounds of a damaged build are decided again
            path.unlink()
        write_round(folder, first, 0)
        write_text(folder / "manifest.lock.yaml", _lock_text(plan))
    if not current:
        write_description(folder / "build.json", body)

    def enter(connection: Any) -> None:
        for pool in plan.pools:
            ingest.ingest_pool(connection, workspace, pool.pool_id)
        if not ordered:
            ingest.ingest_candidates(connection, workspace, plan.candidates_id)
        ingest.ingest_build(connection, workspace, plan.build_id)

    ledger.call(enter)
    return not known


def _held(build_id: str, ledger: LedgerWriter) -> dict[GroupKey, int]:
    """What the ledger has selected of each group; a round that a killed run wrote and did not enter is not in it."""
    rows = ledger.rows(
        "SELECT category, source, holdout, count(*) FROM selections WHERE build_id = ? GROUP BY ALL", build_id
    )
    return {(category, source, holdout): count for category, source, holdout, count in rows}


def _written(folder: Path, plan: BuildPlan, first: pl.DataFrame) -> dict[str, Any] | None:
    """What build.json says if the folder describes this build whole."""
    import polars as pl

    try:
        body = read_description(folder / "build.json")
        expected = _build_body(plan)
        same = all(body[key] == expected[key] for key in ("build_id", "candidates_id", "targets", "seed", "total"))
        datetime.fromisoformat(body["created_at"])
        whole = (
            same
            and body.keys() - {FOLDER} == {*expected, "created_at"}  # an older draftmill did not note it
            and json.loads((folder / "manifest.lock.yaml").read_text())["build_id"] == plan.build_id
            and {source["pool_id"] for source in body["sources"]} == {pool.pool_id for pool in plan.pools}
            and pl.read_parquet(folder / "rounds" / "0.parquet", glob=False).drop("round").equals(first)
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, pl.exceptions.PolarsError):
        return None
    return body if whole else None


def taken_groups(workspace: Workspace, plan: BuildPlan) -> pl.DataFrame:
    """GROUP, prefix and available as the last round of a plan's build has them, or the plan before its first."""
    last = last_round(workspace.build(plan.build_id))
    return plan.taken() if last is None else last


def selected_rows(workspace: Workspace, plan: BuildPlan, columns: list[str] | None = None) -> pl.DataFrame:
    """The prompts that a build takes, as corpus.rounds.taken_rows: every column or those named, and replica."""
    path = workspace.candidates(plan.candidates_id) / "prompts.parquet"
    return taken_rows(path, taken_groups(workspace, plan), columns)


def commit_round(plan: BuildPlan, prefixes: dict[GroupKey, int], ledger: LedgerWriter) -> int:
    """Write what a build takes from now on, and enter it; returns the round's number."""
    folder = ledger.workspace.build(plan.build_id)
    number = write_round(folder, _taken_frame(prefixes, plan.counts))
    ledger.call(lambda connection: ingest.ingest_build(connection, ledger.workspace, plan.build_id))
    return number


def _deepen(manifest: Manifest, candidates: Candidates, pools: list[Pool]) -> dict[str, int]:
    """Sources that have more to give to a category that is short, and how deep to read them next.

    A prompt is repeated only where there are no more, so what is missing is judged without replicas; a reserve beyond
    the quota is for what will be rejected.
    """
    available = available_prompts(manifest, candidates)
    wanted = selection.plan_quotas(manifest.mix.prompts, manifest.mix.prompt_weights(), available)
    reserved = {name: math.ceil(rows * (1 + manifest.mix.reserve)) for name, rows in wanted.rows.items()}
    deeper = {}
    for pool in pools:
        given = set(manifest.source_categories(pool.source)) & set(reserved)
        needy = {name for name in given if available[name] < reserved[name]}
        if needy and not pool.complete:
            factor = max(reserved[name] / max(1, available[name]) for name in needy)
            have = len(pool.chunks)
            deeper[pool.source.name] = max(have + 1, min(math.ceil(have * factor * 1.1), have * MOST_DEEPENING))
    return deeper


def _weights(pools: list[Pool]) -> dict[str, float]:
    return {pool.source.name: pool.weight() for pool in pools}


def _prefixes(
    manifest: Manifest, candidates: Candidates, quotas: selection.Quotas, pools: list[Pool]
) -> tuple[dict[GroupKey, int], list[str]]:
    """(rows that each group gives, what a person should know of it).

    Raises:
        UserError: a category runs short, or more rows would be selected than can be held.
    """
    available = available_prompts(manifest, candidates)
    weights = _weights(pools)
    full = selection.plan_quotas(manifest.mix.prompts, manifest.mix.prompt_weights(), available).rows
    vanished = quotas.rescaled and any(full[name] and not rows for name, rows in quotas.rows.items())
    if quotas.short or vanished or not any(quotas.rows.values()):
        raise UserError(
            "\n  ".join(
                [shortage_table(manifest, available), losses(candidates, pools), *lost_sources(candidates, pools)]
            )
        )
    prefixes: dict[GroupKey, int] = {}
    notes = []
    for category, rows in sorted(quotas.rows.items()):
        for holdout in (False, True):
            have = {s: n for (c, s, h), n in candidates.counts.items() if c == category and h == holdout}
            wanted = selection.holdout_quota(rows, manifest.mix.holdout) if holdout else rows
            quota = min(wanted, sum(have.values())) if holdout else wanted  # what is held out is never repeated
            taken = selection.split_quota(quota, have, weights)
            prefixes |= {(category, source, holdout): n for source, n in taken.items() if n}
            if holdout and quota < wanted:
                notes.append(f"{category}: {quota} held-out prompts, {wanted} were wanted")
            if not holdout and rows > available[category]:
                times = rows / available[category]
                notes.append(f"{category}: {available[category]:,} prompts, asked {times:.1f} times")
    asked = sum(prefixes.values())
    if asked > MOST_SELECTED:
        raise UserError(
            f"{manifest.name}: {asked:,} prompts would be asked, replicas included, at most {MOST_SELECTED:,} can be. "
            "Lower mix.total."
        )
    said = [losses(candidates, pools), *lost_sources(candidates, pools)]
    return prefixes, [*quota_notes(manifest, quotas, pools), *notes, *said]


def _folder(base: Path | None) -> dict[str, str]:
    """Where the manifest lies; nothing for a folder whose name is not valid Unicode, which JSON cannot hold."""
    if base is None:
        return {}
    folder = str(base.resolve())
    return {FOLDER: folder} if folder == folder.encode("utf-8", "replace").decode() else {}


def manifest_folder(workspace: Workspace, build_id: str) -> Path | None:
    """Where relative paths of a build's manifest start, as it was when it was committed; None if that is not noted."""
    try:
        noted = json.loads((workspace.build(build_id) / "build.json").read_text(encoding="utf-8")).get(FOLDER)
    except (OSError, ValueError, AttributeError):
        return None
    return Path(noted) if isinstance(noted, str) else None


def _target_tokens(manifest: Manifest, category: str, rows: int) -> int | None:
    """Response tokens that a category is planned to bring, where they are the unit."""
    mean = manifest.mix.mean_response_tokens.get(category)
    return None if mean is None else round(rows * mean)


def _build_body(plan: BuildPlan) -> dict[str, Any]:
    """build.json, without the time."""
    return {
        "schema_version": 1,
        "build_id": plan.build_id,
        "candidates_id": plan.candidates_id,
        "name": plan.manifest.name,
        "seed": plan.manifest.seed,
        "unit": plan.manifest.mix.unit,
        "total": plan.manifest.mix.total,
        "shortage": plan.manifest.mix.shortage,
        "tolerance": plan.manifest.mix.tolerance,
        "targets": [
            {
                "category": name,
                "share": plan.shares[name],
                "rows": rows,
                "response_tokens": _target_tokens(plan.manifest, name, rows),
            }
            for name, rows in plan.quotas.rows.items()
        ],
        "sources": [
            {
                "source": pool.source.name,
                "pool_id": pool.pool_id,
                "chunks": len(pool.chunks),
                "weight": plan.weights[pool.source.name],
                "priority": pool.source.priority,
                "license": pool.license,
                "category_rule": canonical_json(pool.source.model_dump(mode="json")["category"]),
            }
            for pool in plan.pools
        ],
    }


def _lock_text(plan: BuildPlan) -> str:
    """The manifest with every default filled in and every revision resolved, as YAML (JSON is YAML)."""
    manifest = plan.manifest.model_dump(mode="json")
    for source in manifest["sources"]:
        if source["dataset"] is not None:
            source["revision"] = pinned_revision(source["revision"], plan.revisions[source["name"]])
    sources = [one | {"revision": plan.revisions[one["source"]]} for one in _build_body(plan)["sources"]]
    body = {
        "build_id": plan.build_id,
        "candidates_id": plan.candidates_id,
        "manifest": manifest,
        "sources": sources,
        "eval_sets": list(plan.eval_sets),
    }
    return json.dumps(body, indent=1, sort_keys=True) + "\n"


def _refresh_lock(folder: Path, plan: BuildPlan) -> None:
    """What a build does not depend on (a recipe, a learning rate) may have changed since its lock was written."""
    path, text = folder / "manifest.lock.yaml", _lock_text(plan)
    if path.read_text(encoding="utf-8") != text:
        write_text(path, text)
