"""The GPU's check runs on a CPU, small, and says when something is wrong."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

FILE = Path(__file__).parents[2] / "benchmarks" / "gpu_check.py"


@pytest.fixture(scope="module")
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_check", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(FILE.parent))  # as a script, it finds its siblings there
        spec.loader.exec_module(module)
    return module


def test_the_tiny_run_ends_in_a_table_and_0(
    check: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--tiny"])
    with pytest.raises(SystemExit) as left:
        check.main()
    printed = capsys.readouterr().out
    assert left.value.code == 0, printed
    table = printed[printed.index("\ncheck ") :]
    for what in ("GEMM", "extraction / bare", "flex / dense attention, values", "chunked CE", "chunked KL", "again",
                 "estimate of a step", "averaging round"):  # fmt: skip
        assert what in table
    judged = [line.split()[-1] for line in table.strip().splitlines()[1:]]
    assert judged.count("ok") == 6
    assert set(judged) == {"ok", "-"}


def test_without_a_gpu_the_whole_run_says_what_to_do(check: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu_check.py"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="use --tiny"):
        check.main()


def test_a_wrong_kernel_fails_and_so_does_one_that_cannot_run(
    check: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = check.attend_flex

    def leaks(queries: Any, keys: Any, values: Any, visibility: Any, window: int | None) -> Any:
        """Slides nowhere."""
        del window
        return right(queries, keys, values, visibility, None)

    def breaks(*_: Any, **__: Any) -> Any:
        raise RuntimeError("out of everything")

    monkeypatch.setattr(check, "attend_flex", leaks)
    monkeypatch.setattr(check, "block_loss", breaks)
    monkeypatch.setattr(check, "extraction", check.gemm)
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--tiny"])
    with pytest.raises(SystemExit) as left:
        check.main()
    assert left.value.code == 1
    failed = [line for line in capsys.readouterr().out.splitlines() if line.endswith("FAILED")]
    assert [line.split("  ")[0] for line in failed] == [
        "flex / dense attention, values: error / dense's own", "chunked_loss", "training_step",
    ]  # fmt: skip
    assert "RuntimeError: out of everything" in failed[1]
