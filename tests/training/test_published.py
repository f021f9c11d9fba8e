"""A drafter from elsewhere: what its folder says is compared before a weight is loaded, and each misfit is one line."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from corpus.errors import UserError
from tests.training.test_loop import item  # noqa: F401  # the fixture
from training.data import TrainingData
from training.dflash import Drafter
from training.export import export_untrained, load_exported
from training.frozen import load_frozen
from training.messages import TrainItem
from training.published import INDEX, WEIGHTS, check_init, tensors, weight_shapes
from training.shape import DrafterShape
from training.worker import drafter_shape, make_drafter

Harm = Callable[[Path], None]


@pytest.fixture(scope="module")
def published(item: TrainItem, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    folder = tmp_path_factory.mktemp("published") / "drafter"
    data = TrainingData(item.shards, item.layer_ids, item.labels)
    shape = drafter_shape(msgspec.structs.replace(item, mask_token_id=77), data, load_frozen(item.target_dir))
    data.close()
    return export_untrained(shape, folder, target_dir=item.target_dir, seed=99)


def at(item: TrainItem, folder: Path) -> TrainItem:  # noqa: F811
    return msgspec.structs.replace(item, init_dir=str(folder), init="export-1")


def config(**changes: Any) -> Harm:
    def harm(folder: Path) -> None:
        body = json.loads((folder / "config.json").read_text())
        for name, value in changes.items():
            where = body["dflash_config"] if name in ("mask_token_id", "target_layer_ids") else body
            where[name] = value
        (folder / "config.json").write_text(json.dumps(body))

    return harm


def weights(change: Callable[[dict[str, Any]], Any]) -> Harm:
    def harm(folder: Path) -> None:
        found = load_file(str(folder / WEIGHTS))
        change(found)
        save_file(found, str(folder / WEIGHTS))

    return harm


def split(folder: Path, names: tuple[str, str] = ("model-1.safetensors", "model-2.safetensors")) -> None:
    found = load_file(str(folder / WEIGHTS))
    (folder / WEIGHTS).unlink()
    order = sorted(found)
    parts = dict(zip(names, (order[::2], order[1::2]), strict=True))
    for name, own in parts.items():
        save_file({key: found[key] for key in own}, str(folder / name))
    said = {"weight_map": {key: name for name, own in parts.items() for key in own}}
    (folder / INDEX).write_text(json.dumps(said))


@pytest.mark.parametrize("shape", [(1, 0), (3, 2)])
def test_the_tensors_that_are_expected_are_a_drafters(item: TrainItem, shape: tuple[int, int]) -> None:  # noqa: F811
    own = DrafterShape(64, 96, 4, 2, 16, 107, 1e-6, 1e4, 512, 0.02, shape[0], shape[1], 16, 4, 90, 7, (1, 3, 5))
    assert weight_shapes(own) == {name: tuple(one.shape) for name, one in Drafter(own).state_dict().items()}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda folder: None,
            r"^the published drafter has 14 tensors in model.safetensors, float32, of the shape that is asked for$",
        ),
        (split, r"14 tensors in 2 files, float32"),
        (lambda folder: (folder / WEIGHTS).rename(folder / "drafter.safetensors"), r"in drafter.safetensors, float32"),
        (weights(lambda t: t.update({n: x.bfloat16() for n, x in t.items()})), r"bfloat16, of the shape"),
        (config(block_size=8), r"of the shape that is asked for, trained with block_size 8$"),
    ],
)
def test_a_drafter_that_fits_is_found_under_any_name_of_the_format(
    item: TrainItem, published: Path, tmp_path: Path, change: Harm, said: str  # noqa: F811
) -> None:  # fmt: skip
    folder = tmp_path / "drafter"
    shutil.copytree(published, folder)
    change(folder)
    assert re.search(said, check_init(at(item, folder)))
    if "bfloat16" not in said:
        loaded, own = load_exported(folder).state_dict(), load_file(str(published / WEIGHTS))
        assert all(torch.equal(loaded[name], own[name]) for name in own)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (config(hidden_size=128), "has hidden_size 128; this drafter would have 32"),
        (config(hidden_size="x"), "hidden_size is 'x', expected a whole number"),
        (config(hidden_size=True), "hidden_size is True, expected"),
        (config(hidden_size=64.0), "hidden_size is 64.0, expected"),
        (config(num_attention_heads=None), "num_attention_heads is None, expected"),
        (config(num_hidden_layers=2), "layer_types is "),
        (config(num_hidden_layers=2, layer_types=None), "has draft_layers 2; this drafter would have 1"),
        (config(dflash_config=None), "not a DFlash drafter's config"),
        (config(dflash_config=[]), "not a DFlash drafter's config"),
        (config(rope_parameters={"rope_theta": "big"}), "rope_theta is 'big', expected a number above 0"),
        (config(rms_norm_eps=float("nan")), "rms_norm_eps is nan, expected"),
        (config(block_size="many"), "not a DFlash drafter's config"),
        (config(mask_token_id=None), "mask_token_id is None, expected"),
        (config(mask_token_id=99999), "has mask token 99999; the target has 97 embedding rows. Start without it."),
        (config(target_layer_ids=[1, 3]), "has target_layer_ids (1, 3); this drafter would have (1, 3, 5)"),
        (config(target_layer_ids="x"), "not a DFlash drafter's config"),
        (lambda folder: (folder / "config.json").write_text("[]"), "it holds no mapping"),
        (lambda folder: (folder / "config.json").write_text("{half"), "not a DFlash drafter's config"),
        (lambda folder: (folder / "config.json").unlink(), "not a DFlash drafter's config"),
        (lambda folder: (folder / WEIGHTS).unlink(), "holds no weights (*.safetensors). Save them"),
        (lambda folder: (folder / WEIGHTS).rename(folder / "pytorch_model.bin"), "pytorch_model.bin is a pickle"),
        (lambda folder: (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:999]), "no whole file"),
        (lambda folder: (split(folder), (folder / "model-2.safetensors").unlink()), "names model-2.safetensors, which"),
        (lambda folder: (split(folder), (folder / INDEX).write_text("[]")), "no index of weights"),
        (weights(lambda t: t.pop("fc.weight")), "fc.weight is missing"),
        (weights(lambda t: [t.pop(n) for n in sorted(t)[:5]]), " and 2 more are missing"),
        (weights(lambda t: t.update(foo=torch.ones(3))), "foo is none of a DFlash drafter's"),
        (weights(lambda t: t.update({"norm.weight": torch.ones(3)})), "norm.weight is [3], its config makes it [32]"),
        (weights(lambda t: t.update({n: x.to(torch.int8) for n, x in t.items()})), "weights are I8, which nothing is"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_line_before_any_weight_is_loaded(
    item: TrainItem, published: Path, tmp_path: Path, change: Harm, said: str  # noqa: F811
) -> None:  # fmt: skip
    folder = tmp_path / "drafter"
    shutil.copytree(published, folder)
    change(folder)
    with pytest.raises(UserError) as caught:
        check_init(at(item, folder))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_its_mask_token_is_the_one_that_is_asked_for(item: TrainItem, published: Path) -> None:  # noqa: F811
    with pytest.raises(UserError, match="has mask_token_id 77; this drafter would have 78"):
        check_init(msgspec.structs.replace(at(item, published), mask_token_id=78))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_named_as_the_published_drafters(
    item: TrainItem, published: Path, tmp_path: Path, value: float  # noqa: F811
) -> None:  # fmt: skip
    folder = tmp_path / "drafter"
    shutil.copytree(published, folder)
    weights(lambda t: t["norm.weight"].fill_(value))(folder)
    assert check_init(at(item, folder)), "headers alone do not tell"
    data = TrainingData(item.shards, item.layer_ids, item.labels)
    with pytest.raises(UserError, match=r"drafter: norm.weight of the published drafter holds what is no number"):
        make_drafter(at(item, folder), data, load_frozen(item.target_dir))
    data.close()


def test_headers_are_read_without_the_weights(published: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = tensors(published)
    assert {one.dtype for one in found.values()} == {"F32"}
    assert {one.file.name for one in found.values()} == {WEIGHTS}


@pytest.mark.parametrize("name", ["lm_head.weight", "model.norm.weight"])
def test_a_targets_head_and_norm_must_be_numbers(item: TrainItem, tmp_path: Path, name: str) -> None:  # noqa: F811
    folder = tmp_path / "target"
    shutil.copytree(item.target_dir, folder)
    path = folder / "model.safetensors"
    found = load_file(str(path))
    name = name if name in found else "model.embed_tokens.weight"
    found[name].view(-1)[5] = float("nan")
    save_file(found, str(path), metadata={"format": "pt"})
    with pytest.raises(UserError, match=f"{name} of the target holds what is no number"):
        load_frozen(folder)
