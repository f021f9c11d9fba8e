"""How many prompts of each category a build takes, and the words for it where there are too few.

Between the pure quotas of corpus.selection and the build: what the mix asks, what the candidates have, what each
shortage policy would do.
"""

from __future__ import annotations

import math
from collections import Counter

from corpus import selection
from corpus.candidates import Candidates
from corpus.manifest import Manifest
from corpus.pools import Pool, load_chunks
from corpus.workspace import Workspace


def _repeats(manifest: Manifest) -> int:
    return manifest.mix.max_repeats if manifest.mix.shortage == "repeat" else 1


def available_prompts(manifest: Manifest, candidates: Candidates) -> dict[str, int]:
    """Prompts of each category outside the holdout."""
    available = dict.fromkeys(manifest.mix.shares, 0)
    for (category, _, holdout), rows in candidates.counts.items():
        available[category] += 0 if holdout else rows
    return available


def wanted_quotas(manifest: Manifest, candidates: Candidates) -> selection.Quotas:
    return selection.plan_quotas(
        manifest.mix.prompts, manifest.mix.prompt_weights(), available_prompts(manifest, candidates),
        manifest.mix.shortage == "rescale", _repeats(manifest),
    )  # fmt: skip


def quota_notes(manifest: Manifest, quotas: selection.Quotas, pools: list[Pool]) -> list[str]:
    whole = sum(manifest.mix.shares.values())
    notes = []
    if abs(whole - 1) > 1e-9 and abs(whole - 100) > 1e-9:
        shares = ", ".join(f"{name} {share:.2%}" for name, share in manifest.mix.normalised().items())
        notes.append(f"shares sum to {whole:g} and are normalised: {shares}")
    if manifest.mix.unit == "response_tokens":
        tokens, prompts = manifest.mix.total, manifest.mix.prompts
        notes.append(f"{tokens:,} response tokens are {prompts:,} prompts at the declared means")
    unstated = [pool.source.name for pool in pools if pool.license is None]
    if manifest.licenses.deny and unstated:
        notes.append(f"no licence is stated for {', '.join(unstated)}; licenses: {{deny: [unknown]}} would stop here")
    if quotas.rescaled:
        notes.append(f"total rescaled from {quotas.total:,} to {sum(quotas.rows.values()):,} prompts")
    return notes


def shortage_table(manifest: Manifest, available: dict[str, int]) -> str:
    """What is missing by category, and what each policy would do."""
    mix = manifest.mix
    weights = mix.prompt_weights()
    wanted = selection.plan_quotas(mix.prompts, weights, available)
    rescaled = selection.plan_quotas(mix.prompts, weights, available, rescale=True).rows
    lines = [f"{manifest.name}: too few prompts; nothing was built."]
    lines.append(f"  {'category':<14}{'wanted':>10}{'available':>11}{'missing':>9}")
    lines += [
        f"  {name:<14}{wanted.rows[name]:>10,}{available.get(name, 0):>11,}{missing:>9,}"
        for name, missing in sorted(wanted.short.items())
    ]
    if not all(rescaled.values()):
        lines.append("  Not even one prompt fits these shares: drop the share, or add a source.")
        return "\n".join(lines)
    fits = sum(rescaled.values())
    lines.append("  shortage: fail     builds nothing (lower the share, or add a source)")
    lines.append(f"  shortage: rescale  builds {fits:,} of {wanted.total:,} prompts with these shares")
    empty = [name for name in wanted.short if not available.get(name)]
    times = {name: wanted.rows[name] / available[name] for name in wanted.short if available.get(name)}
    if empty:
        lines.append(f"  shortage: repeat   cannot help: {empty[0]} has no prompt at all")
    else:
        worst = max(times, key=lambda name: times[name])
        lines.append(
            f"  shortage: repeat   builds {wanted.total:,} with max_repeats: {math.ceil(times[worst])} "
            f"({worst} asked {times[worst]:.1f} times; not where sampling is greedy)"
        )
    return "\n".join(lines)


def losses(workspace: Workspace, candidates: Candidates, pools: list[Pool]) -> str:
    """What became of the rows that are no candidates: the first thing to look at when prompts run short."""
    counts = Counter(candidates.dropped)
    for pool in pools:
        counts.update(load_chunks(workspace, pool, ["reason"])["reason"].drop_nulls().to_list())
    read, left_out = sum(pool.rows for pool in pools), sum(c["left_out"] for pool in pools for c in pool.chunks)
    reasons = [f"{count:,} {reason}" for reason, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
    reasons += [f"{left_out:,} left out by where"] if left_out else []
    return f"  Of {read + left_out:,} rows: {', '.join(reasons) or 'none was dropped'}."
