"""The build: sources to candidates to a selection, exact, cached and explained.

Pools are read as deep as the quotas need, always by the same steps, so the same manifest and lock give the same
candidates beside deeper cached pools too. Candidates are found again by identity; a build is a mix over them.
Nothing is named by the ledger before its files are whole.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corpus import identity, selection
from corpus.artefacts import write_atomically, write_text
from corpus.candidates import TokenCounter, ordered_candidates
from corpus.canonical import canonical_json
from corpus.errors import UserError
from corpus.ledger import ingest
from corpus.ledger.writer import LedgerWriter
from corpus.manifest import Manifest
from corpus.pools import Pool, load_chunks, read_pool
from corpus.sources import FileDigests, ResolvedSource, resolve_source
from corpus.workspace import Workspace

if TYPE_CHECKING:
    import polars as pl

log = logging.getLogger("draftmill")


@dataclass(frozen=True)
class BuildPlan:
    """What a build takes from where: printable, made without writing anything but cached pools and candidates."""

    build_id: str
    candidates_id: str
    manifest: Manifest
    shares: dict[str, float]
    quotas: selection.Quotas
    prefixes: dict[tuple[str, str, bool], int]
    available: dict[str, int]
    weights: dict[str, float]
    pools: tuple[Pool, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def selected(self) -> int:
        """Prompts outside the holdout."""
        return sum(rows for (_, _, holdout), rows in self.prefixes.items() if not holdout)

    @property
    def held_out(self) -> int:
        """Prompts that are generated and never trained on."""
        return sum(rows for (_, _, holdout), rows in self.prefixes.items() if holdout)


def plan_build(
    manifest: Manifest,
    base: Path,
    workspace: Workspace,
    count_tokens: TokenCounter | None,
    tokenizer: str | None,
) -> BuildPlan:
    """Read what is needed, and decide what is taken.

    `count_tokens` and `tokenizer` (template and tokenizer hash) are needed where filters.prompt_tokens is set.

    Raises:
        UserError: a source cannot be read, or a category runs short and shortage is fail.
    """
    refuse_unbuilt(manifest)
    digests = FileDigests(workspace.cache / "digests.json")
    resolved = [resolve_source(source, base, digests) for source in manifest.sources]
    digests.save()
    depth = {source.source.name: 1 if source.source.dataset else len(source.files) for source in resolved}
    while True:
        pools = [read_pool(workspace, source, depth[source.source.name], digests) for source in resolved]
        candidates_id, candidates = ordered_candidates(manifest, workspace, pools, count_tokens, tokenizer, digests)
        quotas = _quotas(manifest, candidates)
        hungry = _deepen(manifest, quotas, pools, resolved)
        if not hungry:
            break
        for name in hungry:
            depth[name] *= 2
    digests.save()
    return _decide(manifest, workspace, candidates_id, candidates, quotas, pools)


def commit_build(plan: BuildPlan, workspace: Workspace, ledger: LedgerWriter) -> bool:
    """Write the build's files and enter it, or what of both is gone or damaged; True if it is new."""
    import polars as pl

    folder = workspace.build(plan.build_id)
    known = bool(ledger.rows("SELECT 1 FROM builds WHERE build_id = ?", plan.build_id))
    rounds = pl.DataFrame(
        [
            {"category": category, "source": source, "holdout": holdout, "prefix": rows, "round": 0}
            for (category, source, holdout), rows in sorted(plan.prefixes.items())
        ],
        schema={
            "category": pl.String, "source": pl.String, "holdout": pl.Boolean, "prefix": pl.Int64, "round": pl.Int32,
        },
    )  # fmt: skip
    pools = {row[0] for row in ledger.rows("SELECT pool_id FROM pools")}
    ordered = bool(ledger.rows("SELECT 1 FROM prompts WHERE candidates_id = ? LIMIT 1", plan.candidates_id))
    whole = _is_written(folder, plan, rounds)
    if known and whole and ordered and pools >= {pool.pool_id for pool in plan.pools}:
        return False
    if known and not whole:
        log.warning("%s is missing or damaged; it is written again", folder)
    if not whole:
        write_atomically(folder / "rounds" / "0.parquet", rounds.write_parquet)
        write_text(folder / "manifest.lock.yaml", _lock_text(plan))
        write_text(folder / "build.json", json.dumps(_build_body(plan), indent=1, sort_keys=True))

    def enter(connection: Any) -> None:
        for pool in plan.pools:
            ingest.ingest_pool(connection, workspace, pool.pool_id)
        if not ordered:
            ingest.ingest_candidates(connection, workspace, plan.candidates_id)
        ingest.ingest_build(connection, workspace, plan.build_id)

    ledger.call(enter)
    return not known


def _is_written(folder: Path, plan: BuildPlan, rounds: pl.DataFrame) -> bool:
    """True if the folder describes this build whole."""
    import polars as pl

    try:
        body = json.loads((folder / "build.json").read_text())
        expected = _build_body(plan)
        same = all(body[key] == expected[key] for key in ("build_id", "candidates_id", "targets", "seed", "total"))
        datetime.fromisoformat(body["created_at"])
        return (
            same
            and body.keys() == expected.keys()
            and json.loads((folder / "manifest.lock.yaml").read_text())["build_id"] == plan.build_id
            and {source["pool_id"] for source in body["sources"]} == {pool.pool_id for pool in plan.pools}
            and pl.read_parquet(folder / "rounds" / "0.parquet", glob=False).equals(rounds)
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, pl.exceptions.PolarsError):
        return False


def selected_rows(workspace: Workspace, plan: BuildPlan) -> pl.DataFrame:
    """The prompts that a plan takes: every candidate column, by category, source and rank."""
    import polars as pl

    taken = pl.DataFrame(
        [(*key, prefix) for key, prefix in plan.prefixes.items()],
        schema={"category": pl.String, "source": pl.String, "holdout": pl.Boolean, "prefix": pl.Int64},
        orient="row",
    )
    candidates = pl.scan_parquet(workspace.candidates(plan.candidates_id) / "prompts.parquet", glob=False)
    joined = candidates.join(taken.lazy(), on=["category", "source", "holdout"], how="inner", maintain_order="left")
    return joined.filter(pl.col("source_rank") < pl.col("prefix")).drop("prefix").collect()


def refuse_unbuilt(manifest: Manifest) -> None:
    """Refuse, before anything is read, what this version would otherwise leave out in silence.

    Raises:
        UserError: naming the first such key.
    """
    asked = {
        "dedup.near": manifest.dedup.near is not None,
        "decontaminate": manifest.decontaminate is not None,
        "mix.unit: response_tokens": manifest.mix.unit != "prompts",
        "mix.shortage: repeat": manifest.mix.shortage == "repeat",
        "generation.reuse: finished": manifest.generation.reuse == "finished",
    }
    for i, source in enumerate(manifest.sources):
        if source.category == "classify":
            raise UserError(
                f"{manifest.name}: sources[{i}] ({source.name}) needs a category in this version: one of "
                f"{', '.join(sorted(manifest.mix.shares))}, or {{column: …, map: {{…}}}}; classify is not built yet."
            )
    asked |= {f"sources[{i}].trust_remote_code": source.trust_remote_code for i, source in enumerate(manifest.sources)}
    for key, is_asked in asked.items():
        if is_asked:
            raise UserError(f"{manifest.name}: {key} is not built in this version. Remove the key to go on without it.")


def _quotas(manifest: Manifest, candidates: pl.DataFrame) -> selection.Quotas:
    import polars as pl

    counts = candidates.filter(~pl.col("holdout")).group_by("category").len()
    available = dict(zip(counts["category"].to_list(), counts["len"].to_list(), strict=True))
    return selection.plan_quotas(
        manifest.mix.total, manifest.mix.normalised(), available, manifest.mix.shortage == "rescale"
    )


def _deepen(
    manifest: Manifest, quotas: selection.Quotas, pools: list[Pool], resolved: list[ResolvedSource]
) -> list[str]:
    """Sources that have more to give to a category that is short."""
    if not quotas.short and not quotas.rescaled:
        return []
    needy = set(quotas.short) or set(manifest.mix.shares)
    return [
        source.source.name
        for source, pool in zip(resolved, pools, strict=True)
        if not pool.complete and needy & set(manifest.source_categories(source.source))
    ]


def _decide(
    manifest: Manifest,
    workspace: Workspace,
    candidates_id: str,
    candidates: pl.DataFrame,
    quotas: selection.Quotas,
    pools: list[Pool],
) -> BuildPlan:
    counts: dict[tuple[str, str, bool], int] = {
        (category, source, holdout): rows
        for category, source, holdout, rows in candidates.group_by("category", "source", "holdout").len().iter_rows()
    }
    available = {
        category: sum(rows for (name, _, held), rows in counts.items() if name == category and not held)
        for category in manifest.mix.shares
    }
    weights = {pool.source.name: pool.weight() for pool in pools}
    if quotas.short or not any(quotas.rows.values()):
        raise UserError(f"{_shortage(manifest, available)}\n{_losses(workspace, candidates_id, pools)}")
    prefixes: dict[tuple[str, str, bool], int] = {}
    notes = []
    for category, rows in sorted(quotas.rows.items()):
        for holdout in (False, True):
            quota = selection.holdout_quota(rows, manifest.mix.holdout) if holdout else rows
            have = {s: n for (c, s, h), n in counts.items() if c == category and h == holdout}
            taken = selection.split_quota(quota, have, weights)
            prefixes |= {(category, source, holdout): n for source, n in taken.items() if n}
            if holdout and sum(taken.values()) < quota:
                notes.append(f"{category}: {sum(taken.values())} held-out prompts, {quota} were wanted")
    whole = sum(manifest.mix.shares.values())
    if abs(whole - 1) > 1e-9 and abs(whole - 100) > 1e-9:
        notes.insert(0, f"shares sum to {whole:g} and are normalised")
    if quotas.rescaled:
        notes.append(f"total rescaled from {quotas.total:,} to {sum(quotas.rows.values()):,}")
    build = identity.build_id(candidates_id, manifest, weights)
    return BuildPlan(
        build, candidates_id, manifest, manifest.mix.normalised(), quotas, prefixes, available, weights,
        tuple(pools), tuple(notes),
    )  # fmt: skip


def _shortage(manifest: Manifest, available: dict[str, int]) -> str:
    shares = manifest.mix.normalised()
    wanted = selection.plan_quotas(manifest.mix.total, shares, available, rescale=False)
    fits = sum(selection.plan_quotas(manifest.mix.total, shares, available, rescale=True).rows.values())
    lines = [f"{manifest.name}: too few prompts; nothing was built."]
    lines.append(f"  {'category':<14}{'wanted':>10}{'available':>11}{'missing':>9}")
    lines += [
        f"  {name:<14}{wanted.rows[name]:>10,}{available.get(name, 0):>11,}{missing:>9,}"
        for name, missing in sorted(wanted.short.items())
    ]
    lines.append(
        f"  shortage: rescale would build {fits:,} of {wanted.total:,} prompts with these shares; "
        "or lower the share, or add a source."
        if fits
        else "  Not even one prompt fits these shares: drop the share, or add a source."
    )
    return "\n".join(lines)


def _losses(workspace: Workspace, candidates_id: str, pools: list[Pool]) -> str:
    """What became of the rows that are no candidates: the first thing to look at when prompts run short."""
    import polars as pl

    unread = [load_chunks(workspace, pool).select("reason").drop_nulls() for pool in pools]
    dropped = pl.read_parquet(workspace.candidates(candidates_id) / "drops.parquet", columns=["reason"], glob=False)
    counts = pl.concat([*unread, dropped]).group_by("reason").len().sort(["len", "reason"], descending=[True, False])
    read, left_out = sum(pool.rows for pool in pools), sum(c["left_out"] for pool in pools for c in pool.chunks)
    reasons = [f"{count:,} {reason}" for reason, count in counts.iter_rows()]
    reasons += [f"{left_out:,} left out by where"] if left_out else []
    return f"  Of {read + left_out:,} rows: {', '.join(reasons) or 'none was dropped'}."


def _build_body(plan: BuildPlan) -> dict[str, Any]:
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
        "created_at": datetime.now(UTC).isoformat(),
        "targets": [
            {"category": name, "share": plan.shares[name], "rows": rows} for name, rows in plan.quotas.rows.items()
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
    body = {
        "build_id": plan.build_id,
        "candidates_id": plan.candidates_id,
        "manifest": plan.manifest.model_dump(mode="json"),
        "sources": _build_body(plan)["sources"],
    }
    return json.dumps(body, indent=1, sort_keys=True) + "\n"
