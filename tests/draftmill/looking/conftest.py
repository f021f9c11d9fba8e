"""One workspace that many questions are asked of: hostile texts, drops of several kinds, two builds."""

from __future__ import annotations

from typing import Any

import pytest

World = Any

HOSTILE = {
    "script": "<script>alert(1)</script> runs in a page",
    "ansi": "\x1b[31mred\x1b[0m and \x1b]0;a title\x07 of the window",
    "bidi": "right \u202eto left\u202c, then \u2066isolated\u2069 words",
    "nul": "nothing \x00 at all",
    "one word": "W" * 1_000_000,
    "marks": "a" + "\u0301" * 3000 + " pile",
    "wide": "漢字かな" * 200,
    "joined": "👩\u200d👩\u200d👧 and family " * 40,
    "lines": "first\nsecond\r\nthird\u2028fourth\tfifth",
}
EVIL = "evil\x1b[31m<b>\u202e"
"""The dataset's id of a row, and the label of a source row: data is anybody's."""
MIX = {"total": 20, "shares": {"coding": 1, "general": 1}, "holdout": 0.1}


@pytest.fixture(scope="session")
def asked(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A world whose `first` and `second` builds are answered but for the general ones of the second."""
    from tests.conftest import World as Small

    world: World = Small(tmp_path_factory.mktemp("asked"))
    twins = [f"please sort the list of numbers that is given here and print {n} of them" for n in ("all", "half")]
    rows: list[dict[str, Any]] = [{"id": name, "prompt": text} for name, text in HOSTILE.items()]
    rows += [{"id": EVIL, "prompt": "a plain question"}, {"id": "twice", "prompt": "A  plain QUESTION"}]
    rows += [{"id": f"twin {i}", "prompt": text} for i, text in enumerate(twins)]
    rows += [{"id": "broken", "messages": [{"role": "user", "content": ""}]}]
    talk = [{"id": i, "prompt": f"talk question {i}"} for i in range(15)]
    for i in range(15):
        said = (("system", "be kind"), ("user", f"chat one {i}"), ("assistant", "-"), ("user", f"chat two {i}"))
        talk.append({"id": f"chat {i}", "messages": [{"role": role, "content": text} for role, text in said]})
    sources = [
        {"name": "code", "path": world.jsonl("code.jsonl", rows), "category": "coding", "license": "mit"},
        {
            "name": "talk",
            "path": world.jsonl("talk.jsonl", talk),
            "category": "general",
            "license": "cc0 \x1b[31m\u202e",
        },
    ]
    body = {
        "sources": sources, "mix": MIX, "dedup": {"near": 0.6}, "filters": {"prompt_chars": [1, 5_000_000]},
        "target": {"model": "model", "max_model_len": 4_000_000, "dtype": "float32"},
    }  # fmt: skip
    world.first = world.manifest(**(body | {"mix": MIX | {"total": 12}}))
    world.second = world.manifest(**body, name="larger")
    world.tell(world.first)
    world.tell(world.second, limit=4)
    return world
