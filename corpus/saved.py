"""Folders that `datasets` wrote with save_to_disk: which of their files are rows, and what they say of themselves.

state.json names the data files in order; cache files of map and filter lie beside them and are never rows. A
DatasetDict is a folder of such folders, one a split. save_to_disk flattens a selection before it writes, so the files
are the rows.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corpus.errors import UserError, first_line

STATE, INFO, SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"


@dataclass(frozen=True)
class Saved:
    """A saved dataset: its data files, and what its dataset_info.json says."""

    files: list[Path]
    split: str | None
    license: str | None


def read_saved(folder: Path, split: str, at: str) -> Saved | None:
    """What a saved dataset's folder holds; None if it is another folder. `at` begins a line for a person.

    Raises:
        UserError: it has no such split, or is not whole.
    """
    if (folder / SPLITS).is_file():
        splits = _read(folder / SPLITS, at).get("splits")
        if not isinstance(splits, list):
            raise UserError(f"{at}: {SPLITS} names no splits. Save the dataset again.")
        if split not in splits:
            raise UserError(f"{at}: has no split {split}; it has {', '.join(map(str, splits)) or 'none'}.")
        inner = _one(folder / split, at)
        return Saved(inner.files, split, inner.license)
    return _one(folder, at) if (folder / STATE).is_file() and (folder / INFO).is_file() else None


def is_beside_rows(path: Path) -> bool:
    """True for a file that `datasets` keeps beside the rows: its descriptions and its caches."""
    if path.name == SPLITS:
        return True
    return (path.name in (STATE, INFO) or path.name.startswith("cache-")) and (path.parent / INFO).is_file()


def _one(folder: Path, at: str) -> Saved:
    state, info = _read(folder / STATE, at), _read(folder / INFO, at)
    if state.get("_indices_data_files"):
        raise UserError(f"{at}: {folder.name} is a selection by an indices file (datasets 1). Save it again.")
    try:
        files = [folder / Path(one["filename"]).name for one in state["_data_files"]]
    except (KeyError, TypeError) as error:
        raise UserError(f"{at}: {folder.name}/{STATE} names no data files. Save the dataset again.") from error
    for file in files:
        if not file.is_file():
            raise UserError(f"{at}: {file.name} is missing, which {folder.name}/{STATE} names. Save the dataset again.")
    licence = info.get("license")
    return Saved(files, None, str(licence) if licence else None)


def _read(path: Path, at: str) -> dict[str, Any]:
    try:
        body = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        first = getattr(error, "strerror", None) or first_line(error)
        raise UserError(
            f"{at}: {path.parent.name}/{path.name} cannot be read ({first}). Save the dataset again."
        ) from error
    return body if isinstance(body, dict) else {}
