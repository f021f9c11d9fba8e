"""A build on the Hub: what would be uploaded, the files of it, and the upload.

The plan reads the ledger and writes nothing. The Hub is asked first (is there a token, may it write, is the dataset
as private as was said), then the files are written and put there in place of an earlier push's. The same command
goes on with an upload that broke off. No message holds the token.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from corpus.artefacts import replace_folder, say_full_disk, temporary_path, write_text
from corpus.building import taken_groups
from corpus.card import CONFIGS, ImportedPart, Published, card_text, one_license
from corpus.columns import table
from corpus.errors import UserError
from corpus.gguf import is_gguf_target
from corpus.ledger.query import query
from corpus.locked import pinned_lock
from corpus.naming import published_lock, published_model, published_path
from corpus.workspace import Workspace
from draftmill.published import write_prompts, write_responses
from draftmill.selecting import selection_plan
from draftmill.session import Session
from draftmill.terminal import say
from draftmill.uploading import Place, check_place, open_repo, size, upload

if TYPE_CHECKING:
    import polars as pl

    from corpus.building import BuildPlan

log = logging.getLogger("draftmill")

LOCK = "manifest.lock.yaml"


@dataclass(frozen=True)
class PushPlan:
    """What a push uploads. Sizes are estimates from the workspace's own files."""

    place: Place
    build: BuildPlan
    published: Published
    license: str
    licenses: tuple[tuple[str, str], ...]
    """(source, its licence)."""
    prompt_bytes: int
    response_bytes: int
    missing: int
    """Answers that the build wants and does not have."""
    unanswered: bool
    """True if answers were to be published and there are none."""
    base: Path
    """The manifest's relative paths start here."""
    out: Path | None

    def lines(self) -> list[str]:
        """For a person."""
        where = f"{self.out} (a folder, nothing is uploaded)" if self.out else self.place.words()
        files = [("data/prompts-*.parquet", f"{self.published.prompts:,}", f"about {size(self.prompt_bytes)}")]
        if self.published.responses is not None:
            files.append(
                ("data/responses-*.parquet", f"{self.published.responses:,}", f"about {size(self.response_bytes)}")
            )
        files += [("README.md", "", ""), (LOCK, "", "")]
        by_source = (
            f" ({', '.join(dict.fromkeys(name for _, name in self.licenses))})" if self.license == "other" else ""
        )
        lines = [
            f"build {self.build.build_id} ({self.published.manifest}) to {where}",
            *(f"  {line.rstrip()}" for line in table(("file", "rows", "size"), files)),
            f"licence: {self.license}{by_source}",
        ]
        if self.unanswered:
            lines.append("no answer is accepted yet; `draftmill generate` makes them")
        elif self.published.responses is not None and self.missing:
            lines.append(f"{self.missing:,} answers are missing or rejected; the accepted ones are published")
        return lines


def plan_push(session: Session, place: Place, prompts_only: bool, out: Path | None) -> PushPlan:
    """What would be published of the manifest's build.

    Raises:
        UserError: it is not built, a licence is denied, or a name is no place to write to.
    """
    check_place(place, out)
    build, workspace = selection_plan(session), session.workspace
    name, of_build = session.manifest.name, f"WHERE b.build_id = '{build.build_id}'"
    entered = query(workspace, f"SELECT 1 FROM builds b {of_build}").height > 0
    if not entered or not (workspace.build(build.build_id) / LOCK).is_file():
        raise UserError(f"{name}: build {build.build_id} is not in {workspace.root} yet. Run `draftmill build` first.")
    wanted, accepted, response_bytes = query(
        workspace,
        "SELECT count(*), count(r.response_id), coalesce(sum(s.size_bytes / s.rows), 0)::BIGINT FROM build_responses b "
        "LEFT JOIN accepted_responses r ON r.response_id = b.response_id AND b.left_out IS NULL "
        f"LEFT JOIN response_shards s USING (shard) {of_build}",
    ).row(0)
    model, revision = _target(session, of_build)
    taken = taken_groups(workspace, build)
    rows, held_out = (int(frame["prefix"].sum()) for frame in (taken, taken.filter("holdout")))
    sources = _sources(workspace, build.build_id)
    candidates = workspace.candidates(build.candidates_id) / "prompts.parquet"
    with_answers = bool(accepted) and not prompts_only
    return PushPlan(
        place,
        build,
        Published(
            place.repo or (out.name if out else ""), build.build_id, name, session.manifest.seed,
            published_model(model, session.base), revision, rows, held_out,
            accepted if with_answers else None, _imports(session, of_build) if with_answers else (),
        ),
        one_license(sources),
        tuple((source, licence or "not stated") for source, licence in sources.select("source", "license").iter_rows()),
        candidates.stat().st_size * rows // max(1, sum(build.counts.values())),
        response_bytes,
        wanted - accepted,
        not accepted and not prompts_only,
        session.base,
        out,
    )  # fmt: skip


def refuse_unanswered(plan: PushPlan) -> None:
    """Refuse to publish prompts alone where that was not asked for.

    Raises:
        UserError: the build has no answers.
    """
    if plan.unanswered:
        raise UserError(
            f"{plan.published.manifest}: build {plan.build.build_id} has no accepted answers. Run `draftmill generate` "
            "first, or push its prompts with --prompts-only."
        )


def run_push(plan: PushPlan, workspace: Workspace) -> str:
    """Write the files and upload them, or leave them in plan.out; returns where they are.

    Raises:
        UserError: no token, the Hub refuses or cannot be reached, or the disk is full.
    """
    if plan.out is not None:
        replace_folder(plan.out, lambda folder: write_tree(plan, workspace, folder))
        return str(plan.out)
    open_repo(plan.place)
    folder = temporary_path(workspace.root / "push")
    try:
        folder.mkdir()
        write_tree(plan, workspace, folder)
        total = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        say(f"push       {size(total)} to {plan.place.words()}")
        replaced = [f"data/{kind}-*.parquet" for kind in CONFIGS]
        return upload(plan.place, folder, f"draftmill build {plan.build.build_id}", replaced)
    except OSError as error:
        say_full_disk(error, folder)
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_tree(plan: PushPlan, workspace: Workspace, folder: Path) -> None:
    """Write what is published into an empty folder."""
    build_id, published = plan.build.build_id, plan.published
    sources = _sources(workspace, build_id)
    data = folder / "data"
    data.mkdir()
    candidates = workspace.candidates(plan.build.candidates_id) / "prompts.parquet"
    published = replace(
        published, prompts=write_prompts(data, candidates, taken_groups(workspace, plan.build), sources)
    )
    if published.responses is not None:
        answers = _answers(workspace, build_id, plan.base)
        published = replace(published, responses=write_responses(data, workspace, answers))
    composition, funnel = (
        query(workspace, f"FROM {view} WHERE build_id = '{build_id}'") for view in ("composition", "funnel")
    )
    write_text(folder / "README.md", card_text(published, composition, sources, funnel))
    lock = json.loads((workspace.build(build_id) / LOCK).read_text())
    lock = published_lock(pinned_lock(lock, (published.model, published.model_revision), plan.base), plan.base)
    write_text(folder / LOCK, json.dumps(lock, indent=1, sort_keys=True) + "\n")


def _target(session: Session, of_build: str) -> tuple[str, str | None]:
    """The model that the build's answers are generated by, and its revision where that is known."""
    generated = query(
        session.workspace,
        "SELECT DISTINCT c.model, c.revision FROM build_responses b JOIN recipes c USING (recipe_id) "
        f"{of_build} AND b.recipe_id NOT IN (SELECT import_id FROM imports) ORDER BY ALL LIMIT 1",
    ).rows()
    if generated:
        return generated[0]
    target = session.manifest.target
    on_hub = published_model(target.model, session.base) == target.model
    return target.model, target.revision if on_hub and not is_gguf_target(target.model) else None


def _imports(session: Session, of_build: str) -> tuple[ImportedPart, ...]:
    """The imports that accepted answers of the build come from."""
    rows = query(
        session.workspace,
        "SELECT i.name, i.model, i.revision, max(s.license) AS license, count(DISTINCT b.response_id) AS answers "
        "FROM build_responses b JOIN accepted_responses r ON r.response_id = b.response_id AND b.left_out IS NULL "
        "JOIN imports i ON i.import_id = b.recipe_id LEFT JOIN sources s ON s.build_id = i.import_id "
        f"{of_build} GROUP BY i.import_id, i.name, i.model, i.revision ORDER BY i.name, i.import_id",
    )
    return tuple(
        ImportedPart(name, published_model(model, session.base), revision, licence, answers)
        for name, model, revision, licence, answers in rows.iter_rows()
    )


def _sources(workspace: Workspace, build_id: str) -> pl.DataFrame:
    found = query(
        workspace,
        "SELECT s.source, p.dataset, p.config, p.split, p.revision, coalesce(s.license, p.license) AS license "
        f"FROM sources s JOIN pools p USING (pool_id) WHERE s.build_id = '{build_id}' ORDER BY s.source",
    )
    return _renamed(found, "dataset", published_path)


def _renamed(frame: pl.DataFrame, column: str, name: Callable[[str], str]) -> pl.DataFrame:
    import polars as pl

    names = {one: name(one) for one in frame[column].unique().drop_nulls()}
    return frame.with_columns(pl.col(column).replace_strict(names, default=None, return_dtype=pl.String))


def _answers(workspace: Workspace, build_id: str, base: Path) -> pl.DataFrame:
    """The build's accepted answers without texts, in the order in which they lie."""
    found = query(
        workspace,
        "SELECT b.response_id, b.prompt_id, b.replica, b.turn, b.category, b.source, b.holdout, r.finish_reason, "
        "c.model, b.recipe_id, c.thinking, r.prompt_tokens, r.response_tokens, "
        "coalesce(s.license, p.license) AS license, i.name AS imported_from, r.shard, r.shard_row "
        "FROM build_responses b JOIN accepted_responses r ON r.response_id = b.response_id AND b.left_out IS NULL "
        "LEFT JOIN recipes c ON c.recipe_id = b.recipe_id "
        "LEFT JOIN sources s ON s.build_id = b.build_id AND s.source = b.source "
        "LEFT JOIN pools p ON p.pool_id = s.pool_id LEFT JOIN imports i ON i.import_id = b.recipe_id "
        f"WHERE b.build_id = '{build_id}' ORDER BY r.shard, r.shard_row",
    )
    return _renamed(found, "model", lambda model: published_model(model, base))
