"""Exports in speculators' format: its own class and z-lab's folder give one drafter; vLLM reads both alike."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from corpus.errors import UserError
from tests.extraction.tiny import save_tiny
from tests.training.test_dflash import BLOCK, LAYERS, MASK, documents_of, drafter_logits, make_drafter
from training.export import export_zlab, load_exported
from training.export_speculators import from_speculators_config, to_speculators_config
from training.facts import served_by
from training.serve import read_drafter
from training.shape import from_exported_config, layer_causality, read_exported_config


@pytest.fixture(scope="module", params=["qwen3", "gdn"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return save_tiny(tmp_path_factory.mktemp(request.param), request.param)


def exports(target: Path, folder: Path, layers: int, sliding: int, window: int = 64) -> tuple[Any, Path, Path]:
    """A drafter, its export in z-lab's format and in speculators'."""
    drafter = make_drafter(target, layers, sliding, window)
    zlab = export_zlab(drafter, folder / "zlab", target_dir=target)
    other = export_zlab(drafter, folder / "speculators", target_dir=target)
    config = json.loads((zlab / "config.json").read_text())
    architectures = json.loads((target / "config.json").read_text())["architectures"]
    (other / "config.json").write_text(json.dumps(to_speculators_config(config, str(target), architectures)))
    return drafter, zlab, other


@pytest.mark.parametrize(("layers", "sliding"), [(2, 0), (2, 2)])
def test_speculators_own_class_has_our_logits(target: Path, tmp_path: Path, layers: int, sliding: int) -> None:
    from speculators import SpeculatorModel
    from speculators.models.dflash import DFlashDraftModel

    drafter, _, folder = exports(target, tmp_path, layers, sliding)
    theirs = SpeculatorModel.from_pretrained(folder, dtype=torch.float32).eval()
    assert isinstance(theirs, DFlashDraftModel)
    theirs.config.transformer_layer_config._attn_implementation = "eager"
    (document,) = documents_of(target, [31])
    anchors = [3, 11, 24]
    ours = drafter_logits(drafter, target, [document], [anchors])

    class OurAnchors(type(theirs)):  # type: ignore[misc]
        """Their model on the anchors that we drew."""

        def _build_attention_mask(self, loss_mask: Any, max_anchors: int, document_ids: Any, device: Any) -> Any:
            from speculators.models.attention import create_float_mask

            self._create_mask_fn = create_float_mask
            drawn = torch.tensor(anchors)
            full, window = (
                self._create_attention_mask(
                    document_ids, loss_mask.shape[1], drawn, device, wide, self.sliding_window_non_causal
                )
                for wide in (None, self.sliding_window)
            )
            return full, window, drawn, torch.ones(len(drawn), dtype=torch.bool)

    theirs.__class__ = OurAnchors
    length = len(document)
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    with torch.no_grad():
        final = model.model(document.input_ids_T[None]).last_hidden_state
        _, logits, _, _, _ = theirs._backbone_forward(
            hidden_states=document.states_TNH.flatten(1)[None],
            input_ids=document.input_ids_T[None].long(),
            loss_mask=torch.ones(1, length),
            verifier_last_hidden_states=final,
            document_ids=torch.zeros(1, length, dtype=torch.long),
            max_anchors=len(anchors),
        )
    want = logits[0].unflatten(0, (-1, BLOCK))
    assert (ours - want).abs().max() < 1e-4
    assert torch.equal(theirs.embed_tokens.weight, model.get_input_embeddings().weight)


def test_both_formats_read_back_as_one_drafter(target: Path, tmp_path: Path) -> None:
    drafter, zlab, other = exports(target, tmp_path, 2, 0, 2048)
    for folder in (zlab, other):
        again = load_exported(folder)
        assert again.shape == drafter.shape
        assert all(torch.equal(a, b) for a, b in zip(again.parameters(), drafter.parameters(), strict=True))
        found = read_drafter(str(folder))
        assert (found.block_size, found.layer_ids) == (BLOCK, LAYERS)
    assert read_drafter(str(zlab)).drafter_id != read_drafter(str(other)).drafter_id


@pytest.mark.parametrize(("layers", "sliding"), [(1, 0), (3, 0), (2, 2), (3, 2)])
def test_vllm_reads_what_we_say_it_reads(target: Path, tmp_path: Path, layers: int, sliding: int) -> None:
    """Layer ids, causality, windows and the mask token, by vLLM's own functions."""
    from transformers import Qwen3Config
    from vllm.model_executor.models import qwen3_dflash
    from vllm.transformers_utils.configs.speculators import SpeculatorsConfig
    from vllm.v1.worker.gpu.spec_decode.eagle.eagle3_utils import get_eagle3_aux_layers_from_config

    drafter = make_drafter(target, layers, sliding)
    zlab = export_zlab(drafter, tmp_path / "zlab", target_dir=target)
    configs = {zlab: Qwen3Config.from_pretrained(zlab)}
    if sliding in (0, layers):
        _, _, other = exports(target, tmp_path / "both", layers, sliding)
        configs[other] = SpeculatorsConfig.from_pretrained(other)
    for folder, theirs in configs.items():
        ours = served_by(read_exported_config(folder / "config.json"))
        assert ours.causal == [qwen3_dflash._dflash_layer_causal(theirs, i) for i in range(layers)]
        assert ours.causal == [i < sliding for i in range(layers)]
        described = SimpleNamespace(draft_model_config=SimpleNamespace(hf_config=theirs))
        assert ours.vllm_layer_ids == get_eagle3_aux_layers_from_config(described)
        assert ours.mask_token_id == theirs.dflash_config["mask_token_id"] == MASK
        assert dict(theirs.rope_parameters) == ours.rope
        assert theirs.architectures == ["DFlashDraftModel"]


def test_a_mixed_drafter_cannot_be_said_in_speculators_format(target: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"2 sliding .causal. and 1 full .* Use --format zlab"):
        exports(target, tmp_path, 3, 2)


def test_the_two_configs_are_one_drafter_there_and_back(target: Path, tmp_path: Path) -> None:
    for layers, sliding in ((1, 0), (2, 2)):
        _, zlab, _ = exports(target, tmp_path / str(sliding), layers, sliding)
        config = json.loads((zlab / "config.json").read_text())
        again = from_speculators_config(to_speculators_config(config, "a/b", []))
        assert again.pop("draft_vocab_size") == config["vocab_size"]
        assert again["dflash_config"].pop("causal") == bool(sliding)
        assert again == config
        assert layer_causality(again) == [bool(sliding)] * layers


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"speculators_model_type": "eagle3"}, "eagle3; draftmill knows dflash"),
        ({"sample_from_anchor": True}, "drafts from the anchor"),
        ({"aux_hidden_state_layer_ids": [0, 3]}, "0 names the embeddings"),
        ({"aux_hidden_state_layer_ids": None}, "not a DFlash drafter's config"),
        ({"sliding_window_non_causal": False}, "must be causal and full ones not"),
    ],
)
def test_another_speculator_is_one_line(target: Path, tmp_path: Path, change: dict[str, Any], said: str) -> None:
    _, _, other = exports(target, tmp_path, 1, 0)
    config = json.loads((other / "config.json").read_text()) | change
    (other / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=said) as caught:
        from_exported_config(other / "config.json")
    assert "\n" not in str(caught.value)
