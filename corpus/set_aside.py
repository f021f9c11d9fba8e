"""Rows of a capture that no worker could capture, and why: hidden/<capture_id>/set_aside.json.

They are not tried again unless a run is asked to. A row that is captured after all is set aside no longer: a run
takes it out with `forget`, and the ledger leaves out whatever it has states of.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from corpus.artefacts import read_description, write_description

FILE = "set_aside.json"


@dataclass(frozen=True)
class SetAside:
    """Why one response has no states."""

    tokens: int
    reason: str
    device: str


def read_set_aside(folder: Path) -> dict[str, SetAside]:
    """By response_id; none where the file is missing or damaged, and its rows are tried again."""
    try:
        return {response_id: SetAside(**body) for response_id, body in read_description(folder / FILE)["rows"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def write_set_aside(folder: Path, rows: Mapping[str, SetAside]) -> None:
    """Put them all there, in place of what was.

    Raises:
        UserError: the disk is full.
    """
    body = {response_id: asdict(entry) for response_id, entry in sorted(rows.items())}
    write_description(folder / FILE, {"schema_version": 1, "rows": body})


def forget(folder: Path, response_ids: Iterable[str]) -> None:
    """Take out rows that were captured after all.

    Raises:
        UserError: the disk is full.
    """
    rows, captured = read_set_aside(folder), set(response_ids)
    if not captured.isdisjoint(rows):
        write_set_aside(folder, {name: entry for name, entry in rows.items() if name not in captured})
