"""Counts of first turns are the renderer's own, for every tokenizer, whatever the text."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from corpus import token_counts
from corpus.errors import RowError
from corpus.manifest import Target
from corpus.records import Prompt, decode_prompt, encode_messages
from corpus.target import Renderer, ResolvedTarget
from corpus.token_counts import NASTY_TEXTS, PretokenCounts, Row, TokenCounts, UnusualTokenizerError

World = Any
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n/]*+|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEMPLATE = (
    "{% if tools %}<|start|>tools\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|end|>\n{% endif %}"
    "{% for m in messages %}{% if m.content == 'unrenderable' %}{{ raise_exception('no') }}{% endif %}"
    "{{ bos_token }}<|start|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}<|start|>assistant\n"
    "{% if not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
)
SOME_TEXT = [
    *NASTY_TEXTS,
    *(f"The {word}s were {word}ing and it's {word}ed, 12 of them.\n" for word in ("walk", "read")),
]
DEEPSEEK = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def split(pattern: str) -> pre_tokenizers.Split:
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def then(*steps: Any) -> pre_tokenizers.Sequence:
    return pre_tokenizers.Sequence(list(steps))


PLAIN = {
    "qwen": (then(split(QWEN), BYTES), normalizers.NFC()),
    "o200k": (then(split(O200K), BYTES), None),
    "gpt2": (pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True), None),
    "digits": (then(pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)), None),
    "stages": (then(split(r"\p{N}{1,3}"), split("[一-龥]+"), split(DEEPSEEK), BYTES), None),
    "gaps": (then(split("(th|x)|[0-9]"), BYTES), normalizers.Sequence([normalizers.NFC()])),
}
UNUSUAL = {
    "prefix space": (pre_tokenizers.ByteLevel(add_prefix_space=True), None),
    "lower case": (then(split(QWEN), BYTES), normalizers.Lowercase()),
    "look behind": (then(split(r"(?<=a)b|\s+"), BYTES), None),
    "lazy in Python": (then(split(r"\p{L}{1,2}+|\s"), BYTES), None),
    "empty class": (then(split(r"\p{Deseret}|\s"), BYTES), None),
    "intersection": (then(split(r"[\w&&[a-z]]+"), BYTES), None),
    "repeated twice": (then(split(r"a**|\s"), BYTES), None),
    "removed": (then(pre_tokenizers.Split(" ", "removed"), BYTES), None),
    "metaspace": (pre_tokenizers.Metaspace(), None),
    "none": (BYTES, None),
}


@cache
def trained(kind: str) -> Tokenizer:
    """A small byte-level BPE with cuts and normaliser of this kind; a Unigram."""
    if kind == "unigram":
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer: Any = trainers.UnigramTrainer(vocab_size=300, unk_token="<unk>", special_tokens=["<unk>"])  # noqa: S106
    else:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer, normalizer = {**PLAIN, **UNUSUAL}[kind]
        if normalizer is not None:
            tokenizer.normalizer = normalizer
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(SOME_TEXT, trainer)
    tokenizer.add_special_tokens(["<|start|>", "<|end|>", "<|end|>>"])
    tokenizer.add_tokens([AddedToken("<think>", normalized=True), AddedToken("é!", normalized=True)])
    return tokenizer


def renderer_of(tokenizer: Tokenizer, template: str = TEMPLATE) -> Renderer:
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|start|>"}
    with TemporaryDirectory() as folder:
        tokenizer.save(f"{folder}/tokenizer.json")
        Path(folder, "tokenizer_config.json").write_text(json.dumps(config))
        return renderer_in(Path(folder), template)


def renderer_in(folder: Path, template: str) -> Renderer:
    target = Target(model="org/small", max_model_len=512)
    return Renderer(ResolvedTarget(target, "rev", folder, template, "tokenizer"))


def reference(renderer: Renderer, rows: list[Row]) -> list[int | None]:
    """The plain loop, one row at a time."""

    def count(row: Row) -> int | None:
        prompt = decode_prompt(*row)
        try:
            return len(renderer.encode([renderer.text(prompt.context(0, []), prompt.tools, thinking=False)])[0]) or None
        except RowError:
            return None

    return [count(row) for row in rows]


def row(text: str) -> Row:
    return encode_messages(Prompt(({"role": "user", "content": text},)))


pieces = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.text(" \t\r\n\u00a0\u2028'", max_size=6),
    st.text("aZ1é\u0301' !<|>\n", max_size=12),
    st.sampled_from(NASTY_TEXTS),
    st.sampled_from(["<|start|>", "<|end|>", "<|end|>>", "<think>", "e\u0301!", "walking", "'ll", "if x:\n\treturn 1"]),
)
texts = st.lists(pieces, max_size=6).map("".join)
message = st.builds(lambda role, text: {"role": role, "content": text}, st.sampled_from(["user", "assistant"]), texts)
prompts = st.builds(
    lambda system, first, rest, tools: Prompt(
        (*({"role": "system", "content": text} for text in system), {"role": "user", "content": first}, *rest),
        tuple({"type": "function", "function": {"name": name, "parameters": {}}} for name in tools),
    ),
    st.lists(texts, max_size=1), st.one_of(texts, st.just("unrenderable")), st.lists(message, max_size=2),
    st.lists(texts, max_size=2),
)  # fmt: skip


@cache
def made(kind: str) -> tuple[Renderer, TokenCounts]:
    renderer = renderer_of(trained(kind))
    return renderer, TokenCounts(renderer)


@pytest.mark.parametrize("kind", PLAIN)
@given(prompts=st.lists(prompts, max_size=5))
def test_counts_are_the_renderers(kind: str, prompts: list[Prompt]) -> None:
    renderer, count = made(kind)
    rows = [encode_messages(prompt) for prompt in prompts]
    assert count(rows) == reference(renderer, rows)


@pytest.mark.parametrize("kind", PLAIN)
@given(text=texts)
def test_pretokens_add_up(kind: str, text: str) -> None:
    """The fast path alone, which the sampled check would otherwise cover up."""
    renderer, count = made(kind)
    counted = count._pretokens.count(text)
    assert counted in {None, len(renderer.encode([text])[0])}
    assert counted is not None or max(text) > "\u2fff"


@pytest.mark.parametrize("kind", PLAIN)
def test_plain_tokenizers_are_counted_by_pretokens(kind: str) -> None:
    assert made(kind)[1]._ways[0].__name__ == "_added_up"


@pytest.mark.parametrize("kind", [*UNUSUAL, "unigram"])
@given(prompts=st.lists(prompts, max_size=3))
def test_unusual_tokenizers_count_for_themselves(kind: str, prompts: list[Prompt]) -> None:
    renderer, count = made(kind)
    with pytest.raises(UnusualTokenizerError):
        PretokenCounts(renderer.tokenizer)
    rows = [encode_messages(prompt) for prompt in prompts]
    assert count(rows) == reference(renderer, rows)


@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word"])
def test_added_tokens_with_a_flag_are_unusual(flag: str) -> None:
    tokenizer = Tokenizer.from_str(trained("qwen").to_str())
    tokenizer.add_tokens([AddedToken("<odd>", **{flag: True})])
    renderer = renderer_of(tokenizer)
    with pytest.raises(UnusualTokenizerError):
        PretokenCounts(renderer.tokenizer)
    rows = [row("a <odd> b"), row("a<odd>b")]
    assert TokenCounts(renderer)(rows) == reference(renderer, rows)


@given(texts=st.lists(texts, max_size=5))
def test_smollm2(smollm2_dir: Path, texts: list[str]) -> None:
    renderer, count = real(smollm2_dir)
    rows = [row(text) for text in texts]
    assert count(rows) == reference(renderer, rows)
    assert count._ways[0].__name__ == "_added_up"
    assert [count._pretokens.count(text) for text in texts if max(text, default="") < "\U00010000"] == [
        len(renderer.encode([text])[0]) for text in texts if max(text, default="") < "\U00010000"
    ]


@cache
def real(folder: Path) -> tuple[Renderer, TokenCounts]:
    renderer = renderer_in(folder, (folder / "chat_template.jinja").read_text())
    return renderer, TokenCounts(renderer)


def test_a_word_level_tokenizer(world: World) -> None:
    folder = world.tiny_model()
    renderer = renderer_in(folder, (folder / "chat_template.jinja").read_text())
    rows = [row("question 7 ?"), row(" "), row("1 2 3")]
    assert TokenCounts(renderer)(rows) == reference(renderer, rows) == [7, 4, 7]


def test_every_character_of_the_basic_plane() -> None:
    """Classes of characters are the tokenizer's own: each in a place where letter, number, space and mark differ."""
    for kind in ("qwen", "o200k", "digits", "stages"):
        renderer, count = made(kind)
        sampled = token_counts.BMP[::7]
        contexts = ["".join(f"a{c}b1{c}2 {c} " for c in sampled[i : i + 8]) for i in range(0, len(sampled), 8)]
        counts = [count._pretokens.count(text) for text in contexts]
        ids = renderer.encode(contexts)
        assert all(n in {None, len(i)} for n, i in zip(counts, ids, strict=True))
        assert counts.count(None) <= len(contexts) // 500


@pytest.mark.parametrize("broken", ["pretokens", "lengths", "both"])
def test_a_way_that_lies_is_given_up_and_the_counts_are_exact(
    broken: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The lie begins after the first check, deep in a call: all of that call is counted again."""
    renderer = renderer_of(trained("qwen"))
    count = TokenCounts(renderer)
    monkeypatch.setattr(token_counts, "BLOCK_ROWS", 50)
    rows = [row(f"question {i}" + (" unlike the others" if i == 100 else "")) for i in range(120)]
    expected = reference(renderer, rows)
    pretokens, lengths = count._pretokens.count, renderer.lengths

    def wrong_pretokens(text: str) -> int:
        return (pretokens(text) or 0) + ("unlike" in text)

    def wrong_lengths(texts: list[str]) -> list[int]:
        return [number + ("unlike" in text) for number, text in zip(lengths(texts), texts, strict=True)]

    monkeypatch.setattr(count._pretokens, "count", wrong_pretokens)
    ways: dict[str, list[Callable[[list[str]], list[int]]]] = {
        "pretokens": [count._added_up, lengths],
        "lengths": [wrong_lengths],
        "both": [count._added_up, wrong_lengths],
    }
    count._ways = ways[broken]
    with caplog.at_level(logging.WARNING, logger="draftmill"):
        assert count(rows) == expected
    assert len(caplog.records) == (2 if broken == "both" else 1)


def test_a_tokenizer_that_does_not_add_up_is_noticed_at_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(token_counts, "_as_python", lambda pattern: r"\w+|\W")
    renderer = renderer_of(trained("qwen"))
    with caplog.at_level(logging.WARNING, logger="draftmill"):
        count = TokenCounts(renderer)
    assert "differ" in caplog.text
    rows = [row(text) for text in NASTY_TEXTS]
    assert count(rows) == reference(renderer, rows)


def test_a_template_may_refuse_some_or_render_nothing() -> None:
    renderer = renderer_of(
        trained("gpt2"), "{% if messages[0].content == 'x' %}{{ 1 / 0 }}{% endif %}{{ messages[0].content }}"
    )
    assert TokenCounts(renderer)([row("x"), row(""), row("1"), row("x"), row("12")])[:4] == [None, None, 1, None]


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_counts, "CACHE_PRETOKENS", 10)
    renderer = renderer_of(trained("qwen"))
    count = TokenCounts(renderer)
    rows = [row(f"word{'abcdefghij'[i % 10] * i} and {i}") for i in range(100)]
    assert count(rows) == reference(renderer, rows)
    assert len(count._pretokens._counts) <= 10
