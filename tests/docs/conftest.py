"""Desks of the pages, each made once for all workers of a test run; tests copy them."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.docs.desk import make_demo, make_desk


@pytest.fixture(scope="session")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Manifests, an old corpus, and a workspace with every stage done."""
    return _made_once("desk", make_desk, tmp_path_factory)


@pytest.fixture(scope="session")
def demo_desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, with the demo built and answered in its workspace."""
    return _made_once("demo", make_demo, tmp_path_factory)


def _made_once(name: str, make: Callable[[Path], None], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Whoever comes first makes it, the others wait."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, made = base / f"{name}-as-made", base / f"{name}-is-made"
    with (base / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            made.touch()
    return folder
