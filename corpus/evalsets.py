"""Evaluation sets that a corpus must not overlap: their items, found and read as sources are.

An item is the text of one row's field; a list of texts or of messages is joined. The sets' revisions are part of the
candidates' identity.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corpus.decontamination import EvalItem
from corpus.errors import UserError
from corpus.formats import ID_COLUMNS
from corpus.manifest import EvalSet, Manifest, Source
from corpus.readers import Reading, read_pieces
from corpus.sources import FileDigests, ResolvedSource, resolve_source


@dataclass(frozen=True)
class ResolvedEvalSets:
    """All evaluation sets of a manifest at one revision each, in the manifest's order."""

    sets: tuple[tuple[EvalSet, ResolvedSource], ...]

    def identity(self) -> list[dict[str, Any]]:
        """What candidates say of them; the order in the manifest does not matter."""
        bodies = [
            {"set": set_name(one), "field": one.field, "revision": resolved.revision} for one, resolved in self.sets
        ]
        return sorted(bodies, key=lambda body: (body["set"], body["field"], body["revision"]))

    def items(self) -> list[EvalItem]:
        """Every item, sets by name.

        Raises:
            UserError: a file cannot be read, or no row has the field.
        """
        ordered = sorted(self.sets, key=lambda pair: (set_name(pair[0]), pair[0].field, pair[1].revision))
        return [item for one, resolved in ordered for item in _items(one, resolved)]


def set_name(one: EvalSet) -> str:
    """A set's name in drop rows."""
    parts = [one.dataset or one.path, one.config, one.split if one.dataset else None]
    return " ".join(part for part in parts if part)


def resolve_eval_sets(manifest: Manifest, base: Path, digests: FileDigests) -> ResolvedEvalSets:
    """Find the evaluation sets of a manifest.

    Raises:
        UserError: nothing is there, or the Hub refuses.
    """
    asked = manifest.decontaminate.against if manifest.decontaminate else ()
    found = []
    for number, one in enumerate(asked):
        source = Source.model_construct(
            **{
                **{name: info.default for name, info in Source.model_fields.items()},
                **one.model_dump(include={"path", "dataset", "config", "split", "revision"}),
                "name": f"decontaminate.against[{number}]",
            }
        )
        found.append((one, resolve_source(source, base, digests)))
    return ResolvedEvalSets(tuple(found))


def _items(one: EvalSet, resolved: ResolvedSource) -> Iterator[EvalItem]:
    found = 0
    columns: dict[str, None] = {}
    for file in resolved.files:
        for piece in read_pieces(file, Reading(resolved.source.name)):
            for index, row in zip(piece.indexes, piece.rows, strict=True):
                columns |= dict.fromkeys(row)
                text = _text(row.get(one.field))
                if text:
                    found += 1
                    label = next((str(row[name]) for name in ID_COLUMNS if row.get(name) is not None), None)
                    place = f"{file.name} row {index}"
                    yield EvalItem(set_name(one), f"{label} ({place})" if label else place, text)
    if not found:
        known = ", ".join(sorted(columns)[:12])
        raise UserError(
            f"{resolved.source.name} ({set_name(one)}): no row has a text in field {one.field}; columns are {known}."
        )


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return "\n".join(filter(None, map(_text, value)))
    if isinstance(value, dict):
        return _text(value.get("content", value.get("value", value.get("text"))))
    return ""
