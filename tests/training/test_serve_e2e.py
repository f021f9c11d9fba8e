"""The serving check in a real vLLM: a random drafter is worth nothing, and costs no token its place."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from fleet.devices import find_devices
from fleet.pool import Done, Pool
from training.serve_messages import ServeConfig, ServeItem, ServeResult, decode_result, encode

pytestmark = pytest.mark.e2e

VOCABULARY = 512
EOS = 511
BLOCK_SIZE = 4
MAX_MODEL_LEN = 96


@pytest.fixture(scope="module")
def target_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_target(tmp_path_factory.mktemp("target"))


def build_target(folder: Path, *, constant: bool = False) -> Path:
    """A random Qwen3 of eight layers, and the least tokenizer that vLLM accepts.

    A constant one has no output weights: it, and any drafter that borrows its head, says token 0 for ever.
    """
    import torch
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    words = {f"w{i}": i for i in range(EOS)} | {"<end>": EOS}
    special = {"eos_token": "<end>", "pad_token": "<end>", "unk_token": "w0"}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=special["unk_token"]))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
    torch.manual_seed(1)
    config = Qwen3Config(
        **shape(),
        num_hidden_layers=8,
        eos_token_id=EOS,
        tie_word_embeddings=False,
        initializer_range=0.1,
    )
    model = Qwen3ForCausalLM(config)
    if constant:
        torch.nn.init.zeros_(model.lm_head.weight)
        model.generation_config.eos_token_id = None
    model.save_pretrained(folder)
    return folder


def shape() -> dict[str, object]:
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "max_position_embeddings": 256,
        "dtype": "float32",
    }


@pytest.fixture(scope="module")
def drafter_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random drafter of one layer in z-lab's format, written by hand."""
    import torch
    from safetensors.torch import save_file
    from transformers import Qwen3Config

    folder = tmp_path_factory.mktemp("drafter")
    features = 2
    config = Qwen3Config(**shape(), num_hidden_layers=1, tie_word_embeddings=False).to_dict()
    config |= {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "block_size": BLOCK_SIZE,
        "num_target_layers": 8,
        "layer_types": ["full_attention"],
        "dflash_config": {"target_layer_ids": [1, 5], "mask_token_id": 500},
    }
    (folder / "config.json").write_text(json.dumps(config))
    torch.manual_seed(2)
    hidden, inner, heads = 64, 128, 2 * 32
    sizes = {
        "fc": (hidden, features * hidden),
        "layers.0.self_attn.q_proj": (heads, hidden),
        "layers.0.self_attn.k_proj": (32, hidden),
        "layers.0.self_attn.v_proj": (32, hidden),
        "layers.0.self_attn.o_proj": (hidden, heads),
        "layers.0.mlp.gate_proj": (inner, hidden),
        "layers.0.mlp.up_proj": (inner, hidden),
        "layers.0.mlp.down_proj": (hidden, inner),
    }
    weights = {f"{name}.weight": torch.randn(size) * 0.1 for name, size in sizes.items()}
    norms = {
        "hidden_norm": hidden,
        "norm": hidden,
        "layers.0.self_attn.q_norm": 32,
        "layers.0.self_attn.k_norm": 32,
        "layers.0.input_layernorm": hidden,
        "layers.0.post_attention_layernorm": hidden,
    }
    weights |= {f"{name}.weight": torch.ones(size) for name, size in norms.items()}
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
    return folder


def greedy_by_transformers(target_dir: Path, prompt: list[int], max_tokens: int) -> list[int]:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(target_dir, dtype=torch.float32).eval()
    tokens = list(prompt)
    while len(tokens) < len(prompt) + max_tokens and tokens[-1] != EOS:
        with torch.no_grad():
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


def serve(target_dir: Path, drafter_dir: Path, items: list[ServeItem], log_dir: Path) -> dict[str, ServeResult]:
    config = ServeConfig(
        target_dir=str(target_dir),
        dtype="float32",
        max_model_len=MAX_MODEL_LEN,
        drafter_dir=str(drafter_dir),
        num_speculative_tokens=BLOCK_SIZE - 1,
    )
    devices = [device for device in find_devices() if device.kind == "cpu"][:1]

    async def work() -> dict[str, ServeResult]:
        found: dict[str, ServeResult] = {}
        async with Pool("training.serve_worker:create", lambda _: encode(config), devices, log_dir=log_dir) as pool:
            for item in items:
                pool.submit(item.category, encode(item))
            async for outcome in pool.outcomes():
                assert isinstance(outcome, Done), outcome
                found[outcome.item_id] = decode_result(outcome.payload)
        return found

    return asyncio.run(asyncio.wait_for(work(), 900))


@pytest.mark.full
@pytest.mark.parametrize("max_tokens", [1, 2, 9, 10, 13])
def test_vllm_counts_a_draft_before_the_answer_is_cut(constant_target: dict[int, ServeResult], max_tokens: int) -> None:
    """What the offline walk must agree with: a draft is whole near max_tokens, and all it accepts is counted."""
    result = constant_target[max_tokens]
    drafts = -(-(max_tokens - 1) // BLOCK_SIZE)
    assert result.token_ids == [[0] * max_tokens]
    assert result.drafts == drafts
    assert result.draft_tokens == result.accepted_tokens == drafts * (BLOCK_SIZE - 1)


@pytest.fixture(scope="module")
def constant_target(drafter_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, ServeResult]:
    target = build_target(tmp_path_factory.mktemp("constant"), constant=True)
    items = [ServeItem(category=str(most), prompts=[[5, 6, 7]], max_tokens=most) for most in (1, 2, 9, 10, 13)]
    found = serve(target, drafter_dir, items, tmp_path_factory.mktemp("logs"))
    return {int(category): result for category, result in found.items()}


@pytest.mark.full
def test_a_random_drafter_is_served_and_counted_by_category(
    target_dir: Path, drafter_dir: Path, tmp_path: Path
) -> None:
    items = {
        "coding": ServeItem(
            category="coding",
            prompts=[[number, number + 1, number + 2] for number in range(0, 400, 20)],
            max_tokens=40,
        ),
        "math": ServeItem(
            category="math",
            prompts=[list(range(30)), list(range(90)), list(range(96))],
            max_tokens=[7, 40, 40],
        ),
    }
    found = serve(target_dir, drafter_dir, list(items.values()), tmp_path)
    coding, math = found["coding"], found["math"]
    assert (coding.rows, coding.skipped) == (20, 0)
    assert (math.rows, math.skipped) == (2, 1)
    assert math.max_tokens == [7, 6, 0]
    assert math.token_ids[2] == []
    for result in found.values():
        assert 1.0 <= result.acceptance_length < 1.2, "a random drafter has nothing to give"
        assert result.draft_tokens == result.drafts * (BLOCK_SIZE - 1)
        assert sum(result.accepted_per_position) == result.accepted_tokens
        assert len(result.accepted_per_position) == BLOCK_SIZE - 1
        # a row is its first token and, for each draft, what was accepted and one more; only tokens that
        # were accepted behind a row's end are counted and not answered
        tokens = sum(map(len, result.token_ids))
        counted = result.rows + result.drafts + result.accepted_tokens
        assert tokens <= counted <= tokens + result.rows * (BLOCK_SIZE - 1)
    for index in (0, 7, 19):
        expected = greedy_by_transformers(target_dir, items["coding"].prompts[index], 40)
        assert coding.token_ids[index] == expected
    assert math.token_ids[0] == greedy_by_transformers(target_dir, items["math"].prompts[0], 7)
