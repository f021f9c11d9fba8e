"""Whose measurements a serve check enters, and what it refuses before an engine starts."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from corpus.errors import UserError
from draftmill.stage_run import reader
from fleet.devices import Device
from fleet.pool import Failed, PoolError
from tests.draftmill.test_push_drafter import DRAFTER, Trained, trained  # noqa: F401  # the fixture
from training import serve
from training.serve import Exported, exported


def found(own: Trained, folder: Path) -> Exported:
    return exported(str(folder), "another", reader(_session(own)))


def _session(own: Trained) -> Any:
    from draftmill.session import Session

    return Session(own.manifest, own.world.workspace)


@pytest.mark.parametrize("form", ["zlab", "speculators"])
def test_a_copy_of_an_own_drafter_is_entered_under_its_id(trained: Trained, tmp_path: Path, form: str) -> None:  # noqa: F811
    out = tmp_path / "exs"
    assert trained.run("export", "--out", str(out), "--format", form) == 0
    own = found(trained, out)
    assert (own.drafter_id, own.origin) == (DRAFTER, f"drafters/{DRAFTER}/export")
    assert own.folder == out, "what is served is the folder that was named"


def test_other_weights_or_another_shape_are_somebody_elses(trained: Trained, tmp_path: Path) -> None:  # noqa: F811
    for name in ("weights", "shape"):
        shutil.copytree(trained.folder / "export", tmp_path / name)
    weights = tmp_path / "weights" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(bytes(data))
    config = json.loads((tmp_path / "shape" / "config.json").read_text())
    (tmp_path / "shape" / "config.json").write_text(json.dumps({**config, "block_size": 3}))
    for name in ("weights", "shape"):
        own = found(trained, tmp_path / name)
        assert own.drafter_id.startswith("export-")
        assert own.origin == name


def test_a_dry_run_says_what_would_be_served(trained: Trained, capsys: Any) -> None:  # noqa: F811
    assert trained.run("serve-check", "--dry-run") == 0
    assert capsys.readouterr().out == f"serve      drafter {DRAFTER} in vLLM on 1 held-out row\n"


def test_nothing_held_out_is_refused_in_the_dry_run_too(trained: Trained, capsys: Any, monkeypatch: Any) -> None:  # noqa: F811
    from dataclasses import replace

    from draftmill import drafting

    rows = {"a": tuple(row for row in trained.plan.rows["a"] if not row.holdout)}
    monkeypatch.setattr(drafting, "training_plan", lambda *_: replace(trained.plan, rows=rows))
    assert trained.run("serve-check", "--dry-run") == 2
    assert "Set mix.holdout" in capsys.readouterr().err


class FailingPool:
    """A pool whose only item fails, or that itself does."""

    def __init__(self, error: str, broken: bool) -> None:
        self._error, self._broken = error, broken

    async def __aenter__(self) -> FailingPool:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def submit(self, item_id: str, payload: bytes) -> None:
        self._item_id = item_id

    async def outcomes(self) -> AsyncIterator[Failed]:
        if self._broken:
            raise PoolError(self._error)
        yield Failed(self._item_id, self._error, Device("cpu", 0), 0)


@pytest.mark.parametrize("broken", [False, True])
def test_how_a_check_ended_is_said_without_names_of_classes(tmp_path: Path, monkeypatch: Any, broken: bool) -> None:
    pool = FailingPool("UserError: x.yaml: a line of ours. Do y.", broken)
    monkeypatch.setattr(serve, "Pool", lambda *_, **__: pool)
    log = cast(Any, SimpleNamespace(folder=tmp_path))
    with pytest.raises(UserError) as caught:
        asyncio.run(serve._through("f", b"", {"walk": b""}, Device("cpu", 0), log, lambda _: None))
    what = "serve check" if broken else "serve check of walk"
    assert str(caught.value) == f"{what} stopped: x.yaml: a line of ours. Do y."
