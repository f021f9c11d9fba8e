"""What changed between two manifests, in words: pure values in, a few lines out.

Only what changes prompts, answers or the drafter is told. A recipe is compared as it takes effect, category by
category; a source also by what was read of it, because a branch of the Hub moves while the manifest stays.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from corpus.identity import LEFT_OUT, family_id
from corpus.manifest import Manifest

SELECTING = ("seed", "mix", "filters", "dedup", "decontaminate", "licenses", "on_bad_row")
"""Sections whose keys are told as they stand; mix.shares is told apart."""
POLICIES = ("share", "thinking_share", "truncated", "reuse", "imported")
"""Keys of generation that are no part of a recipe."""
SHOWN_CHARS = 40


@dataclass(frozen=True)
class SourceRead:
    """What a build read of one source."""

    pool_id: str
    chunks: int


Recipes = Mapping[tuple[str, bool], Mapping[str, Any]]
"""Effective recipe bodies by category and thinking, those that are in use."""


def manifest_changes(old: Manifest, new: Manifest) -> list[str]:
    """Shares, sources, and every other key that selects prompts or judges answers."""
    lines = _shares(old.mix.normalised(), new.mix.normalised())
    before, after = old.model_dump(mode="json"), new.model_dump(mode="json")
    for body in (before, after):
        del body["mix"]["shares"]
    sources = [{source.pop("name"): source for source in body.pop("sources")} for body in (before, after)]
    lines += _differences({name: before[name] for name in SELECTING}, {name: after[name] for name in SELECTING})
    lines += _differences(_policies(before["generation"]), _policies(after["generation"]))
    for name in sorted(sources[0].keys() | sources[1].keys()):
        if name not in sources[0]:
            lines.append(f"source {name} is added")
        elif name not in sources[1]:
            lines.append(f"source {name} is removed")
        else:
            lines += [f"source {name}: {line}" for line in _differences(sources[0][name], sources[1][name])]
    return lines


def training_changes(old: Manifest, new: Manifest) -> list[str]:
    """Keys of the training section that differ, and whether the drafter stays the one that it is."""
    before, after = ({"training": m.training.model_dump(mode="json")} for m in (old, new))
    stays = {f"training.{key}" for key in LEFT_OUT["drafter"] if key != "init_from"}
    if old.training.feed == new.training.feed == "shards":
        stays |= {f"training.live.{key}" for key in before["training"]["live"]}
    if "d_pace" not in (old.training.loss_weights, new.training.loss_weights):
        stays.add("training.d_pace_alpha")
    lines = []
    for line in _differences(before, after):
        kept = line.split(":", 1)[0] in stays
        lines.append(f"{line}; {'the drafter stays' if kept else 'another drafter is trained, from its first step'}")
    return lines


def depth_changes(old: Mapping[str, SourceRead], new: Mapping[str, SourceRead]) -> list[str]:
    """Sources of both builds that are read deeper, less deep, or at another revision."""
    lines = []
    for name in sorted(old.keys() & new.keys()):
        before, after = old[name], new[name]
        if before.pool_id != after.pool_id:
            lines.append(f"source {name}: other rows are read (revision or reading changed)")
        elif before.chunks != after.chunks:
            how = "deeper" if after.chunks > before.chunks else "less deep"
            lines.append(f"source {name}: read {how}, {before.chunks} -> {after.chunks} chunks")
    return lines


def recipe_changes(old: Recipes, new: Recipes, finished: bool = False) -> list[str]:
    """Categories whose answers are made another way, by what differs, and what becomes of answers of the old way.

    Args:
        finished: with generation.reuse: finished, where max_tokens alone differs, some of them are reused.
    """
    told: dict[str, list[str]] = {}
    for category, thinking in sorted(old.keys() & new.keys()):
        before, after = old[category, thinking], new[category, thinking]
        changed = _differences(_flat_of(before), _flat_of(after))
        if changed:
            kept = finished and family_id(dict(before)) == family_id(dict(after))
            then = "what ended by itself and fits is reused" if kept else "all its answers are made again"
            names = told.setdefault(f"{'; '.join(changed)}; {then}", [])
            names += [category] if category not in names else []
    return [f"recipe of {', '.join(names)}: {what}" for what, names in told.items()]


def _shares(old: Mapping[str, float], new: Mapping[str, float]) -> list[str]:
    return [
        f"share of {name}: {_percent(old.get(name))} -> {_percent(new.get(name))}"
        for name in sorted(old.keys() | new.keys())
        if _percent(old.get(name)) != _percent(new.get(name))
    ]


def _percent(share: float | None) -> str:
    return "none" if share is None else f"{share * 100:.4g}%"


def _policies(generation: Mapping[str, Any]) -> dict[str, Any]:
    flat = _flat(generation, "generation")
    return {key: value for key, value in flat.items() if key.rsplit(".", 1)[-1] in POLICIES}


def _flat_of(body: Mapping[str, Any]) -> dict[str, Any]:
    return _flat(body, "")


def _flat(value: Any, path: str) -> dict[str, Any]:
    """Leaves by dotted path; a list is a leaf."""
    if not isinstance(value, Mapping):
        return {path: value}
    found: dict[str, Any] = {}
    for key, inner in value.items():
        found |= _flat(inner, f"{path}.{key}" if path else str(key))
    return found


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    before, after = _flat(old, ""), _flat(new, "")
    return [
        f"{key}: {_shown(before.get(key))} -> {_shown(after.get(key))}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 1] + "…"
