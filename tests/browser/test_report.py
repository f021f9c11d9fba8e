"""The report in a real Chromium, wide and narrow, light, dark and printed: drawn, quiet, no wider than its window.

The ledger that it shows is made by hand: two builds, an engine's night, a drafter's figures, and names that a page
would obey if it were let.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAKE = """
import sys
from pathlib import Path
from tests.conftest import World
from corpus.ledger.query import query
from corpus.ledger.writer import open_ledger
from draftmill.looking.report import make_report

world = World(Path(sys.argv[1]))
mark, image = "<script>document.title='owned'</script>", '"><img src=x onerror="document.title=1">'
world.tell(world.manifest())
world.tell(world.manifest(mix={"total": 24, "shares": {"coding": 3, "general": 1}, "holdout": 0.1}))
build = query(world.workspace, "SELECT build_id FROM latest_build").item()
with open_ledger(world.workspace, "run") as ledger:
    for sql, values in (
        ("INSERT INTO runs VALUES ('r1', 'generate', ?, now(), now(), 'done')", [build]),
        ("INSERT INTO engine_samples SELECT 'r1', ?, 'cuda:' || e, TIMESTAMPTZ '2026-01-01 00:00:00+00' + "
         "to_seconds(5 * i), 4, 2, 900 + 50 * e + 40 * sin(i / 300), 0.5, 0.25 FROM range(8000) t(i), "
         "range(8) d(e)", ["vllm " + image]),
        ("INSERT INTO drafters VALUES ('d1', ?, 'c', 'dflash', 10, '{}', 'x', 3, now())", [build]),
        ("INSERT INTO acceptance SELECT 'd1', ?, unnest(['coding', 'general']), 'walk', 100, unnest([150, 50]), 10, "
         "now(), 1000, unnest([2300, 300]), unnest([1500, 500])", [build]),
        ("INSERT INTO acceptance SELECT 'd1', ?, 'coding', 'vllm', 100, 140, 10, now(), NULL, NULL, NULL", [build]),
        ("UPDATE sources SET license = ? WHERE source = 'code'", [mark]),
        ("UPDATE responses SET finish_reason = ? WHERE turn = 0 AND attempt = 0 AND response_tokens > 9", [image]),
        ("UPDATE sources SET license = ? WHERE source = 'talk'", ["w" * 1000000]),
        ("UPDATE builds SET name = ? WHERE build_id = ?", ["mix " + chr(0x202e) + mark, build]),
    ):
        ledger.call(lambda c: c.execute(sql, values))
Path(sys.argv[2]).write_text(make_report(world.workspace, build, world.root, markdown=False))
"""


@pytest.fixture(scope="module")
def page_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report's file, made in a process of its own: it needs an event loop, and the browser has one here."""
    folder = tmp_path_factory.mktemp("report")
    path = folder / "report.html"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    script = folder / "make.py"
    script.write_text(f"{MAKE}")
    command = [sys.executable, "-c", f"if True:\n    exec(open({str(script)!r}).read())", str(folder), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return path


@pytest.mark.parametrize("browser_page", [1280, 390], indirect=True)
def test_it_is_drawn_and_quiet_at_any_width(page_path: Path, browser_page: Any) -> None:
    page = browser_page.page
    page.goto(page_path.as_uri())
    width = page.viewport_size["width"]
    assert browser_page.overflow_px() == 0
    assert page.title().startswith("mix \\u202e<script>"), "shown, and no script ran"
    boxes = {
        name: [box for one in page.locator(name).all() if (box := one.bounding_box())]
        for name in (".fill", ".mark", "rect", "path.edge", ".dot", ".between", "table")
    }
    for name, found in boxes.items():
        assert found, f"{name} is not drawn"
        assert all(box["width"] >= 1 and box["height"] >= 1 for box in found if name != "path.edge"), name
    assert len(boxes["path.edge"]) == 9, "all engines, and each of eight"
    assert all(box["width"] > width / 3 for box in boxes["path.edge"])
    for one in page.locator("svg").all():
        assert one.get_attribute("role") == "img"
        assert one.get_attribute("aria-label")
    for one in page.locator(".scroll").all():
        box = one.bounding_box()
        assert box["x"] + box["width"] <= width, "a wide table scrolls inside its box"
    browser_page.shot(f"report-{width}", full_page=True)
    page.locator("summary").click()
    assert page.locator("details pre").is_visible()
    page.locator("nav a").last.click()
    assert page.locator("#reproduce").is_visible()
    browser_page.assert_quiet()


@pytest.mark.parametrize("width", [1280, 390])
def test_the_dark_scheme_is_dark(page_path: Path, open_page: Callable[..., Any], width: int) -> None:
    def lightness(color: str) -> float:
        return sum(float(part) for part in color.partition("(")[2].rstrip(")").split(",")[:3]) / 765

    shades = {}
    for scheme in ("light", "dark"):
        watched = open_page(width, color_scheme=scheme)
        watched.page.goto(page_path.as_uri())
        styles = "(e => { const s = getComputedStyle(e); return [s.backgroundColor, s.color]; })"
        shades[scheme] = [lightness(c) for c in watched.page.evaluate(f"{styles}(document.body)")]
        watched.shot(f"report-{width}-{scheme}")
        watched.assert_quiet()
    (page, text), (dark_page, dark_text) = shades["light"], shades["dark"]
    assert page > 0.9
    assert text < 0.3
    assert dark_page < 0.2
    assert dark_text > 0.7


def test_it_prints_whole_and_light(page_path: Path, open_page: Callable[..., Any]) -> None:
    watched = open_page(720, color_scheme="dark")
    watched.page.emulate_media(media="print", color_scheme="dark")
    watched.page.goto(page_path.as_uri())
    assert watched.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not watched.page.locator("nav").is_visible()
    assert watched.overflow_px() == 0
    watched.shot("report-print", full_page=True)
    assert watched.page.pdf(format="A4").startswith(b"%PDF")
    watched.assert_quiet()


def test_whatever_the_data_says_the_page_may_load_nothing(page_path: Path) -> None:
    text = page_path.read_text()
    assert "Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline';" in text
    assert len(text) < 1_000_000
    for mark in ("<script", "<img", "<link", "@import", "url("):
        assert mark not in text
