"""The explorer in a real browser, over a workspace of hostile texts: it shows all of them, and does what none says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from draftmill.looking.explorer_text import visible

if TYPE_CHECKING:
    from tests.browser.conftest import Watched

ROOT = Path(__file__).resolve().parents[2]
RAN = "window.ran = true"
LONG = "W" * 1_000_000
HOSTILE = [
    f"<script>{RAN}</script>",
    f'"><img src=x onerror="{RAN}"><svg onload="{RAN}">',
    "</pre></bdi></textarea></style><h1 id=injected>gone</h1>",
    f"[click](javascript:{RAN}) ![pixel](http://evil.example/pixel.png) <http://evil.example>",
    "http://evil.example/picture.png",
    "\x1b[31mred\x1b[0m \u202egnihtemos\u202c \u2066\x00 a\u0301\u0301\u0301\u0301\u0301\u0301\u0301\u0301",
    "{{ 7 * 7 }} {% raw %} %s {0} ${7}",
    LONG,
]
EVIL_CATEGORY = f'<img src=x onerror="{RAN}">'
EVIL_SOURCE = f"</option><script>{RAN}</script>\u202e"
EVIL_ANSWER = f"<script>{RAN}</script> & <b>bold</b> \x1b[2J\u202e\nsecond line"


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two builds; the newer has 60 answers over two categories, hostile ones first."""
    from tests.conftest import World

    world = World(tmp_path_factory.mktemp("hostile"))
    rows = [{"id": i, "prompt": text} for i, text in enumerate(HOSTILE)]
    rows += [{"id": f"n{i}", "prompt": f"code question {i % 40}"} for i in range(45)]
    talk = [{"id": i, "prompt": f"talk question {i}"} for i in range(30)]
    sources = [
        {"name": "code", "path": world.jsonl("code.jsonl", rows), "category": "coding", "license": "mit"},
        {"name": "talk", "path": world.jsonl("talk.jsonl", talk), "category": "general", "license": "cc0-1.0"},
    ]
    body: dict[str, Any] = {
        "sources": sources, "filters": {"prompt_chars": [1, 5_000_000]}, "dedup": {"exact": True},
        "target": {"model": "model", "max_model_len": 4_000_000, "dtype": "float32"},
    }  # fmt: skip
    shares = {"coding": 48, "general": 24}
    world.tell(world.manifest(**body, mix={"total": 12, "shares": shares, "holdout": 0}, name="first"))
    world.tell(world.manifest(**body, mix={"total": 72, "shares": shares, "holdout": 0}, name="second"))
    with duckdb.connect(str(world.workspace.snapshot)) as connection:
        for column, plain, evil in (("category", "general", EVIL_CATEGORY), ("source", "talk", EVIL_SOURCE)):
            named = "SELECT table_name FROM duckdb_columns() WHERE column_name = ? AND table_name IN (FROM tables)"
            tables = "WITH tables AS (SELECT table_name FROM duckdb_tables()) "
            for (table,) in connection.execute(tables + named, [column]).fetchall():
                connection.execute(f"UPDATE {table} SET {column} = ? WHERE {column} = ?", [evil, plain])
    for path in world.workspace.responses.glob("*.parquet"):
        table = pq.read_table(path)
        place = table.schema.get_field_index("text")
        texts = pa.array([EVIL_ANSWER] * table.num_rows, table.schema.field(place).type)
        pq.write_table(table.set_column(place, table.schema.field(place), texts), path)
    return world.workspace.root


@pytest.fixture(scope="module")
def address(workspace: Path) -> Iterator[str]:
    """Where `draftmill explore` serves it."""
    command = [sys.executable, "-m", "draftmill", "explore", "--no-browser", "-w", str(workspace)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.terminate()


def number(watched: Watched) -> int:
    return int(watched.page.locator("#count").inner_text().replace(",", ""))


def assert_harmless(watched: Watched) -> None:
    """Nothing ran, nothing was put into the page, nothing left the machine, nothing is wider than the window."""
    watched.assert_quiet()
    assert watched.page.evaluate(
        "window.ran === undefined && !document.querySelector('#injected, img, script, iframe')"
    )
    assert watched.overflow_px() <= 0


@pytest.mark.parametrize("width", [1280, 390])
def test_rows_filters_pages_and_texts(address: str, open_page: Callable[..., Watched], width: int) -> None:
    watched = open_page(width, color_scheme="dark" if width == 390 else "light")
    page = watched.page
    page.goto(address)
    assert number(watched) == 72
    watched.shot(f"rows-{width}")
    bars = page.locator("svg.bar")
    assert bars.count() >= 6
    for box in (bars.nth(i).locator(".fill").bounding_box() for i in range(bars.count())):
        assert box and box["width"] > 20 and box["height"] > 3
    assert page.locator(".composition").inner_text().count("%") >= 8
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 21, 26)"
    assert dark == (width == 390)
    assert_harmless(watched)

    if width == 390:
        page.get_by_text("Filters").click()
    page.get_by_role("checkbox", name=visible(EVIL_CATEGORY)).check()
    page.locator("input[name=answer_min]").fill("3")
    watched.shot(f"filters-{width}")
    page.get_by_role("button", name="Apply").click()
    assert 0 < number(watched) <= 24
    assert all("talk question" in text for text in page.locator("a.read").all_inner_texts())
    assert page.locator(".chip").count() == 2
    page.locator(".chip").nth(1).click()
    assert number(watched) == 24
    page.locator(".chip").click() if width == 390 else page.get_by_role("link", name="Clear", exact=True).click()
    assert number(watched) == 72
    page.get_by_role("link", name="Next →").click()
    page.get_by_role("link", name="Next →").click()
    assert "51–72 of 72" in page.locator("nav.pages").inner_text()
    assert_harmless(watched)

    page.get_by_role("link", name="Dropped rows").click()
    assert number(watched) == 5
    assert "another row has this prompt" in page.locator("table.rows").inner_text()
    assert_harmless(watched)


@pytest.mark.parametrize("width", [1280, 390])
def test_hostile_texts_are_shown_in_full(address: str, open_page: Callable[..., Watched], width: int) -> None:
    watched = open_page(width)
    page = watched.page
    page.goto(f"{address}?kind=answers&category=coding&order=longest-prompt")
    hostile = page.locator("a.read").filter(has_not_text="code question")
    links = [f"{address}{link.get_attribute('href')}" for link in hostile.all()]
    page.get_by_role("link", name="Next →").click()
    links += [f"{address}{link.get_attribute('href')}" for link in hostile.all()]
    wanted = {visible(text): text for text in HOSTILE}
    seen = []
    for link in links:
        page.goto(link)
        shown = page.locator("pre").first.evaluate("element => element.textContent")
        assert shown in wanted
        seen.append(wanted.pop(shown))
        assert page.locator("pre.answer").evaluate("element => element.textContent") == visible(EVIL_ANSWER)
        assert "mit" in page.locator("section.provenance").inner_text()
        assert_harmless(watched)
        if seen[-1] in (HOSTILE[1], LONG):
            watched.shot(f"text-{len(seen)}-{width}")
    assert not wanted
    page.get_by_role("link", name="Back to the rows").click()
    assert number(watched) == 48
    assert page.locator(".chip").count() == 1


@pytest.mark.parametrize("width", [1280, 390])
def test_sql_answers_and_refuses(address: str, open_page: Callable[..., Watched], width: int) -> None:
    watched = open_page(width)
    page = watched.page
    page.goto(address + "sql")
    page.locator("textarea").fill(
        "SELECT category, source, count(*) AS answers FROM provenance JOIN latest_build USING (build_id) GROUP BY ALL "
        "ORDER BY answers DESC"
    )
    page.get_by_role("button", name="Run").click()
    assert number(watched) == 2
    assert page.locator(".result tbody tr").nth(1).locator("td").all_inner_texts() == [
        visible(EVIL_CATEGORY), visible(EVIL_SOURCE), "24",
    ]  # fmt: skip
    watched.shot(f"sql-{width}")
    assert_harmless(watched)
    if width == 390:
        return
    page.locator("textarea").fill("DELETE FROM responses")
    page.get_by_role("button", name="Run").click()
    assert "read-only" in page.get_by_role("alert").inner_text()
    assert page.locator("textarea").input_value() == "DELETE FROM responses"
    assert_harmless(watched)


def test_filtered_rows_are_downloaded(address: str, open_page: Callable[..., Watched]) -> None:
    watched = open_page(accept_downloads=True)
    page = watched.page
    page.goto(f"{address}?category={quote(EVIL_CATEGORY)}")
    assert "these 24 rows" in page.locator("form.export").inner_text()
    for form, read in (("csv", pl.read_csv), ("parquet", pl.read_parquet)):
        page.get_by_label("Format").select_option(form)
        page.get_by_label("with texts").check()
        with page.expect_download() as download:
            page.get_by_role("button", name="Download").click()
        assert re.fullmatch(rf"draftmill-[0-9a-f]{{8}}-answers-24\.{form}", download.value.suggested_filename)
        frame = read(download.value.path())
        assert frame.height == 24
        assert set(frame["answer"]) == {EVIL_ANSWER}
        assert set(frame["category"]) == {EVIL_CATEGORY}
    assert_harmless(watched)


def test_only_the_whole_address_and_no_other_page_gets_in(
    address: str, open_page: Callable[..., Watched], workspace: Path
) -> None:
    parts = urlsplit(address)
    watched = open_page()
    refused = watched.page.request.get(f"http://{parts.netloc}/")
    assert refused.status == 403
    assert str(workspace) not in refused.text()
    assert watched.page.request.get(address, headers={"host": "rebound.example"}).status == 421
    assert watched.page.request.get(address + "row?id=zzzzzz").status == 422

    class OtherSite(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = f"""<body><iframe src="{address}"></iframe><img src="{address}style.css"><script>
                const asked = [fetch("{address}"), fetch("{address}", {{mode: "no-cors"}}).then(r => r.text())];
                Promise.allSettled(asked).then(all => {{
                  window.read = all.map(one => one.status + (typeof one.value === "string" ? one.value : ""));
                }});</script></body>""".encode()
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), OtherSite) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        other = open_page()
        other.page.goto(f"http://127.0.0.1:{server.server_port}/")
        other.page.wait_for_function("window.read")
        read = other.page.evaluate("window.read")
        frame = other.page.frames[1]
        assert "draftmill explore" not in (frame.content() if frame.url != "about:blank" else "")
        server.shutdown()
    assert read[0] == "rejected"
    assert read[1] in ("rejected", "fulfilled")  # an answer without CORS is opaque: its text is empty
