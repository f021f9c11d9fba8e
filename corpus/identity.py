"""What each identity is the digest of, and what it leaves out, in one table.

Every id is made here, from plain values, so that a test can hold "changes it" and "does not" side by side.
Changing a rule raises the version of its kind, and old ids are never read as new ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from corpus.canonical import digest
from corpus.manifest import CategoryByColumn, Manifest, Sampling, Source

READER_VERSION = 2
FORMAT_VERSION = 2
SELECTION_VERSION = 2

PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
"""Of engine.extra, what says where an answer is made and not how."""

# What a digest leaves out, and why.
LEFT_OUT: dict[str, dict[str, str]] = {
    "pool": {
        "name": "two sources may read the same rows",
        "weight": "how many are taken says nothing about what was read",
        "priority": "decided when sources meet",
        "category": "a label on rows that are the same",
        "license": "recorded with the row, changes no text",
        "revision": "the resolved commit or content digest is in instead",
    },
    "candidates": {
        "mix": "shares take prefixes of an order that does not know them",
        "decontaminate": "the sets' names, fields and revisions are in instead, in any order",
        "weight": "likewise",
        "generation": "prompts do not depend on answers",
    },
    "build": {
        "tolerance": "when to top up, not what to take first",
        "reserve": "how deep sources are read, which the candidates say",
    },
    "recipe": {
        "devices": "the same tokens may come from any GPU",
        "extra.tensor_parallel_size": "or from several; pipeline and data parallel sizes likewise",
        "max_num_seqs": "batching is not bitwise repeatable anyway",
        "max_num_batched_tokens": "likewise",
        "gpu_memory_utilization": "how much fits, not what is said",
        "seed": "which draw, not which distribution",
        "truncated": "a policy on answers, not on how they are made",
        "reject": "likewise",
        "token_logprobs": "what is noted of a token, not which one is drawn",
    },
    "capture": {"max_tokens_per_batch": "right padding changes no state beyond rounding"},
    "drafter": {
        "checkpoint_every": "how often it is saved, not what it is",
        "activation_checkpointing": "memory for time, the same gradients",
        "live.targets": "who captures, not what is captured",
        "live.drafters": "any number of drafters may go on from a checkpoint",
        "live.queue_gb": "how far targets may run ahead",
        "live.holdout_rows": "what is measured, not what is trained",
        "init_from": "the digest of its files is in instead",
    },
}

DRAFTER_USUAL: dict[str, Any] = {"loss_weights": "decay", "gradient_accumulation": 1, "init": None}
"""Training keys, and the values with which a drafter has the id that it had before there were such keys."""


def pool_id(source: Source, resolved_revision: str, files: list[str], skip_bad: bool) -> str:
    """Identity of what is read from one source."""
    spec = source.model_dump(mode="json", exclude=set(LEFT_OUT["pool"]))
    # the rule is left out, but the column that it looks at must have been read
    spec["label_column"] = source.category.column if isinstance(source.category, CategoryByColumn) else None
    return digest(
        "pool",
        {
            "spec": spec,
            "revision": resolved_revision,
            "files": files,
            "skip_bad": skip_bad,
            "reader": READER_VERSION,
            "format": FORMAT_VERSION,
        },
        length=24,
    )


def candidates_id(manifest: Manifest, pools: list[dict[str, Any]], rules: dict[str, Any], tokenizer: str | None) -> str:
    """Identity of the ordered candidates.

    Args:
        pools: source, pool_id, chunks read; order does not matter.
        rules: what else the facts that are asked for depend on: versions, revisions of evaluation sets.
    """
    sources = {s.name: s.model_dump(mode="json", include={"category", "priority"}) for s in manifest.sources}
    return digest(
        "candidates",
        {
            "pools": sorted(pools, key=lambda pool: str(pool["source"])),
            "sources": sources,
            "seed": manifest.seed,
            "categories": sorted(manifest.mix.shares),
            "filters": manifest.filters.model_dump(mode="json"),
            "dedup": manifest.dedup.model_dump(mode="json"),
            "ngram": manifest.decontaminate and manifest.decontaminate.ngram,
            "rules": rules,
            "version": SELECTION_VERSION,
            "holdout": manifest.mix.holdout,
            "tokenizer": tokenizer,
        },
        length=24,
    )


def build_id(candidates: str, manifest: Manifest, weights: dict[str, float]) -> str:
    """Identity of a build: candidates and mix (with the weights of its sources)."""
    mix = manifest.mix.model_dump(mode="json", exclude=set(LEFT_OUT["build"]))
    return digest("build", {"candidates": candidates, "mix": mix, "weights": weights}, length=24)


def recipe_body(
    manifest: Manifest, target: dict[str, Any], sampling: Sampling, max_tokens: int, thinking: bool
) -> dict[str, Any]:
    """The effective recipe of one prompt: everything that changes how it is answered."""
    own_code = {"trust_remote_code": True} if manifest.target.trust_remote_code else {}
    return own_code | {
        "target": target,
        "max_model_len": manifest.target.max_model_len,
        "dtype": manifest.target.dtype,
        "engine": {
            "kind": manifest.engine.kind,
            "kv_cache_dtype": manifest.engine.kv_cache_dtype,
            "quantization": manifest.engine.quantization,
            "extra": {key: value for key, value in manifest.engine.extra.items() if key not in PARALLEL},
        },
        "sampling": sampling.model_dump(mode="json"),
        "max_tokens": max_tokens,
        "thinking": thinking,
    }


def recipe_id(body: dict[str, Any]) -> str:
    """Identity of an effective recipe."""
    return digest("recipe", body, length=24)


def response_id(prompt: str, recipe: str, replica: int, turn: int) -> str:
    """Identity of one answer."""
    return digest("response", {"prompt": prompt, "recipe": recipe, "replica": replica, "turn": turn})


def family_id(body: dict[str, Any]) -> str:
    """What recipes share that differ in max_tokens alone: what ended by itself under one is the others' too."""
    return digest("family", {key: value for key, value in body.items() if key != "max_tokens"}, length=24)


def response_ids(answers: Iterable[tuple[str, str, int, int]]) -> list[str]:
    """`response_id` of many (prompt, recipe, replica, turn), whose ids are hex digits: three times as fast."""
    sha256 = hashlib.sha256
    return [
        sha256(
            f'response:v1:{{"prompt":"{prompt}","recipe":"{recipe}","replica":{replica},"turn":{turn}}}'.encode()
        ).hexdigest()[:32]
        for prompt, recipe, replica, turn in answers
    ]


def capture_id(target: dict[str, Any], layer_ids: list[int], final_state: bool, dtype: str, stored_dtype: str) -> str:
    """Identity of captured states. `layer_ids` are 0-based layer outputs."""
    body = {
        "target": {key: target[key] for key in ("model", "revision")},
        "layer_ids": layer_ids,
        "final_state": "before_norm" if final_state else "none",
        "dtype": dtype,
        "stored_dtype": stored_dtype,
    }
    return digest("capture", body, length=24)


def drafter_training(training: Mapping[str, Any]) -> dict[str, Any]:
    """What of a training section is part of a drafter's identity; what says the usual is left out."""
    kept = {key: value for key, value in training.items() if key not in LEFT_OUT["drafter"]}
    live = kept.pop("live", None) or {}
    if kept.get("feed") == "live":
        kept["live"] = {key: value for key, value in live.items() if f"live.{key}" not in LEFT_OUT["drafter"]}
    # keys that came later count where they say something else than what was always done
    for key, usual in DRAFTER_USUAL.items():
        if kept.get(key) == usual:
            kept.pop(key, None)
    if kept.get("loss_weights") != "d_pace":
        kept.pop("d_pace_alpha", None)
    return kept


def drafter_id(build: str, response_ids: list[str], capture: str, training: dict[str, Any]) -> str:
    """Identity of a drafter: it names its data exactly. The order of responses does not matter."""
    kept = drafter_training(training)
    body = {"build": build, "responses": sorted(response_ids), "capture": capture, "training": kept}
    return digest("drafter", body, length=24)
