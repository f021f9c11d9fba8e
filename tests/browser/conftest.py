"""A real Chromium for pages that draftmill makes: what it printed to its console and asked of other machines is kept.

A page sees this machine alone: other names are unknown to it, a request elsewhere is recorded and ended. Screenshots
stay in DRAFTMILL_SCREENSHOTS, else in the test's folder. While a browser is open its thread has a running event loop:
make data that needs asyncio.run in a fixture that comes before the browser's, or in another process.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MISSING = (
    "browser tests need Chromium: install it (Debian: `apt-get install chromium`; `make browser` tries), or "
    "name one in DRAFTMILL_CHROMIUM."
)
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
]  # fmt: skip
HERE = {"127.0.0.1", "localhost", "::1"}
INSIDE = {"file", "data", "blob", "about", "chrome", "devtools"}
HEIGHTS = {1280: 900, 390: 844}  # a laptop, a phone
LONGEST_WAIT_MS = 30_000


@dataclass
class Watched:
    """One page, and what it did that a page of ours never should."""

    page: Page
    folder: Path
    page_errors: list[str] = field(default_factory=list)
    requests_elsewhere: list[str] = field(default_factory=list)

    def shot(self, name: str, *, full_page: bool = False) -> Path:
        """Keep a picture of the page as it is."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{name}.png"
        self.page.screenshot(path=path, full_page=full_page)
        return path

    def overflow_px(self) -> int:
        """How much wider than its window the page is."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))

    def assert_quiet(self) -> None:
        """No console error, no exception, no request that left the machine."""
        assert self.page_errors == []
        assert self.requests_elsewhere == []


def chromium_path() -> str:
    """The browser to use; the test fails where there is none."""
    named = os.environ.get("DRAFTMILL_CHROMIUM")
    found = shutil.which(named) if named else next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.fail(f"DRAFTMILL_CHROMIUM={named}: no such program." if named else MISSING, pytrace=False)
    return found


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """One headless browser for a module's tests."""
    path = chromium_path()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium: Browser, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Watched]]:
    """`open_page(width=1280, color_scheme="light")`: a fresh page without cookies, watched; closed after the test."""
    kept = os.environ.get("DRAFTMILL_SCREENSHOTS")
    folder = Path(kept) / request.node.path.stem if kept else tmp_path / "screenshots"
    contexts: list[BrowserContext] = []

    def opened(width: int = 1280, height: int | None = None, **options: Any) -> Watched:
        viewport = {"width": width, "height": height or HEIGHTS.get(width, 900)}
        context = chromium.new_context(viewport=viewport, **options)
        contexts.append(context)
        watched = Watched(context.new_page(), folder)
        _watch(context, watched)
        return watched

    yield opened
    for context in contexts:
        context.close()


@pytest.fixture
def browser_page(open_page: Callable[..., Watched], request: pytest.FixtureRequest) -> Watched:
    """One such page; `parametrize("browser_page", [1280, 390], indirect=True)` chooses its width."""
    return open_page(getattr(request, "param", 1280))


def _watch(context: BrowserContext, watched: Watched) -> None:
    def elsewhere(url: str) -> bool:
        parts = urlsplit(url)
        return parts.scheme not in INSIDE and parts.hostname not in HERE

    def note(url: str) -> None:
        if elsewhere(url):
            watched.requests_elsewhere.append(url[:200])

    def said(message: ConsoleMessage) -> None:
        if message.type == "error":
            watched.page_errors.append(f"console: {message.text[:500]} ({message.location.get('url', '')[:200]})")

    context.set_default_timeout(LONGEST_WAIT_MS)
    context.on("request", lambda request: note(request.url))
    context.route(elsewhere, lambda route: route.abort())
    watched.page.on("websocket", lambda socket: note(socket.url))
    watched.page.on("console", said)
    watched.page.on("pageerror", lambda error: watched.page_errors.append(f"exception: {str(error)[:500]}"))
