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
from corpus.pools import Pool

SHAPE_REASONS = ("not_messages", "bad_role", "empty_conversation", "empty_prompt", "no_user_turn", "not_text")
MANY = 0.3
"""A source of which more than this part has no prompt in it is probably read in the wrong way."""


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
    rows = [("category", "wanted", "available", "missing")]
    rows += [
        (name, f"{wanted.rows[name]:,}", f"{available.get(name, 0):,}", f"{missing:,}")
        for name, missing in sorted(wanted.short.items())
    ]
    widths = [max(len(row[i]) + 2 for row in rows) for i in range(4)]
    lines += [f"  {row[0]:<{max(14, widths[0])}}" + "".join(map(str.rjust, row[1:], widths[1:])) for row in rows]
    if not any(rescaled.values()):
        lines.append("  Not even one prompt fits these shares: drop the share, or add a source.")
        return "\n".join(lines)
    fits = sum(rescaled.values())
    vanished = [name for name, rows in rescaled.items() if wanted.rows[name] and not rows]
    lines.append("  shortage: fail     builds nothing (lower the share, or add a source)")
    if vanished:
        tight = min(wanted.short, key=lambda name: available.get(name, 0) / wanted.rows[name])
        lines.append(
            f"  shortage: rescale  cannot help: beside {available.get(tight, 0):,} of {tight} these shares leave "
            f"no prompt of {vanished[0]}"
        )
    else:
        lines.append(f"  shortage: rescale  builds {fits:,} of {wanted.total:,} prompts with these shares")
    empty = [name for name in wanted.short if not available.get(name)]
    times = {name: wanted.rows[name] / available[name] for name in wanted.short if available.get(name)}
    if empty:
        lines.append(f"  shortage: repeat   cannot help: {empty[0]} has no prompt at all")
    else:
        worst = max(times, key=lambda name: times[name])
        now = f"it is {mix.max_repeats} now; " if mix.shortage == "repeat" else ""
        lines.append(
            f"  shortage: repeat   builds {wanted.total:,} with max_repeats: {math.ceil(times[worst])} "
            f"({now}{worst} asked {times[worst]:.1f} times; not where sampling is greedy)"
        )
    return "\n".join(lines)


def losses(candidates: Candidates, pools: list[Pool]) -> str:
    """What became of the rows that are no candidates: the first thing to look at when prompts run short."""
    counts: Counter[str] = Counter()
    for pool in pools:
        counts.update(_reasons(candidates, pool))
    read, left_out = sum(pool.rows for pool in pools), sum(_left_out(pool) for pool in pools)
    return f"Of {read + left_out:,} rows: {_listed(counts, left_out)}."


def lost_sources(candidates: Candidates, pools: list[Pool]) -> list[str]:
    """A line for each source that gives nothing, or that is not in the shape in which it was read."""
    kept: Counter[str] = Counter()
    for (_, source, _), rows in candidates.counts.items():
        kept[source] += rows
    lines = []
    for pool in pools:
        name, reasons = pool.source.name, _reasons(candidates, pool)
        misread = Counter({reason: reasons[reason] for reason in SHAPE_REASONS if reasons[reason]})
        if not kept[name]:
            lines.append(f"{name} gives no prompt at all: {_listed(reasons, _left_out(pool))}")
        elif misread.total() > MANY * pool.rows:
            formats = " and ".join(sorted({form for chunk in pool.chunks for form in chunk["formats"]}))
            lines.append(
                f"{name}: {misread.total():,} of {pool.rows:,} rows do not read as {formats}: {_listed(misread, 0)}"
            )
    return lines


def _reasons(candidates: Candidates, pool: Pool) -> Counter[str]:
    """Rows of a source that are no candidates, by reason."""
    counts: Counter[str] = Counter(candidates.dropped.get(pool.source.name, {}))
    for chunk in pool.chunks:
        counts.update(chunk["reasons"])
    return counts


def _left_out(pool: Pool) -> int:
    return sum(chunk["left_out"] for chunk in pool.chunks)


def _listed(counts: Counter[str], left_out: int) -> str:
    reasons = [f"{count:,} {reason}" for reason, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
    reasons += [f"{left_out:,} left out by where"] if left_out else []
    return ", ".join(reasons) or "none was dropped"
