"""A target that is not where the manifest says: the path that was looked at is said, and the Hub asked for names."""

from __future__ import annotations

from pathlib import Path

import pytest

from corpus.errors import UserError
from corpus.manifest import Target
from corpus.sources import FileDigests
from corpus.target import resolve_target


def refusal(model: str, base: Path) -> str:
    with pytest.raises(UserError) as caught:
        resolve_target(Target(model=model, max_model_len=64), base, FileDigests(base / "digests.json"))
    return str(caught.value)


@pytest.mark.parametrize("model", ["../gone", "./gone", "/tmp/gone-model", "a/b/c", "gone/", "~/gone-model"])
def test_of_a_path_the_hub_is_not_asked(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.HfApi", None)
    said = refusal(model, tmp_path)
    expected = (tmp_path / Path(model).expanduser()).absolute()
    assert said.startswith(f"target {model}: there is no folder {expected}. ")
    assert "Hub" not in said


def test_of_a_name_the_folder_that_was_looked_at_is_said_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    for model in ("target", "models/mine"):
        assert f"there is no folder {tmp_path / model}, and the Hub cannot be asked (" in refusal(model, tmp_path)
