"""What an export of states is planned from: the captured rows of a build, as the ledger has them, and its folder."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from corpus.artefacts import TEMPORARY_SUFFIX, read_description
from corpus.columns import counted
from corpus.errors import UserError
from corpus.ledger.writer import Readable
from corpus.manifest import Manifest
from corpus.model_config import text_config
from corpus.target import ResolvedTarget
from extraction.interchange import DESCRIPTION, FORMAT, STATES, Capture, Found, InterchangePlan, plan_interchange
from extraction.stage import broken_shards, plan_capture

if TYPE_CHECKING:
    import polars as pl

ALL_ROWS = 1 << 62


def load_interchange(
    manifest: Manifest,
    target: ResolvedTarget,
    build_id: str,
    ledger: Readable,
    folder: Path,
    limit: int | None = None,
    told_target: str | None = None,
) -> InterchangePlan:
    """The plan of a build's captured rows.

    Args:
        limit: at most so many rows, in nested order with category shares kept, held-out ones too.
        told_target: what to call the target in the folder, where its own name is a path of this machine.

    Raises:
        UserError: as plan_interchange; the layers do not fit the target; the folder cannot be one.
    """
    capture_id, layer_ids = plan_capture(manifest, target)
    section = manifest.extraction
    capture = Capture(
        capture_id, told_target or target.target.model, target.revision, layer_ids, section.final_state,
        int(text_config(target.config)["hidden_size"]), section.dtype,
    )  # fmt: skip
    rows, not_captured = _captured_rows(ledger, build_id, capture_id, limit)
    found, free_bytes = read_folder(folder), shutil.disk_usage(_existing(folder)).free
    plan = plan_interchange(folder, manifest.name, build_id, capture, rows, not_captured, found, free_bytes)
    _check_shards(plan, ledger)
    return plan


def _check_shards(plan: InterchangePlan, ledger: Readable) -> None:
    """Refuse to begin without every shard that is still to be read.

    Raises:
        UserError: some are gone, or of another size than the ledger says.
    """
    needed = set(plan.unread["shard"])
    if broken := broken_shards(ledger, plan.capture.capture_id, needed):
        folder = ledger.workspace.hidden(plan.capture.capture_id)
        raise UserError(
            f"{folder}: {len(broken):,} of {counted(len(needed), 'shard')} that the export needs "
            f"{'is' if len(broken) == 1 else 'are'} gone or damaged, {broken[0]} first. "
            "Run `draftmill extract` first: it captures again what was in them."
        )


def read_folder(folder: Path) -> Found:
    """What lies in the folder; nothing where there is none.

    Raises:
        UserError: it cannot be a folder, or not be read.
    """
    _existing(folder)
    try:
        names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        names = [name for name in names if not name.endswith(TEMPORARY_SUFFIX)]  # a killed run's, and nothing else
        if not names:
            return Found()
        try:
            body = read_description(folder / DESCRIPTION)
        except (FileNotFoundError, ValueError):
            body = {}
        if body.get("format") != FORMAT:
            return Found(foreign=names[0])
        said = f"build {body['build_id']}, {body['rows']:,} rows"
        dataset = all((folder / name).is_file() for name in ("dataset_info.json", "state.json"))
        return Found("", body["export_id"], said, frozenset(_rows_there(folder / STATES)), dataset)
    except OSError as error:
        raise UserError(f"{str(folder)!a}: cannot be read ({error.strerror}). Name another folder.") from error


def _rows_there(states: Path) -> list[int]:
    if not states.is_dir():
        return []
    numbers = (path.name.removeprefix("hs_").removesuffix(".safetensors") for path in states.glob("hs_*.safetensors"))
    return [int(number) for number in numbers if number.isdecimal()]


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there.

    Raises:
        UserError: something else is there.
    """
    near = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not near.is_dir():
        raise UserError(f"{str(near)!a}: is no folder. Name a new folder for the export, or an empty one.")
    return near


def _captured_rows(ledger: Readable, build_id: str, capture_id: str, limit: int | None) -> tuple[pl.DataFrame, int]:
    """(the captured rows, how many accepted answers have no states), of a million rows too without an object each.

    A row is due when its group has had its part of all: with a limit every group gives the same part of its first ones.
    """
    found = ledger.frame(
        """
        WITH one AS (
            SELECT response_id, shard, shard_row, tokens FROM hidden_rows WHERE capture_id = ?
            QUALIFY row_number() OVER (PARTITION BY response_id ORDER BY shard, shard_row) = 1
        ), labelled AS (
            SELECT b.response_id, b.prompt_id, b.category, b.source, coalesce(s.license, pools.license) AS license,
                   b.holdout, one.shard, one.shard_row, one.tokens,
                   (row_number() OVER (
                       PARTITION BY b.category, b.source, b.holdout
                       ORDER BY p.source_rank, b.prompt_id, b.replica, b.turn, b.response_id
                   ) - 0.5) / count(*) OVER (PARTITION BY b.category, b.source, b.holdout) AS due
            FROM build_responses b JOIN accepted_responses r ON r.response_id = b.response_id
            JOIN one ON one.response_id = b.response_id JOIN builds ON builds.build_id = b.build_id
            LEFT JOIN prompts p ON p.candidates_id = builds.candidates_id AND p.prompt_id = b.prompt_id
            LEFT JOIN sources s ON s.build_id = b.build_id AND s.source = b.source
            LEFT JOIN pools ON pools.pool_id = s.pool_id
            WHERE b.build_id = ? AND b.left_out IS NULL
        )
        SELECT * EXCLUDE (due) FROM labelled ORDER BY due, category, source, holdout LIMIT ?
        """,
        capture_id, build_id, ALL_ROWS if limit is None else limit,
    )  # fmt: skip
    ((not_captured,),) = ledger.rows(
        """
        SELECT count(*) FROM build_responses b JOIN accepted_responses r ON r.response_id = b.response_id
        WHERE b.build_id = ? AND b.left_out IS NULL
          AND b.response_id NOT IN (SELECT response_id FROM hidden_rows WHERE capture_id = ?)
        """,
        build_id, capture_id,
    )  # fmt: skip
    return found, int(not_captured)
