"""A run that goes on: only from what its own checkpoints say, from the best that is whole, and never from nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file

from corpus.artefacts import SEAL
from corpus.errors import Retryable, UserError
from corpus.shard_writer import write_shard
from corpus.shards import ShardReader
from tests.training.test_damage import flip
from tests.training.test_loop import item, run  # noqa: F401  # the fixture
from training import loop
from training.messages import TrainItem, TrainProgress
from training.progress import checkpoints, newest_progress
from training.walk import Acceptance
from training.worker import train_drafter

NEWEST, BEST, STEPS = 8, 4, 20


@pytest.fixture(scope="module")
def half(item: TrainItem, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    """Checkpoints of a run that was stopped: the newest is at step 8, the best at 4."""
    folder = tmp_path_factory.mktemp("half")
    taus = iter([3.0, 2.0, 2.5])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "held_out", lambda *_: {"a": Acceptance.of_row(100, int(100 * (next(taus) - 1)))})
        with pytest.raises(Retryable):
            run(msgspec.structs.replace(item, checkpoint_every=4), folder / "checkpoints", stop_after=NEWEST)
    assert [path.name for path in checkpoints(folder / "checkpoints")] == ["step-00000004", "step-00000008"]
    return folder


def resume(
    item: TrainItem, folder: Path, told: list[TrainProgress] | None = None  # noqa: F811
) -> tuple[int, list[str], list[int], Path]:  # fmt: skip
    """Train to the end: the best step, notes, steps with a checkpoint, the export. `told` takes all messages."""
    told = [] if told is None else told
    summary = train_drafter(msgspec.structs.replace(item, out_dir=str(folder), checkpoint_every=4), told.append)
    saved = [one.step for one in told if one.saved]
    return summary.best_step, [one.note for one in told if one.note], saved, Path(summary.export)


def test_another_best_is_told_before_the_first_step(item: TrainItem, half: Path, tmp_path: Path) -> None:  # noqa: F811
    folder = tmp_path / "d"
    shutil.copytree(half, folder)
    shutil.rmtree(folder / "checkpoints" / f"step-{BEST:08d}")
    told: list[TrainProgress] = []
    resume(item, folder, told)
    first, *later = [one for one in told if not one.note]
    assert (first.step, first.best_step, first.best_tau, first.own_steps) == (NEWEST, NEWEST, 2.0, 0)
    assert not first.saved
    saved = [one for one in later if one.saved]
    best, tau = NEWEST, 2.0
    for one in saved:
        assert one.tau is not None
        best, tau = (one.step, one.tau) if one.tau >= tau else (best, tau)
        assert (one.best_step, one.best_tau) == (best, tau)


def test_a_best_checkpoint_is_whole_without_its_optimizer(item: TrainItem, half: Path, tmp_path: Path) -> None:  # noqa: F811
    """Its weights alone are asked for."""
    folder = tmp_path / "d"
    shutil.copytree(half, folder)
    edit(folder / "checkpoints" / f"step-{NEWEST:08d}", best_tau=99.0)
    flip(folder / "checkpoints" / f"step-{BEST:08d}" / "optimizer.safetensors")
    best, notes, *_ = resume(item, folder)
    assert (best, notes) == (BEST, [])


def edit(path: Path, **changes: Any) -> None:
    """As an older draftmill would have written it: without a digest."""
    state = json.loads((path / "state.json").read_text()) | changes
    state.pop(SEAL, None)
    (path / "state.json").write_text(json.dumps(state))


@pytest.mark.parametrize(
    "harm",
    [
        shutil.rmtree,
        lambda path: flip(path / "drafter.safetensors"),
        lambda path: (path / "drafter.safetensors").unlink(),
        lambda path: (path / "state.json").write_text("{half"),
    ],
    ids=["gone", "flipped", "no weights", "no state"],
)
def test_a_best_checkpoint_that_is_not_whole_costs_nothing_but_itself(
    item: TrainItem, half: Path, tmp_path: Path, harm: Callable[[Path], None]  # noqa: F811
) -> None:  # fmt: skip
    folder = tmp_path / "d"
    shutil.copytree(half, folder)
    harm(folder / "checkpoints" / "step-00000004")
    best, notes, saved, export = resume(item, folder)
    assert len(notes) == 1
    assert "step-00000004: the best checkpoint until now is gone or damaged; step 8 with τ 2.000 is taken" in notes[0]
    assert "\n" not in notes[0]
    assert saved == [12, 16, STEPS], "nothing that was trained is trained again"
    assert best >= NEWEST
    exported = load_file(str(export / "model.safetensors"))
    kept = load_file(str(folder / "checkpoints" / f"step-{best:08d}" / "drafter.safetensors"))
    assert all(torch.equal(exported[name], kept[name]) for name in kept)


def test_a_finished_run_whose_best_is_gone_exports_what_is_left(item: TrainItem, half: Path, tmp_path: Path) -> None:  # noqa: F811
    folder = tmp_path / "d"
    shutil.copytree(half, folder)
    edit(folder / "checkpoints" / "step-00000008", best_tau=99.0)
    best, notes, *_ = resume(item, folder)
    assert (best, notes) == (BEST, [])
    shutil.rmtree(folder / "checkpoints" / "step-00000004")
    best, notes, saved, _ = resume(item, folder)
    assert best == STEPS
    assert len(notes) == 1
    assert saved == []


def test_the_newest_one_damaged_the_other_is_named(item: TrainItem, half: Path, tmp_path: Path) -> None:  # noqa: F811
    folder = tmp_path / "d"
    shutil.copytree(half, folder)
    flip(folder / "checkpoints" / "step-00000008" / "optimizer.safetensors")
    with pytest.raises(UserError, match=r"optimizer.safetensors: a damaged checkpoint .* goes on from step-00000004\."):
        resume(item, folder)
    shutil.rmtree(folder / "checkpoints" / "step-00000008")
    assert resume(item, folder)[2] == [8, 12, 16, STEPS]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"done": [[0, 4]]}, "done has 4 packs, which are not 8 steps"),
        ({"done": [[0, 8], [30, 50]]}, "done goes to pack 50 of 20"),
        ({"done": [[0, 8], [3, 5]]}, "no ascending ranges"),
        ({"done": [[0, 4], [4, 8]]}, "no ascending ranges"),
        ({"done": "x"}, "no ascending ranges"),
        ({"done": [[0, "8"]]}, "no ascending ranges"),
        ({"done": [[-3, 5]]}, "no ascending ranges"),
        ({"step": 7}, "it says step 7"),
        ({"step": True}, "it says step True"),
        ({"best_step": "a"}, "best_step is a"),
        ({"best_step": 9}, "best_step is 9"),
        ({"best_tau": 0.5}, "best_tau is 0.5"),
        ({"tau": "2"}, "tau is 2"),
        ({"agreement": {"a": [3, 2]}}, "agreement holds no counts"),
        ({"agreement": []}, "agreement holds no counts"),
        ({"files": []}, "it holds other things than a checkpoint"),
        ({"new": 1}, "it holds other things than a checkpoint"),
        ({"rng": 5}, "it holds other things than a checkpoint"),
        ({"rng": "AAAA"}, "RNG state"),
    ],
)  # fmt: skip
def test_what_cannot_be_true_of_the_run_is_one_line_that_names_the_file(
    item: TrainItem, half: Path, tmp_path: Path, changes: dict[str, Any], why: str  # noqa: F811
) -> None:  # fmt: skip
    folder = tmp_path / "d"
    shutil.copytree(half, folder)
    newest = folder / "checkpoints" / "step-00000008"
    edit(newest, **changes)
    with pytest.raises(UserError) as caught:
        resume(item, folder)
    assert str(caught.value).startswith(f"{newest / 'state.json'}: a damaged checkpoint (")
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_changed_digit_is_found_and_a_state_without_a_digest_is_gone_on_with(
    item: TrainItem, half: Path, tmp_path: Path  # noqa: F811
) -> None:  # fmt: skip
    folder = tmp_path / "d"
    shutil.copytree(half, folder)
    state = folder / "checkpoints" / "step-00000008" / "state.json"
    whole = state.read_text()
    state.write_text(whole.replace('"best_tau": 3.0', '"best_tau": 2.0'))
    with pytest.raises(UserError, match=r"state.json: a damaged checkpoint \(its digest is of another text\)"):
        resume(item, folder)
    state.write_text(whole)
    edit(state.parent)
    assert resume(item, folder)[2] == [12, 16, STEPS]


def test_what_has_another_name_than_the_writers_is_let_alone(item: TrainItem, half: Path, tmp_path: Path) -> None:  # noqa: F811
    folder = tmp_path / "d"
    shutil.copytree(half, folder)
    own = folder / "checkpoints"
    for name in ("step-00000008.bak", "step-99", "step-000000099", "step-", "step--0000001", "step-0000000x", "best"):
        shutil.copytree(own / "step-00000008", own / name)
    (own / "step-00000099").write_text("a file")
    (own / "step-latest").symlink_to("step-00000008")
    (own / "step-00000098").symlink_to("step-00000008")
    (own / ".notes.tmp").write_text("not ours")
    others = {path.name for path in own.iterdir()} - {"step-00000004", "step-00000008"}
    assert [path.name for path in checkpoints(own)] == ["step-00000004", "step-00000008"]
    assert resume(item, folder)[2] == [12, 16, STEPS]
    assert others <= {path.name for path in own.iterdir()}


def test_a_file_in_the_place_of_the_checkpoints_is_one_line(item: TrainItem, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "checkpoints").write_text("x")
    with pytest.raises(UserError, match=r"checkpoints: is no folder, and checkpoints go into it\. Move it away"):
        newest_progress(tmp_path / "checkpoints", "")
    with pytest.raises(UserError, match="is no folder"):
        resume(item, tmp_path)


def masked(item: TrainItem, folder: Path, tokens: int) -> TrainItem:  # noqa: F811
    """The item, of which training rows have only so many generated tokens."""
    shard = item.shards[0]
    with ShardReader(Path(shard.path)) as reader:
        rows, meta = list(reader), reader.meta
    for row in rows[:-2]:
        first = int(row.loss_mask_T.argmax())
        row.loss_mask_T[first + tokens :] = 0
    path = write_shard(folder / "hidden.safetensors", rows, meta).path
    return msgspec.structs.replace(item, shards=[msgspec.structs.replace(shard, path=str(path))])


def test_rows_without_anything_to_learn_train_no_drafter(item: TrainItem, tmp_path: Path) -> None:  # noqa: F811
    with pytest.raises(UserError, match=r"all 12 training rows are answers of one token, from which nothing can be"):
        train_drafter(msgspec.structs.replace(masked(item, tmp_path, 1), out_dir=str(tmp_path / "d")))
    assert not (tmp_path / "d").exists()
    with pytest.raises(UserError, match=r"no row had anything to learn: .* Nothing was exported"):
        run(masked(item, tmp_path, 1), tmp_path / "checkpoints")  # as a feed that does not look beforehand
    assert train_drafter(msgspec.structs.replace(masked(item, tmp_path, 2), out_dir=str(tmp_path / "d"))).best_step
