"""Single modules of an installed reference package, without running its `__init__` (and what that imports)."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def reference_module(package: str, name: str) -> Any:
    """`package.name`, its parent packages replaced by empty ones."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.fail(f"{package} is not installed: make setup brings it")
    before = {key: module for key, module in sys.modules.items() if key.split(".")[0] == package}
    for key in before:
        del sys.modules[key]
    try:
        folder, full = Path(spec.origin).parent, package
        for part in [*name.split(".")[:-1], None]:
            stub = ModuleType(full)
            stub.__path__ = [str(folder)]
            sys.modules[full] = stub
            if part is not None:
                folder, full = folder / part, f"{full}.{part}"
        return importlib.import_module(f"{package}.{name}")
    finally:
        for key in [key for key in sys.modules if key.split(".")[0] == package]:
            del sys.modules[key]
        sys.modules.update(before)
