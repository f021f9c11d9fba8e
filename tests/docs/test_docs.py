"""What the pages promise is so: generated references are current, every page is linked, links and targets exist."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from corpus.manifest_file import load_manifest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
README = (ROOT / "README.md").read_text()


def generated() -> dict[str, str]:
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return dict(module.pages())


@pytest.mark.parametrize("name", ["manifest.md", "ledger.md", "hardware.md", "manifest.schema.json"])
def test_generated_pages_are_current(name: str) -> None:
    assert (ROOT / "docs" / name).read_text() == generated()[name], "run `make docs`"


def test_every_key_of_the_manifest_is_documented() -> None:
    page = (ROOT / "docs" / "manifest.md").read_text()
    for key in ("block_size", "holdout", "kv_cache_dtype", "max_tokens_per_batch", "decontaminate", "top_p"):
        assert f"`{key}`" in page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in link:
            assert (page.parent / link).exists(), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_into_pages_name_a_heading(page: Path) -> None:
    for link, heading in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text()):
        there = (page.parent / link if link else page).read_text()
        anchors = [re.sub(r"[^\w -]", "", title.lower()).strip().replace(" ", "-") for title in HEADING.findall(there)]
        assert heading in anchors, f"{link}#{heading}"


def test_the_readme_links_every_page() -> None:
    linked = set(re.findall(r"\]\(docs/([a-z-]+\.md)", README.partition("## More")[2]))
    assert linked == {page.name for page in (ROOT / "docs").glob("*.md")}


def test_readme_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {name for page in PAGES for name in re.findall(r"(?:^|`)make ([a-z-]+)", page.read_text(), re.MULTILINE)}
    assert {"demo", "test", "test-full"} <= named
    assert named <= targets


def test_pictures_of_browser_tests_are_kept_where_git_does_not_look() -> None:
    made = re.search(r"^export DRAFTMILL_SCREENSHOTS \?= \$\(CURDIR\)/(\w+)$", (ROOT / "Makefile").read_text(), re.M)
    assert made
    assert f"{made[1]}/" in (ROOT / ".gitignore").read_text().splitlines()


def test_the_demo_manifest_is_a_manifest_of_about_120_prompts() -> None:
    manifest = load_manifest(ROOT / "manifests" / "demo.yaml")
    assert 100 <= manifest.mix.total <= 140
    assert len(manifest.mix.shares) == 5
