"""Imports for tests, as the command makes them."""

from __future__ import annotations

from typing import Any

from corpus.import_source import ImportOptions
from corpus.importing import commit_import, plan_import, read_import, settle_labels
from corpus.ledger.writer import open_ledger


def imported(world: Any, *paths: str, **options: Any) -> str:
    """Import these paths; returns the import's id."""
    with open_ledger(world.workspace, "import") as ledger:
        plan = settle_labels(plan_import(ImportOptions(paths, **options), world.root, world.workspace), ledger)
        commit_import(plan, read_import(plan, world.workspace), ledger, lambda text: None)
        return plan.import_id
