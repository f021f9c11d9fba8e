"""What Tab offers beside commands and options: manifests, and the builds, categories and sources of a workspace.

Reads names of files and the builds' own small build.json, never the ledger, and imports nothing heavy: the shell waits.
What cannot be read offers nothing; the shell then completes file names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import typer

FINISH_REASONS = ("stop", "length", "abort")
SHORT = 8
"""Digits of an id that are offered."""


def manifests(incomplete: str) -> list[str]:
    """YAML files of the folder that the word so far leads to, as the word has it."""
    folder, slash, begun = incomplete.rpartition("/")
    try:
        names = sorted(path.name for path in Path(f"{folder}{slash}" or ".").glob("*.y*ml") if path.is_file())
    except (OSError, ValueError):
        return []
    return [f"{folder}{slash}{name}" for name in names if name.startswith(begun)]


def builds(ctx: typer.Context, incomplete: str) -> list[str]:
    """Builds and imports by name, by id where the word begins so or two have one name; and manifests."""
    return _builds(list(_described(ctx)), incomplete)


def selected_builds(ctx: typer.Context, incomplete: str) -> list[str]:
    """The same without imports, which nobody selected and a diff does not take."""
    return _builds([(name, body) for name, body in _described(ctx) if body.get("kind") != "import"], incomplete)


def _builds(described: list[tuple[str, dict[str, Any]]], incomplete: str) -> list[str]:
    known = [(str(body.get("name") or ""), folder) for folder, body in described]
    names = [name for name, _ in known]
    offered = [name if names.count(name) == 1 and _one_word(name) else folder[:SHORT] for name, folder in known]
    offered += [folder[:SHORT] for _, folder in known if incomplete and folder.startswith(incomplete)]
    return [*_beginning(offered, incomplete), *manifests(incomplete)]


def categories(ctx: typer.Context, incomplete: str) -> list[str]:
    """Categories that builds of the workspace have a share for."""
    return _beginning(_each(ctx, "targets", "category"), incomplete)


def sources(ctx: typer.Context, incomplete: str) -> list[str]:
    """Sources that builds of the workspace read."""
    return _beginning(_each(ctx, "sources", "source"), incomplete)


def drop_reasons(incomplete: str) -> list[str]:
    """Codes of why source rows are left out, and not_needed."""
    from draftmill.looking.reasons import NOT_NEEDED, ROWS

    return _beginning([*ROWS, NOT_NEEDED], incomplete)


def finish_reasons(incomplete: str) -> list[str]:
    """How engines say that answers ended."""
    return _beginning(FINISH_REASONS, incomplete)


def hardware(incomplete: str) -> list[str]:
    """GPUs of docs/hardware.md."""
    from draftmill.hardware import GPUS

    return _beginning((gpu.name for gpu in GPUS), incomplete)


def _each(ctx: typer.Context, section: str, key: str) -> Iterator[str]:
    for _, body in _described(ctx):
        listed = body.get(section)
        for one in listed if isinstance(listed, list) else []:
            if isinstance(one, dict) and isinstance(one.get(key), str):
                yield one[key]


def _described(ctx: typer.Context) -> Iterator[tuple[str, dict[str, Any]]]:
    """(id, what its file says) of every build of the workspace that the line names; damaged ones are left out."""
    from draftmill.builds import described

    root = ctx.params.get("workspace")
    if root:
        yield from ((build_id, body) for build_id, body in described(Path(root)) if body)


def _beginning(words: Iterable[str], incomplete: str) -> list[str]:
    return sorted({word for word in words if word.startswith(incomplete) and _one_word(word)})


def _one_word(text: str) -> bool:
    """Whether neither shell nor terminal takes it for something else."""
    return text.isprintable() and len(text.split()) == 1
