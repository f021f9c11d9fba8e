"""A small world whose prompts are all answered, in the vocabulary of a tiny real target; the answers are made up."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.conftest import Words, World
from tests.extraction.faulty import POISON
from tests.extraction.tiny import save_tiny

VOCABULARY = 107
"""Of World.tiny_model."""


class SmallWords(Words):
    """One token a word, in this vocabulary; a poisonous one has its own."""

    @staticmethod
    def token(word: str) -> int:
        return POISON if word == "poison" else 3 + zlib.crc32(word.encode()) % 80


def sections(counts: Mapping[str, int], mix: Mapping[str, Any] | None = None, **extraction: Any) -> dict[str, Any]:
    """Of a manifest that takes all prompts, and stores states as they are computed.

    Args:
        counts: prompts by category, each in a file of its own.
        mix: changed keys of this section.
        extraction: keys of this section.
    """
    return {
        "sources": [{"name": name, "path": f"{name}.jsonl", "category": name} for name in counts],
        "mix": {"total": sum(counts.values()), "shares": dict(counts), "holdout": 0.0, **(mix or {})},
        "generation": {"max_tokens": 64, "thinking": {"share": 0.0}, "reject": []},
        "engine": {"max_num_seqs": 16, "extra": {"vocabulary": 90}},
        "extraction": {"dtype": "float32", **extraction},
    }


def answered_world(root: Path, texts: Mapping[str, Sequence[str]], mix: Mapping[str, Any] | None = None) -> World:
    """The world of these prompts, by category."""
    world = World(root)
    world.words = SmallWords()
    save_tiny(world.tiny_model(), "llama", vocab_size=VOCABULARY)
    for name, prompts in texts.items():
        world.jsonl(f"{name}.jsonl", [{"prompt": text} for text in prompts])
    world.tell(world.manifest(**sections({name: len(prompts) for name, prompts in texts.items()}, mix)))
    return world
