"""The explorer's pages: rows of a build with filters, one row with all that is known of it, SQL, and files to keep.

Pages are made here, whole, and hold no script: a filter is a form, a page a link, a view an address. Every value that a
page shows goes through Jinja's autoescape and explorer_text; every value that a form sends is bound. Whoever may ask is
the guard's matter. Reads; writes nothing.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined

from corpus.errors import UserError
from corpus.ledger.query import EMPTY_VIEWS, INNER, views
from corpus.ledger.texts import prompt_texts
from corpus.workspace import Workspace
from draftmill.looking.answers import UNLINKED, count, percent
from draftmill.looking.chosen import Build, all_builds
from draftmill.looking.composition import SELECTED, STAGES, TARGET, Composition, read_composition
from draftmill.looking.explorer_export import FORMS, exported
from draftmill.looking.explorer_record import Record, find_record
from draftmill.looking.explorer_rows import (
    ANSWERS,
    DROPPED,
    KINDS,
    ORDERS,
    choices,
    count_rows,
    kinds_of,
    listed,
    places,
)
from draftmill.looking.explorer_snapshot import Published, Snapshot
from draftmill.looking.explorer_sql import Answer, answer
from draftmill.looking.explorer_text import cell, excerpt, visible
from draftmill.looking.filters import BOUNDS, CHOICES, Filters, read_filters, whole, write_filters
from draftmill.looking.reasons import ANSWERS as ANSWER_REASONS
from draftmill.looking.reasons import ROWS as ROW_REASONS

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

T = TypeVar("T")
EXCERPT_CHARS = 160
TEXT_ENTERS_EXPORT = "texts"
TITLES = {
    "category": "Category", "source": "Source", "state": "State", "reason": "Reason",
    "finish_reason": "Finish reason", "holdout": "Held out",
}  # fmt: skip
LIMIT_TITLES = {"prompt": "Prompt tokens", "answer": "Answer tokens"}
ORDER_TITLES = {
    "given": "as in the build", "longest": "longest answer first", "shortest": "shortest answer first",
    "longest-prompt": "longest prompt first",
}  # fmt: skip
KIND_TITLES = {"answers": "Answers", "prompts": "Prompts", "dropped": "Dropped rows"}
assert set(ORDER_TITLES) == set(ORDERS)
EXAMPLES = (
    ("Composition of the newest build",
     "SELECT stage, category, sum(prompts) AS prompts,\n       round(100 * sum(share_prompts), 1) AS percent\n"
     "FROM composition JOIN latest_build USING (build_id)\nGROUP BY ALL ORDER BY stage, prompts DESC"),
    ("What became of each source's rows",
     "SELECT source, reason, rows FROM funnel\nJOIN latest_build USING (build_id)\nORDER BY source, rows DESC"),
    ("Length of answers by category",
     "SELECT category, count(*) AS answers, median(response_tokens) AS median,\n"
     "       quantile_cont(response_tokens, 0.9)::INT AS p90, max(response_tokens) AS longest\n"
     "FROM provenance JOIN latest_build USING (build_id)\nWHERE state = 'accepted' GROUP BY ALL ORDER BY category"),
    ("Answers that were cut off",
     "SELECT category, source, count(*) FILTER (finish_reason = 'length') AS cut_off,\n"
     "       count(*) FILTER (finish_reason IS NOT NULL) AS answers\n"
     "FROM provenance JOIN latest_build USING (build_id)\nGROUP BY ALL ORDER BY cut_off DESC, answers DESC"),
    ("Acceptance length by category",
     "SELECT category, measured_by, round(acceptance_length, 2) AS tau, rows\nFROM acceptance_by_category "
     "ORDER BY category, measured_by"),
)  # fmt: skip


class Explorer:
    """The pages over one workspace."""

    def __init__(self, workspace: Workspace) -> None:
        self.published = Published(workspace)
        self.workspace = workspace
        self._stopping = threading.Event()
        self._asking = threading.Lock()
        self._kept: tuple[Snapshot | None, dict[tuple[str, str], Any]] = (None, {})
        self._templates = Environment(
            loader=PackageLoader("draftmill.looking", "explorer_templates"), autoescape=True, undefined=StrictUndefined,
            trim_blocks=True, lstrip_blocks=True,
        )  # fmt: skip
        self._templates.filters |= {"shown": visible, "cell": cell, "thousands": _thousands, "percent": percent}
        self._templates.globals |= {"query": urlencode}

    def application(self) -> Starlette:
        """The routes; each question is asked in a thread."""
        from starlette.applications import Starlette
        from starlette.routing import Route

        return Starlette(
            routes=[
                Route("/", self._page(self.rows_page)),
                Route("/row", self._page(self.row_page)),
                Route("/sql", self._page(self.sql_page, is_watched=True)),
                Route("/export", self._page(self.export)),
                Route("/style.css", self._page(_style)),
            ]
        )

    def warm(self) -> None:
        """Ask what the first page asks, before anybody does; what fails here fails again where it is seen."""
        try:
            snapshot = self.published.now()
            builds = all_builds(self.workspace, snapshot)
            if builds:
                self._choices(snapshot, kinds_of(snapshot, builds[0].build_id)[0], builds[0])
                self._composition(snapshot, builds[0])
        except UserError:
            return

    def stop(self) -> None:
        """End all questions, soon; for a signal's handler."""
        self._stopping.set()
        self.published.interrupt()

    def _page(self, made: Callable[[Request], Response], is_watched: bool = False) -> Callable[[Request], Any]:
        """The endpoint that makes a page in a thread.

        Args:
            is_watched: `request.state.gone` is set when whoever asked has left.
        """
        from anyio.to_thread import run_sync

        async def answered(request: Request) -> Response:
            request.state.gone = threading.Event()
            watching = asyncio.ensure_future(_leaving(request)) if is_watched else None
            try:
                return await run_sync(made, request, abandon_on_cancel=True)
            except UserError as error:
                return self._html("problem.html", 422, problem=str(error), title="Not shown")
            finally:
                if watching is not None:
                    watching.cancel()

        return answered

    def _html(self, template: str, status: int = 200, **values: Any) -> Response:
        from starlette.responses import HTMLResponse

        values.setdefault("workspace", str(self.workspace.root.absolute()))
        return HTMLResponse(self._templates.get_template(template).render(**values), status_code=status)

    def rows_page(self, request: Request) -> Response:
        """Composition of a build, and a page of its rows."""
        started = time.perf_counter()
        snapshot = self.published.now()
        builds = all_builds(self.workspace, snapshot)
        if not builds:
            raise UserError("the ledger has no build yet. Run `draftmill build MANIFEST`, then reload.")
        asked = request.query_params
        build = _chosen(builds, asked.get("build"))
        kind, order, filters = _asked(request, kinds_of(snapshot, build.build_id))
        page = listed(snapshot, kind, build.build_id, filters, whole("page", asked.get("page") or "1"), order)
        base = [("build", build.build_id), ("kind", kind)]
        view = base + write_filters(filters) + ([("order", order)] if order != "given" else [])
        for row in page.rows:
            row["link"] = urlencode([*_name_of(kind, row), *view, ("page", str(page.paging.number))])
        self._add_excerpts(snapshot, build, page.rows)
        return self._html(
            "rows.html", title=build.name, build=build, builds=builds, kind=kind, page=page, filters=filters,
            order=order, reasons=ROW_REASONS | ANSWER_REASONS,
            kinds=[(one, KIND_TITLES[one], urlencode([("build", build.build_id), ("kind", one)])) for one in KINDS],
            chips=_chips(filters, base, order), base=base, view=view, orders=ORDER_TITLES, forms=FORMS,
            fields=_fields(self._choices(snapshot, kind, build), filters), limits=_limits(kind, filters),
            chart=_chart(self._composition(snapshot, build)), age=_age(self.workspace),
            ms=lambda: round(1000 * (time.perf_counter() - started)), clear=f"?{urlencode(base)}",
        )  # fmt: skip

    def _composition(self, snapshot: Snapshot, build: Build) -> Composition:
        return self._once(snapshot, "composition", build, lambda: read_composition(snapshot, build))

    def _choices(self, snapshot: Snapshot, kind: str, build: Build) -> dict[str, list[tuple[str, int]]]:
        return self._once(snapshot, kind, build, lambda: choices(snapshot, kind, build.build_id))

    def _once(self, snapshot: Snapshot, what: str, build: Build, made: Callable[[], T]) -> T:
        """What is asked of each page again, asked once a snapshot."""
        with self._asking:
            if self._kept[0] is not snapshot:
                self._kept = (snapshot, {})
            kept = self._kept[1]
            if (what, build.build_id) not in kept:
                kept[what, build.build_id] = made()
            return cast(T, kept[what, build.build_id])

    def _add_excerpts(self, snapshot: Snapshot, build: Build, rows: list[dict[str, Any]]) -> None:
        at = places(snapshot, build.build_id, [row["prompt_id"] for row in rows if "pool_id" not in row])
        named = {
            row["prompt_id"]: (row["pool_id"], row["chunk"]) for row in rows if row.get("pool_id") and row["prompt_id"]
        }
        found = prompt_texts(self.workspace, [(prompt_id, *place) for prompt_id, place in {**at, **named}.items()])
        for row in rows:
            prompt = found.get(row["prompt_id"])
            row["unread"] = prompt.why if prompt else None
            row["asked"] = excerpt(prompt.asked, EXCERPT_CHARS) if prompt and not prompt.why else ""

    def row_page(self, request: Request) -> Response:
        """All that is known of one row, and its text."""
        snapshot = self.published.now()
        asked = request.query_params
        back = [(key, value) for key, value in asked.multi_items() if key not in ("id", "place")]
        found: Record = find_record(self.workspace, snapshot, asked.get("id", ""), asked.get("place"))
        return self._html("row.html", title=found.title, record=found, back=f"./?{urlencode(back)}", context=back)

    def sql_page(self, request: Request) -> Response:
        """A statement and its result."""
        sql = request.query_params.get("q", "")
        snapshot = self.published.now()
        gone: threading.Event = request.state.gone

        def is_over() -> bool:
            return gone.is_set() or self._stopping.is_set()

        made: Answer | None = answer(self.workspace, sql, is_over=is_over) if sql.strip() else None
        builds = all_builds(self.workspace, snapshot)
        is_unanswered = bool(builds) and ANSWERS not in kinds_of(snapshot, builds[0].build_id)
        return self._html(
            "sql.html", title="SQL", sql=sql, answer=made, examples=EXAMPLES, views=_views(snapshot),
            unanswered=f"{builds[0].label}: {UNLINKED}" if is_unanswered else "",
        )  # fmt: skip

    def export(self, request: Request) -> Response:
        """The filtered rows as a file."""
        from starlette.responses import StreamingResponse

        snapshot = self.published.now()
        asked = request.query_params
        build = _chosen(all_builds(self.workspace, snapshot), asked.get("build"))
        kind, _, filters = _asked(request, list(KINDS))
        form = asked.get("form", "csv")
        if form not in FORMS:
            raise UserError(f"form: got {ascii(form)[:40]}; expected one of {', '.join(FORMS)}.")
        rows = count_rows(snapshot, kind, build.build_id, filters)
        pieces = exported(snapshot, kind, build.build_id, filters, form, texts=asked.get(TEXT_ENTERS_EXPORT) == "on")
        name = f"draftmill-{build.build_id[:8]}-{kind}-{rows}.{form}"
        headers = {"content-disposition": f'attachment; filename="{name}"'}
        return StreamingResponse(_begun(pieces), media_type=FORMS[form], headers=headers)


async def _leaving(request: Request) -> None:
    """Wait until the connection is closed."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    request.state.gone.set()


def _begun(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The same, its first piece made now: what fails at once is an error page, not half a file."""
    first = next(pieces, b"")

    def whole_of() -> Iterator[bytes]:
        yield first
        yield from pieces

    return whole_of()


def _style(request: Request) -> Response:
    from starlette.responses import Response

    text = resources.files("draftmill.looking").joinpath("explorer_templates/style.css").read_text(encoding="utf-8")
    return Response(text, media_type="text/css")


def _chosen(builds: list[Build], wanted: str | None) -> Build:
    """The build of an id, the newest without one."""
    found = next((one for one in builds if wanted in (None, "", one.build_id)), None)
    if found is None:
        raise UserError(f"build: the ledger has no {ascii(wanted)[:60]}. Choose one of the list.")
    return found


def _asked(request: Request, kinds: list[str]) -> tuple[str, str, Filters]:
    asked = request.query_params
    kind, order = asked.get("kind") or kinds[0], asked.get("order") or "given"
    if kind not in KINDS or order not in ORDERS:
        raise UserError(f"kind, order: got {ascii(kind)[:40]}, {ascii(order)[:40]}; expected one of the lists.")
    return kind, order, read_filters(asked.multi_items())


def _name_of(kind: str, row: dict[str, Any]) -> list[tuple[str, str]]:
    if kind == ANSWERS:
        return [("id", row["response_id"])]
    if kind == DROPPED:
        return [("place", f"{row['pool_id']}:{row['chunk']}:{row['row_index']}:{row['file']}")]
    return [("id", row["prompt_id"])]


def _fields(
    offered: dict[str, list[tuple[str, int]]], filters: Filters
) -> list[tuple[str, str, list[tuple[str, int, bool]]]]:
    """Name, title and choices (value, rows, chosen) of each column that tells rows apart here."""
    fields = []
    for name in CHOICES:
        chosen = getattr(filters, name)
        values = offered[name] + [(value, 0) for value in chosen if value not in dict(offered[name])]
        if len(values) > 1 or chosen:
            fields.append((name, TITLES[name], [(value, rows, value in chosen) for value, rows in values]))
    return fields


def _limits(kind: str, filters: Filters) -> list[tuple[str, list[tuple[str, str, int | None]]]]:
    """Title, then name, words and value of each end."""
    names = {ANSWERS: ("prompt", "answer"), DROPPED: ()}.get(kind, ("prompt",))
    ends = (("min", "at least"), ("max", "at most"))
    return [
        (LIMIT_TITLES[name], [(f"{name}_{end}", words, getattr(filters, f"{name}_{end}")) for end, words in ends])
        for name in names
    ]


def _chips(filters: Filters, base: list[tuple[str, str]], order: str) -> list[tuple[str, str]]:
    """Each thing that is filtered by: in words, and the address without it."""
    kept = base + ([("order", order)] if order != "given" else [])
    chips = []
    for name in CHOICES:
        values = getattr(filters, name)
        for value in values:
            rest = filters.but(name, tuple(one for one in values if one != value))
            chips.append((f"{TITLES[name]}: {value or '(none)'}", f"?{urlencode(kept + write_filters(rest))}"))
    for key, (column, sign) in BOUNDS.items():
        limit = getattr(filters, key)
        if limit is not None:
            counted, than = column.replace("_", " ").replace("response", "answer"), {">=": "≥", "<=": "≤"}[sign]
            chips.append((f"{counted} {than} {limit:,}", f"?{urlencode(kept + write_filters(filters.but(key, None)))}"))
    return chips


def _chart(made: Composition) -> dict[str, Any]:
    """Bars of each category at each stage, on one scale."""
    stages = [stage for stage in STAGES if stage != TARGET and stage in made.stages]
    shares = [made.share(stage, name) or 0.0 for stage in made.stages for name in made.categories]
    most = min(math.ceil(max([*shares, 0.01]) * 10 - 1e-9) / 10, 1.0)
    lines = []
    for name in made.categories:
        target = made.share(TARGET, name)
        cells = [
            {"stage": stage, "share": made.share(stage, name), "amount": made.amount(stage, name),
             "off": None if stage == SELECTED else made.off(stage, name),
             "width": round(100 * (made.share(stage, name) or 0.0) / most, 2)}
            for stage in stages
        ]  # fmt: skip
        mark = None if target is None else round(100 * target / most, 2)
        lines.append(
            {"name": name, "target": target, "wanted": made.amount(TARGET, name), "mark": mark, "cells": cells}
        )
    totals = [(stage, made.amount(stage)) for stage in stages]
    return {
        "stages": stages,
        "lines": lines,
        "totals": totals,
        "unit": "answer tokens" if made.in_tokens else "prompts",
    }


def _age(workspace: Workspace) -> str:
    age_s = max(int(time.time() - workspace.snapshot.stat().st_mtime), 0)
    words = f"{age_s} s" if age_s < 120 else f"{age_s // 60} min" if age_s < 7200 else f"{age_s // 3600} h"
    writing = "; a run is writing" if workspace.coordinator() is not None else ""
    return f"published {words if age_s < 172_800 else f'{age_s // 86_400} days'} ago{writing}"


def _views(snapshot: Snapshot) -> list[tuple[str, str, str]]:
    """Name, comment and columns of each view and table that is there to be asked."""
    comments = dict(snapshot.rows(
        "SELECT view_name, comment FROM duckdb_views() WHERE database_name = 'ledger' AND NOT internal "
        "UNION ALL SELECT table_name, comment FROM duckdb_tables() WHERE database_name = 'ledger'"
    ))  # fmt: skip
    columns = snapshot.rows(
        "SELECT table_name, string_agg(column_name, ', ' ORDER BY column_index) FROM duckdb_columns() "
        "WHERE database_name = 'ledger' AND NOT internal GROUP BY table_name ORDER BY table_name"
    )
    return _text_views() + [
        (name, comments.get(name) or "", names) for name, names in columns
        if name not in INNER and name != "schema_migrations" and not name.startswith("kept_")
    ]  # fmt: skip


@cache
def _text_views() -> list[tuple[str, str, str]]:
    """The same of the views that read files, which no snapshot holds."""
    return [
        (name, comment, ", ".join(column for column, _, _ in columns))
        for name, comment, columns in views() if name in EMPTY_VIEWS
    ]  # fmt: skip


def _thousands(number: int | None) -> str:
    return "–" if number is None else count(number, 12)
