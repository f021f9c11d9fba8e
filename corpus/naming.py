"""What is published of the paths of this machine: enough to tell one thing from another, and not where it lay.

Identities and the ledger keep what was said. Names that hold anywhere (of the Hub, of packages) stay as they are, and
so does what a manifest says relative to itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from corpus.gguf import PREFIX, is_gguf_target

KEPT_PARTS = 2


def published_model(model: str, base: Path) -> str:
    """A model's name: of a folder or file on this machine its last part. Relative paths start at `base`."""
    if model.startswith(PREFIX):
        return model
    path = Path(model).expanduser()
    if not is_on_hub(model, base):
        return path.name if path.name not in ("", "..") else (base / path).resolve().name
    return model


def is_on_hub(model: str, base: Path) -> bool:
    """Whether a model's name means the Hub, not a folder or file of this machine."""
    path = Path(model).expanduser()
    here = is_gguf_target(model) or _is_elsewhere(model) or len(path.parts) > KEPT_PARTS or (base / path).is_dir()
    return not here


def published_path(text: str) -> str:
    """A path of files: an absolute one by its last two parts."""
    return str(PurePosixPath(*PurePosixPath(text).parts[1:][-KEPT_PARTS:])) if _is_elsewhere(text) else text


def published_lock(lock: dict[str, Any], base: Path) -> dict[str, Any]:
    """The lock of a build without absolute paths."""
    told: dict[str, Any] = _told(lock)
    target = lock["manifest"]["target"]
    told["manifest"]["target"] = told["manifest"]["target"] | {"model": published_model(target["model"], base)}
    return told


def changed_keys(before: Any, after: Any, at: str = "") -> Iterator[str]:
    """Where two values of one shape differ: `target.model`, `sources[0].path`, …"""
    if isinstance(before, dict):
        for key in before:
            yield from changed_keys(before[key], after[key], f"{at}.{key}" if at else key)
    elif isinstance(before, list):
        for number, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from changed_keys(one, other, f"{at}[{number}]")
    elif before != after:
        yield at


def _told(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _told(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_told(inner) for inner in value]
    return published_path(value) if isinstance(value, str) else value


def _is_elsewhere(text: str) -> bool:
    return text.startswith(("/", "~/"))
