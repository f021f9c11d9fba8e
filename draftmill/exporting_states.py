"""The export of hidden states, joined: the manifest's build and capture, as published, to a folder of another trainer.

Reads the published ledger and the shards, so it may run beside a run that writes here; it takes no lock.
"""

from __future__ import annotations

from pathlib import Path

from corpus.naming import published_model
from draftmill import selecting
from draftmill.session import Session
from draftmill.stage_run import reader
from draftmill.terminal import Screen
from extraction.interchange import InterchangePlan
from extraction.interchange_files import run_interchange
from extraction.interchange_stage import load_interchange


def plan_states(session: Session, folder: Path) -> InterchangePlan:
    """What the folder would hold of the manifest's build.

    Raises:
        UserError: nothing is captured, the capture keeps no final state, the folder holds something else, or the disk
            is too small.
    """
    published = reader(session)
    build = selecting.build_plan(session, published)
    told = published_model(session.manifest.target.model, session.base)
    return load_interchange(session.manifest, session.target, build.build_id, published, folder, session.limit, told)


def run_states(plan: InterchangePlan, session: Session) -> str:
    """Write what is left of it; returns a line that says what is there now."""
    folder, rows = plan.folder, plan.rows.height
    if plan.finished:
        return f"nothing to do: {folder} holds these {rows:,} rows"
    with Screen("copying states") as screen:
        run_interchange(plan, session.workspace, lambda done, total: screen.update(f"{done:,} of {total:,} rows"))
    return f"{folder} holds {rows:,} rows; {plan.split_line()}"
