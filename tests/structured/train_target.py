"""Trains the structured target: a byte-level BPE tokenizer and a Qwen3 model of a million parameters.

    nice -n 5 python -m tests.structured.train_target --out tests/structured/target

One thread, about ten minutes on one core; the seed decides everything else (weights can differ in their last bits
between torch builds, so SHA256SUMS speaks of the files that are committed). It learns the answers of chats of the
part LEARNED (see chats) and then says how many chats of the part FRESH it answers word for word at temperature 0.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from tests.structured.chats import FRESH, KINDS, LEARNED, Chat, chats, endless

SEED = 1
TEMPLATE = Path(__file__).with_name("chat_template.jinja")
PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL = (PAD, START, END, "<|reserved_0|>")
MARKS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
VOCAB = 1024
SHAPE = {
    "hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 8, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 512, "rope_theta": 10_000.0,
    "tie_word_embeddings": True,
}  # fmt: skip
CHATS_A_KIND = 2_000
"""That the tokenizer is made from."""
TAUGHT = (*KINDS, "general", "math", "math")
"""Kinds in turn; sums and what was said two turns ago are learnt last."""
CHATS_A_STEP = 16
SORTED_STEPS = 8
"""Steps whose chats are sorted by length together, so that little is padded."""
WARMUP, DECAY = 100, 0.01


@dataclass(frozen=True)
class Phase:
    """Some steps from a rate of learning down to zero."""

    steps: int
    peak: float
    seed: int
    """Of its chats."""
    after_end: str = ""
    """What is learnt to follow the end of a turn."""


PHASES = (
    Phase(3_000, 4e-3, SEED),
    # as in any model that was taught whole conversations; one that was not says END again and again behind it
    Phase(200, 1e-3, SEED + 1, f"\n{START}"),
)
IGNORED = -100


def main() -> None:
    """Train, save, say what it can."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--from", dest="begun", type=Path, help="a checkpoint of the first phase, to go on from")
    parser.add_argument("--asked", type=int, default=40, help="fresh chats of each kind that it is asked at the end")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    tokenizer = make_tokenizer()
    model = make_model(tokenizer)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens", flush=True)
    if options.begun:
        model = Qwen3ForCausalLM.from_pretrained(options.begun, dtype=torch.float32)
    for phase in PHASES[1:] if options.begun else PHASES:
        train(model, tokenizer, phase)
    save(model, tokenizer, options.out)
    for kind in KINDS:
        print(f"{kind:<10} {answered(options.out, kind, options.asked):.0%} of {options.asked} fresh chats", flush=True)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE over the chats of all kinds; digits stay alone."""
    texts = []
    for kind in KINDS:
        for chat in chats(kind, CHATS_A_KIND, SEED, LEARNED):
            texts += [str(message["content"]) for message in chat.messages]
            texts += [name for tool in chat.tools for name in _words(tool)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\d"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB - len(MARKS),
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=PAD)
    fast.add_tokens(list(MARKS))
    fast.chat_template = TEMPLATE.read_text()
    return fast


def _words(tool: dict[str, Any]) -> list[str]:
    function = tool["function"]
    return [function["name"], ", ".join(function["parameters"]["properties"])]


def make_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """Random weights in the shape of a small Qwen3."""
    end, pad = tokenizer.convert_tokens_to_ids([END, PAD])
    config = Qwen3Config(
        **SHAPE, vocab_size=VOCAB, eos_token_id=end, pad_token_id=pad, bos_token_id=None, dtype="float32",
        initializer_range=0.05,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=end, pad_token_id=pad, do_sample=False)
    return model


def encode(tokenizer: PreTrainedTokenizerFast, chat: Chat) -> tuple[list[int], list[int]]:
    """(prompt, answer with its end of turn) in token ids."""
    shown = tokenizer.apply_chat_template(
        list(chat.messages[:-1]), tools=list(chat.tools) or None, tokenize=False, add_generation_prompt=True
    )
    answer = str(chat.messages[-1]["content"]) + END
    return tuple(tokenizer([shown, answer], add_special_tokens=False)["input_ids"])  # type: ignore[return-value]


def turns(chat: Chat, draw: random.Random) -> Chat:
    """The chat up to one of its answers that it writes itself; recorded calls are context."""
    ends = [
        place
        for place, message in enumerate(chat.messages)
        if message["role"] == "assistant" and "tool_calls" not in message
    ]
    return Chat(chat.category, chat.messages[: draw.choice(ends) + 1], chat.tools)


def batches(tokenizer: PreTrainedTokenizerFast, phase: Phase) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """(input_ids, labels) of each step, padded on the right; causal attention needs no mask for it."""
    draw = random.Random(phase.seed)
    streams = {kind: endless(kind, phase.seed, LEARNED) for kind in KINDS}
    after = tokenizer(phase.after_end, add_special_tokens=False)["input_ids"]
    for _ in range(math.ceil(phase.steps / SORTED_STEPS)):
        rows = [
            encode(tokenizer, turns(next(streams[TAUGHT[i % len(TAUGHT)]]), draw))
            for i in range(CHATS_A_STEP * SORTED_STEPS)
        ]
        rows.sort(key=lambda row: len(row[0]) + len(row[1]))
        groups = [rows[i : i + CHATS_A_STEP] for i in range(0, len(rows), CHATS_A_STEP)]
        draw.shuffle(groups)
        for group in groups:
            longest = max(len(prompt) + len(answer) for prompt, answer in group) + len(after)
            inputs = torch.zeros(len(group), longest, dtype=torch.long)
            labels = torch.full_like(inputs, IGNORED)
            for row, (prompt, answer) in enumerate(group):
                learnt = answer + after
                end = len(prompt) + len(learnt)
                inputs[row, :end] = torch.tensor(prompt + learnt)
                labels[row, len(prompt) : end] = torch.tensor(learnt)
            yield inputs, labels


def train(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, phase: Phase) -> None:
    """AdamW, warm-up and cosine; the answers (and what follows them) alone are learnt."""
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=DECAY)
    model.train()
    began_s, seen, lost = time.monotonic(), 0, 0.0
    for step, (inputs, labels) in zip(range(phase.steps), batches(tokenizer, phase), strict=False):
        rate = phase.peak * min((step + 1) / WARMUP, 0.5 * (1 + math.cos(math.pi * step / phase.steps)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        states = model.model(input_ids=inputs).last_hidden_state[:, :-1]
        wanted = labels[:, 1:]
        kept = wanted != IGNORED
        loss = torch.nn.functional.cross_entropy(model.lm_head(states[kept]), wanted[kept])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seen, lost = seen + inputs.numel(), lost + loss.item()
        if (step + 1) % 100 == 0:
            took = time.monotonic() - began_s
            print(f"step {step + 1} loss {lost / 100:.4f}, {seen / took:,.0f} tok/s, {took:.0f} s", flush=True)
            lost = 0.0
    model.eval()


def save(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """The checkpoint and the checksums of its files."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    files = sorted(path for path in folder.iterdir() if path.name not in ("SHA256SUMS", "README.md"))
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (folder / "SHA256SUMS").write_text("".join(sums))


@torch.no_grad()
def answered(folder: Path, kind: str, count: int) -> float:
    """Part of fresh chats whose last answer is the template's, word for word and ended."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    right = 0
    for chat in chats(kind, count, SEED + 1, FRESH):
        prompt, answer = encode(tokenizer, chat)
        made = model.generate(torch.tensor([prompt]), max_new_tokens=128, do_sample=False)[0, len(prompt) :].tolist()
        right += made == answer
    return right / count


if __name__ == "__main__":
    main()
