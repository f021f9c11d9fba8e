"""Engine settings that vLLM would refuse after a minute's start, found before one starts.

Pure but for `vllm_names`, which reads the names that vLLM knows off its installed source: importing it takes seconds
and torch. Only what is sure is a fault; where vLLM is not here, or reads otherwise, the worker finds out.
"""

from __future__ import annotations

import ast
import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from corpus.manifest import Manifest
from corpus.model_config import text_config

SET_ELSEWHERE = {
    "model": "target.model", "tokenizer": "target.model", "dtype": "target.dtype", "revision": "target.revision",
    "max_model_len": "target.max_model_len", "trust_remote_code": "target.trust_remote_code", "seed": "engine.seed",
    "max_num_seqs": "engine.max_num_seqs", "max_num_batched_tokens": "engine.max_num_batched_tokens",
    "gpu_memory_utilization": "engine.gpu_memory_utilization", "kv_cache_dtype": "engine.kv_cache_dtype",
    "quantization": "engine.quantization", "n": "draftmill (one answer a request)",
}  # fmt: skip
"""Arguments that engine.extra may not name, and what sets them."""
LONGER_ALLOWED = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"


@dataclass(frozen=True)
class EngineNames:
    """What vLLM knows by name; None is unknown."""

    arguments: frozenset[str] | None = None
    kv_cache_dtypes: frozenset[str] | None = None


UNKNOWN = EngineNames()


def setting_faults(
    manifest: Manifest,
    config: Mapping[str, Any],
    names: EngineNames = UNKNOWN,
    outer: Mapping[str, str] | None = None,
) -> list[str]:
    """What the engine would refuse of the manifest's engine section and target.max_model_len, a sentence each.

    Args:
        config: the target's config.json.
        names: what the engine knows (vllm_names).
        outer: os.environ, where vLLM may be told to take longer contexts.
    """
    extra = manifest.engine.extra
    return [
        *(
            f"engine.extra.{name} is set by {SET_ELSEWHERE[name]}; remove it from engine.extra."
            for name in extra
            if name in SET_ELSEWHERE
        ),
        *_unknown(extra, names.arguments),
        *_unknown_kv_dtype(manifest.engine.kv_cache_dtype, names.kv_cache_dtypes),
        *step_faults(manifest, manifest.engine.max_num_seqs),
        *_too_long(manifest, config, os.environ if outer is None else outer),
    ]


def step_faults(manifest: Manifest, max_num_seqs: int | str) -> list[str]:
    """A step that has fewer tokens than sequences; `max_num_seqs` may still be auto."""
    tokens = manifest.engine.max_num_batched_tokens
    if not isinstance(tokens, int) or not isinstance(max_num_seqs, int) or tokens >= max_num_seqs:
        return []
    auto = " (auto)" if manifest.engine.max_num_seqs == "auto" else ""
    return [
        f"engine.max_num_batched_tokens is {tokens:,}, less than engine.max_num_seqs, {max_num_seqs:,}{auto}: each "
        "sequence takes one token of a step. Raise the first or lower the second."
    ]


def _unknown(extra: Mapping[str, Any], known: frozenset[str] | None) -> list[str]:
    if known is None:
        return []
    return [
        f"engine.extra.{name} is no argument of this vLLM's engine{_nearest(name, known)}. Correct or remove it."
        for name in extra
        if name not in known and name not in SET_ELSEWHERE
    ]


def _nearest(name: str, known: frozenset[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, sorted(known), n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def _unknown_kv_dtype(dtype: str, known: frozenset[str] | None) -> list[str]:
    if known is None or dtype in known:
        return []
    return [f"engine.kv_cache_dtype is {dtype!r}; this vLLM knows {', '.join(sorted(known))}."]


def _too_long(manifest: Manifest, config: Mapping[str, Any], outer: Mapping[str, str]) -> list[str]:
    """A context longer than the model has positions; silent where something may scale them."""
    text = text_config(dict(config))
    longest, asked = text.get("max_position_embeddings"), manifest.target.max_model_len
    if type(longest) is not int or asked <= longest or "hf_overrides" in manifest.engine.extra:
        return []
    if outer.get(LONGER_ALLOWED, "0").lower() not in ("", "0", "false") or _is_scaled(text):
        return []
    own = [part["model_max_length"] for part in (config, text) if type(part.get("model_max_length")) is int]
    if own and asked <= max(own):
        return []
    return [
        f"target.max_model_len is {asked:,}; the target has {longest:,} positions (max_position_embeddings in its "
        f"config.json) and the engine refuses more. Lower it to {longest} or less."
    ]


def _is_scaled(text: Mapping[str, Any]) -> bool:
    """True where any rope section, of the model or of one kind of its layers, is not the plain one."""
    sections = [section for name in ("rope_scaling", "rope_parameters") if isinstance(section := text.get(name), dict)]
    sections += [inner for section in list(sections) for inner in section.values() if isinstance(inner, dict)]
    kinds = [section.get("rope_type", section.get("type", "default")) for section in sections]
    return any(kind != "default" for kind in kinds) or any("factor" in section for section in sections)


@cache
def vllm_names() -> EngineNames:
    """The names that the installed vLLM knows, from its source; unknown where that is not here or other."""
    try:
        spec = importlib.util.find_spec("vllm")
        folder = Path(next(iter(spec.submodule_search_locations or ()))) if spec else None
        if folder is None:
            return UNKNOWN
        return EngineNames(_fields(folder / "engine" / "arg_utils.py"), _choices(folder / "config" / "cache.py"))
    except (OSError, ValueError, SyntaxError, StopIteration):  # another layout: the worker finds out
        return UNKNOWN


def _fields(path: Path) -> frozenset[str] | None:
    """The fields of AsyncEngineArgs and of what it extends."""
    found = {
        line.target.id
        for part in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(part, ast.ClassDef) and part.name in ("EngineArgs", "AsyncEngineArgs")
        for line in part.body
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
    }
    # without these it is not the class that is meant
    return frozenset(found) if {"model", "max_model_len", "max_num_seqs", "enable_log_requests"} <= found else None


def _choices(path: Path) -> frozenset[str] | None:
    """The strings of CacheDType."""
    for line in ast.parse(path.read_text(encoding="utf-8")).body:
        names = [part.id for part in getattr(line, "targets", ()) if isinstance(part, ast.Name)]
        if isinstance(line, ast.Assign) and names == ["CacheDType"]:
            found = {part.value for part in ast.walk(line.value) if isinstance(part, ast.Constant)}
            words = frozenset(word for word in found if isinstance(word, str))
            return words if "auto" in words else None
    return None
