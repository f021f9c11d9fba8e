"""The manifest: what a small one means, and what is said to a person whose manifest is wrong.

Every wrong input is answered by one line that names the file, the key's path, what stands there, what may stand
there, and the nearest known key.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, ValidationError

from corpus.errors import UserError
from corpus.language import _DECISIVE, _identifier
from corpus.language_codes import COUNTRIES, LANGUAGES
from corpus.manifest import Manifest, Section
from corpus.manifest_file import load_manifest, manifest_schema, parse_manifest

Body = dict[str, Any]


def small() -> Body:
    return {
        "name": "small",
        "mix": {"total": 10, "shares": {"coding": 3, "math": 1}},
        "sources": [
            {"name": "code", "path": "code.jsonl", "category": "coding"},
            {"name": "sums", "path": "sums.jsonl", "category": {"column": "kind", "map": {"m": "math"}}},
        ],
        "target": {"model": "org/model"},
    }


def changed(*path: str | int, to: Any) -> str:
    body: Any = small()
    here = body
    for part in path[:-1]:
        here = here[part] if isinstance(here, list) else here.setdefault(part, {})
    here[path[-1]] = to
    return json.dumps(body)


def without(key: str) -> str:
    return json.dumps({name: value for name, value in small().items() if name != key})


def models(model: type[BaseModel] = Manifest) -> Iterator[type[BaseModel]]:
    yield model
    for field in model.model_fields.values():
        for found in _models_in(field.annotation):
            yield from models(found)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


def refusal(text: str) -> str:
    with pytest.raises(UserError) as caught:
        parse_manifest(text, "mix.yaml")
    line = str(caught.value)
    assert "\n" not in line
    assert line.startswith("mix.yaml: ")
    return line


def test_defaults_fill_what_is_not_said() -> None:
    manifest = parse_manifest(json.dumps(small()), "mix.yaml")
    assert manifest.seed == 0
    assert manifest.mix.shortage == "fail"
    assert manifest.mix.holdout == 0.02
    assert manifest.sources[0].revision == "main"
    assert manifest.sources[0].format == "auto"
    assert manifest.dedup.exact
    assert manifest.dedup.near is None
    assert manifest.filters.bounds("prompt_chars") == (0, None)
    assert manifest.generation.max_tokens == 4096
    assert manifest.generation.for_category("coding").truncated == "keep"
    assert manifest.target.dtype == "bfloat16"
    assert manifest.training.block_size == 16


def test_shares_are_weights() -> None:
    assert parse_manifest(json.dumps(small()), "m").mix.normalised() == {"coding": 0.75, "math": 0.25}


@pytest.mark.parametrize(("value", "bounds"), [([4, 9], (4, 9)), (9, (0, 9)), ([4, None], (4, None)), (0, (0, 0))])
def test_a_pair_is_min_and_max_and_a_number_is_the_max(value: Any, bounds: tuple[int, int | None]) -> None:
    assert parse_manifest(changed("filters", "turns", to=value), "m").filters.bounds("turns") == bounds


def test_on_and_off_are_words_in_yaml() -> None:
    text = json.dumps(small())[:-1] + ", generation: {thinking: {share: 0.5, on: {top_k: 7}, off: {top_k: 9}}}}"
    thinking = parse_manifest(text, "m").generation.thinking
    assert (thinking.share, thinking.on.top_k, thinking.off.top_k) == (0.5, 7, 9)


def test_a_category_overrides_only_what_it_sets() -> None:
    manifest = parse_manifest(
        changed("generation", to={"max_tokens": 100, "truncated": "drop", "by_category": {"math": {"max_tokens": 5}}}),
        "m",
    )
    assert manifest.generation.for_category("math").max_tokens == 5
    assert manifest.generation.for_category("math").truncated == "drop"
    assert manifest.generation.for_category("coding").max_tokens == 100


UNKNOWN_KEYS = [
    (("sede",), "sede", "seed"),
    (("mix", "totl"), "mix.totl", "total"),
    (("sources", 0, "limt"), "sources[0] (code).limt", "limit"),
    (("sources", 1, "category", "colum"), "sources[1] (sums).category.colum", "column"),
    (("sources", 0, "format"), "sources[0] (code).format.feilds", "fields"),
    (("filters", "prompt_char"), "filters.prompt_char", "prompt_chars"),
    (("dedup", "exat"), "dedup.exat", "exact"),
    (("target", "modl"), "target.modl", "model"),
    (("generation", "thinkin"), "generation.thinkin", "thinking"),
    (("generation", "thinking", "on", "temprature"), "generation.thinking.on.temprature", "temperature"),
    (("generation", "by_category", "math", "max_token"), "generation.by_category.math.max_token", "max_tokens"),
    (("engine", "max_num_seq"), "engine.max_num_seq", "max_num_seqs"),
    (("extraction", "layer"), "extraction.layer", "layers"),
    (("training", "blocksize"), "training.blocksize", "block_size"),
]


@pytest.mark.parametrize(("path", "key", "nearest"), UNKNOWN_KEYS, ids=[key for _, key, _ in UNKNOWN_KEYS])
def test_an_unknown_key_at_any_level_names_its_path_and_the_nearest(
    path: tuple[str | int, ...], key: str, nearest: str
) -> None:
    to: Any = {"feilds": {"prompt": "q"}} if path[-1] == "format" else 1
    line = refusal(changed(*path, to=to))
    assert f": {key} is not a known key. Did you mean {nearest}? Known here: " in line


def test_an_unknown_key_of_an_evaluation_set() -> None:
    line = refusal(changed("decontaminate", to={"against": [{"path": "x", "field": "q", "splt": "test"}]}))
    assert "decontaminate.against[0] (x).splt is not a known key. Did you mean split?" in line


WRONG_VALUES = [
    (("mix", "total"), "9", 'mix.total is "9"', "integer"),
    (("mix", "total"), 0, "mix.total is 0", "must be at least 1"),
    (("mix", "total"), 1.5, "mix.total is 1.5", "integer"),
    (("mix", "total"), True, "mix.total is true", "integer"),
    (("mix", "total"), 10**40, "mix.total is 1000", "must be at most 1000000000000000"),
    (("seed",), 2**63, "seed is 9223372036854775808", "must be below"),
    (("mix", "shares"), {}, "mix.shares is {}", "must hold at least 1, such as {coding: 3, math: 1}"),
    (("mix", "shares"), [1], "mix.shares is [1]", "a mapping is expected, such as {coding: 3, math: 1}"),
    (("mix", "shares", "coding"), "much", 'mix.shares.coding is "much"', "number"),
    (("mix", "shares", "coding"), 0, "mix.shares.coding is 0", "must be above 0"),
    (("mix", "shares", "two words"), 1, "mix.shares.two words", "a name of letters, digits"),
    (("mix", "shortage"), "fial", 'mix.shortage is "fial"', "Did you mean fail?"),
    (("mix", "holdout"), 1, "mix.holdout is 1", "must be below 1"),
    (("mix",), "x", 'mix is "x"', "a mapping is expected, such as {total: …, shares: …}"),
    (("sources",), [], "sources is []", "must hold at least 1"),
    (("sources",), {"a": 1}, 'sources is {"a": 1}', "a list is expected, such as [{name: talk, path: talk.jsonl}]"),
    (("sources", 0), "x", 'sources[0] is "x"', "a mapping is expected, such as {name: …}"),
    (("sources", 0, "limit"), -1, "sources[0] (code).limit is -1", "must be at least 1"),
    (("sources", 0, "weight"), 0, "sources[0] (code).weight is 0", "must be above 0"),
    (("sources", 0, "category"), 3, "sources[0] (code).category is 3", "text or a mapping is expected"),
    (("sources", 0, "format"), "shargpt", 'sources[0] (code).format is "shargpt"', "Did you mean sharegpt?"),
    (
        ("sources", 0, "format"),
        {"fields": {"promt": "q"}},
        "sources[0] (code).format.fields.promt is not a known key",
        "Did you mean prompt?",
    ),
    (
        ("sources", 0, "format"),
        {"fields": {"prompt": 3}},
        "sources[0] (code).format.fields.prompt is 3",
        "text is expected",
    ),
    (("sources", 0, "format"), {"fields": {"id": "x"}}, "sources[0] (code).format: fields names neither", "messages"),
    (("sources", 1, "category", "map"), {"a": 3}, "sources[1] (sums).category.map.a is 3", "text is expected"),
    (("filters",), None, "filters is empty (null)", "Remove the key to take the default."),
    (("filters", "turns"), [9, 3], "filters.turns: the minimum 9 is above the maximum 3", ""),
    (("filters", "turns"), [1, 2, 3], "filters.turns is [1, 2, 3]", "at most 2"),
    (("filters", "turns"), "x", 'filters.turns is "x"', "an integer or a list is expected"),
    (("dedup", "near"), 1, "dedup.near is 1", "must be below 1"),
    (("decontaminate", "against"), [], "decontaminate.against is []", "must hold at least 1"),
    (("engine", "max_num_seqs"), "lots", 'engine.max_num_seqs is "lots"', "an integer or auto is expected"),
    (("extraction", "layers"), ["a"], 'extraction.layers[0] is "a"', "integer"),
    (("training", "gamma"), 0, "training.gamma is 0", "must be at least 0.01"),
    (("training", "learning_rate"), 1e300, "training.learning_rate is 1e+300", "must be at most 1"),
]


WRITTEN_ANOTHER_WAY = [
    (("filters", "language"), "en", 'filters.language is "en"; a list is expected. Write [en].'),
    (("licenses", "deny"), "*-nc-*", 'licenses.deny is "*-nc-*"; a list is expected. Write ["*-nc-*"].'),
    (("generation", "imported"), "team", 'generation.imported is "team"; a list is expected. Write [team].'),
    (("extraction", "layers"), 5, "extraction.layers is 5; a list or auto is expected. Write [5]."),
    (
        ("decontaminate", "against"),
        "gsm8k",
        'decontaminate.against is "gsm8k"; a list is expected, such as [{path: test.jsonl, field: question}].',
    ),
    (("dedup",), True, "dedup is true; a mapping is expected, such as {exact: true}."),
    (("filters",), True, "filters is true; a mapping is expected, such as {near_empty: 1}."),
    (("licenses",), "x", 'licenses is "x"; a mapping is expected, such as {deny: ["*-nc-*", unknown]}.'),
    (("dedup", "exact"), "yes", 'dedup.exact is "yes"; true or false is expected. Write true.'),
    (("mix", "total"), "900,000", 'mix.total is "900,000"; an integer is expected. Write 900000.'),
    (("mix", "total"), 9e5, "mix.total is 900000.0; an integer is expected. Write 900000."),
    (("sources", 0, "config"), 625, "sources[0] (code).config is 625; text is expected. Put it in quotes."),
    (
        ("sources", 0, "name"),
        "my code",
        'sources[0].name is "my code"; a name of letters, digits, `.`, `_` and `-`, a letter or digit first, '
        "is expected. Write my-code.",
    ),
]


@pytest.mark.parametrize(
    ("path", "value", "said"), WRITTEN_ANOTHER_WAY, ids=[said for _, _, said in WRITTEN_ANOTHER_WAY]
)
def test_what_is_meant_but_written_in_another_kind_is_shown_as_it_is_written(
    path: tuple[str | int, ...], value: Any, said: str
) -> None:
    assert refusal(changed(*path, to=value)) == f"mix.yaml: {said}"


def test_an_example_of_a_key_is_one_that_the_key_takes() -> None:
    fields = [(model, name, field) for model in set(models()) for name, field in model.model_fields.items()]
    examples = [(model, name, field.examples[0]) for model, name, field in fields if field.examples]
    assert len(examples) > 8
    for model, name, example in examples:
        with pytest.raises(ValidationError) as caught:
            model.model_validate_json(json.dumps({name: example, "no such key": 1}))
        assert name not in {error["loc"][0] for error in caught.value.errors()}


LANGUAGES_WRITTEN = [
    ("english", "Did you mean en (English)?"),
    ("eng", "Did you mean en (English)?"),
    ("EN", "Did you mean en (English)?"),
    ("pt_BR", "Did you mean pt (Portuguese)?"),
    ("jp", "Did you mean ja (Japanese)?"),
    ("germn", "Did you mean de (German)?"),
    ("xx", "of a language that can be told: af, am, an, "),
    ("und", "of a language that can be told: af, am, an, "),
    ("a\nb", "of a language that can be told: af, am, an, "),
]


@pytest.mark.parametrize(("written", "said"), LANGUAGES_WRITTEN, ids=[written for written, _ in LANGUAGES_WRITTEN])
def test_a_language_that_the_identifier_cannot_tell(written: str, said: str) -> None:
    line = refusal(changed("filters", "language", to=["fr", written]))
    assert line.startswith(f"mix.yaml: filters.language[1] is {json.dumps(written)}; an ISO 639-1 code is expected")
    assert said in line
    assert "more)" not in line


def test_the_languages_are_those_that_the_identifier_tells() -> None:
    told = {label for label in _identifier().labels if len(label) == 2} | {code for code, _ in _DECISIVE} | {"zh"}
    assert set(LANGUAGES) == told
    assert not set(COUNTRIES) & told
    assert set(COUNTRIES.values()) <= told


@pytest.mark.parametrize(("path", "value", "got", "expected"), WRONG_VALUES, ids=[got for _, _, got, _ in WRONG_VALUES])
def test_a_wrong_value_names_its_path_what_it_is_and_what_it_may_be(
    path: tuple[str | int, ...], value: Any, got: str, expected: str
) -> None:
    line = refusal(changed(*path, to=value))
    assert f"mix.yaml: {got}" in line
    assert expected in line
    assert "more)" not in line  # one mistake is one mistake


@pytest.mark.parametrize("number", [".inf", ".nan"])
def test_a_share_is_a_finite_number(number: str) -> None:
    text = json.dumps(small()).replace('"coding": 3', f'"coding": {number}')
    assert "mix.shares.coding is" in refusal(text)
    assert "finite number" in refusal(text)


MISSING = {
    "name": "name is missing: name of the run; it labels builds in the ledger. Add `name:`.",
    "mix": "mix is missing: what the corpus must be made of. Add `mix:`, such as {total: …, shares: …}.",
    "sources": "sources is missing: where prompts come from. "
               "Add `sources:`, such as [{name: talk, path: talk.jsonl}].",
    "target": "target is missing: the model that answers. Add `target:`, such as {model: …}.",
}  # fmt: skip


@pytest.mark.parametrize("key", MISSING)
def test_a_missing_section_says_what_it_is_for_and_what_to_add(key: str) -> None:
    assert refusal(without(key)) == f"mix.yaml: {MISSING[key]}"


def test_a_missing_key_of_a_section() -> None:
    line = refusal(changed("decontaminate", to={"against": [{"dataset": "openai/gsm8k"}]}))
    assert line.endswith(
        "decontaminate.against[0] (openai/gsm8k).field is missing: the column that holds the question. Add `field:`."
    )
    assert "target.model is missing: a Hub id, a local folder" in refusal(changed("target", to={}))


def test_a_key_that_is_missing_because_it_is_misspelt_is_one_mistake() -> None:
    assert "more)" not in refusal(changed("target", to={"modl": "org/model"}))


ON_LINES = """\
name: small
mix:
  total: 10
  shares: {coding: 3, math: 1}
sources:
  - name: code
    path: code.jsonl
    category: coding
  - {name: sums, path: sums.jsonl, category: math}
target:
  model: org/model
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("total: 10", "total: x", "mix.total is \"x\"; an integer is expected. (line 3)"),
        ("path: code", "licence: mit\n    path: code", "sources[0] (code).licence is not a known key."),
        ("path: code", "licence: mit\n    path: code", "(line 7)"),
        ("category: math", "weight: 0", "sources[1] (sums).weight is 0; it must be above 0. (line 9)"),
        ("path: code.jsonl", "limit: 3", "sources[0] (code): needs exactly one of dataset and path; "
                                         "it has neither: add one. (line 6)"),
        ("name: sums", "name: code", "sources[1].name is code, as is sources[0].name; "
                                     "every source needs its own. (line 9)"),
        ("  model: org/model", "  {modl: a, revision: 3}", "(line 11; 1 more)"),
        ("  model: org/model", "  dtype: float32", "target.model is missing"),
        ("category: coding", "category: maths", "(line 4)"),
        ("target:\n  model: org/model\n", "", "Add `target:`, such as {model: …}."),
    ],
)  # fmt: skip
def test_a_file_of_several_lines_says_the_line_of_the_key(old: str, new: str, said: str) -> None:
    assert ON_LINES.count(old) == 1
    line = refusal(ON_LINES.replace(old, new))
    assert said in line
    assert "(line " in line or "target is missing" in line


def test_names_that_would_break_the_line_are_quoted_or_left_out() -> None:
    assert 'sources[0] (code)."a\\nb" is not a known key' in refusal(changed("sources", 0, "a\nb", to=1))
    assert "sources[0].name is" in refusal(changed("sources", 0, "name", to="a\nb"))


def test_several_mistakes_are_counted() -> None:
    body = small()
    body["mix"]["totl"] = 1
    body["dedup"] = {"exact": 3}
    assert refusal(json.dumps(body)).endswith("(1 more)")


def test_a_share_of_a_category_that_no_source_gives() -> None:
    line = refusal(changed("mix", "shares", to={"coding": 1, "math": 1, "codng": 1}))
    assert (
        "mix.shares.codng is a category that no source gives; sources give coding, math. Did you mean coding?" in line
    )


def test_a_source_whose_category_has_no_share() -> None:
    line = refusal(changed("sources", 0, "category", to="codings"))
    assert "mix.shares.coding is a category that no source gives" in line
    only = refusal(changed("mix", "shares", to={"math": 1}))
    assert "sources[0] (code).category is coding, which has no share; mix.shares has math" in only


def test_an_override_of_a_category_without_a_share() -> None:
    line = refusal(changed("generation", "by_category", to={"codin": {"max_tokens": 4}}))
    assert "generation.by_category.codin is a category without a share" in line
    assert "Did you mean coding?" in line


def test_two_sources_of_one_name() -> None:
    line = refusal(changed("sources", 1, "name", to="code"))
    assert "sources[1].name is code, as is sources[0].name" in line


ORIGINS: list[tuple[Body, str]] = [
    ({"dataset": "a/b"}, "it has both: remove one."),
    ({"path": None}, "it has neither: add one."),
    ({"path": ""}, "what it has is empty."),
]


@pytest.mark.parametrize(("extra", "said"), ORIGINS, ids=["both", "neither", "empty"])
def test_a_source_has_one_origin_and_so_has_an_evaluation_set(extra: Body, said: str) -> None:
    body = small()
    body["sources"][0] |= extra
    needs = f"needs exactly one of dataset and path; {said}"
    assert f"sources[0] (code): {needs}" in refusal(json.dumps(body))
    assert needs in refusal(changed("decontaminate", to={"against": [{"path": "x", "field": "q"} | extra]}))


@pytest.mark.parametrize("key", ["map", "default"])
def test_a_label_that_is_nearly_a_share_is_a_slip(key: str) -> None:
    def rule(category: str) -> str:
        labels: Body = {"m": "math"} | ({"c": category} if key == "map" else {})
        return changed("sources", 1, "category", to={"column": "k", "map": labels} | (
            {"default": category} if key == "default" else {}))  # fmt: skip

    at = "category.map.c" if key == "map" else "category.default"
    for written, meant in (("codng", "coding"), ("Math", "math"), ("maths", "math")):
        line = refusal(rule(written))
        assert f"sources[1] (sums).{at} is {written}, which has no share; mix.shares has coding, math." in line
        assert f"Did you mean {meant}?" in line
    for other in ("none", "general", "code-other", "agent", "coding"):
        assert parse_manifest(rule(other), "m").sources[1].name == "sums"


def test_a_mean_of_a_category_without_a_share() -> None:
    means = {"coding": 500, "math": 300, "mth": 200}
    mix = {"total": 10, "unit": "response_tokens", "shares": {"coding": 1, "math": 1}, "mean_response_tokens": means}
    line = refusal(changed("mix", to=mix))
    assert "mix.mean_response_tokens.mth is a category without a share" in line
    assert "Did you mean math?" in line


NO_ROOM: list[tuple[Body, str | None]] = [
    ({"filters": {"prompt_tokens": 4096}}, "filters.prompt_tokens lets prompts of 4096 tokens in, but "
     "target.max_model_len is 2048, which leaves no room for an answer."),
    ({"filters": {"prompt_tokens": [1, 2048]}}, "filters.prompt_tokens lets prompts of 2048 tokens in"),
    ({"filters": {"prompt_tokens": [3000, None]}}, None),
    ({"filters": {"prompt_tokens": 2047}}, None),
    ({"generation": {"max_tokens": 4096}}, "generation.max_tokens is 4096, but target.max_model_len is 2048, for "
     "prompt and answer together: it can never be reached. Lower it to 2047 or less, or raise max_model_len."),
    ({"generation": {"by_category": {"math": {"max_tokens": 2049}}}}, "generation.by_category.math.max_tokens is 2049"),
    ({"generation": {"max_tokens": 2048, "by_category": {"math": {"truncated": "drop"}}}}, None),
    ({}, None),
]  # fmt: skip


@pytest.mark.parametrize(("sections", "said"), NO_ROOM)
def test_limits_that_the_context_can_never_reach(sections: Body, said: str | None, tmp_path: Path) -> None:
    path = tmp_path / "mix.yaml"
    path.write_text(json.dumps(small() | {"target": {"model": "m", "max_model_len": 2048}} | sections, indent=1))
    if said is None:
        assert load_manifest(path).generation.max_tokens == sections.get("generation", {}).get("max_tokens", 4096)
        return
    with pytest.raises(UserError) as caught:
        load_manifest(path)
    assert str(caught.value).startswith(f"{path}: {said}")
    assert str(caught.value).endswith(")")  # its line
    assert "\n" not in str(caught.value)


def test_the_manifest_in_a_build_s_lock_says_defaults_that_nobody_wrote_and_is_read() -> None:
    manifest = parse_manifest(changed("target", "max_model_len", to=512), "m")
    assert parse_manifest(manifest.model_dump_json(), "lock") == manifest


NOT_A_MANIFEST = {
    "name: [": "line 1, column 8",
    "name: a\nname: b\n": 'duplicate key "name"',
    "- a": "holds a list; a manifest is a mapping",
    "": "holds nothing",
    "words": "holds text",
    "a: 1\n---\nb: 2\n": "another document",
    "a: !!python/object:os.system 1": "could not determine a constructor",
    "name: a\0b": "special characters",
    "? [a, b]\n: c\n": "keys must be str",
    "a: &a [*a]": "Circular reference",
    'name: "\\ud800"': "surrogates not allowed",
}


@pytest.mark.parametrize("text", NOT_A_MANIFEST)
def test_what_is_no_manifest_at_all(text: str) -> None:
    assert NOT_A_MANIFEST[text] in refusal(text)


def _missing(folder: Path) -> Path:
    (folder / "balanced.yaml").write_text("x")
    return folder / "balancd.yaml"


def _not_utf8(folder: Path) -> Path:
    path = folder / "latin.yaml"
    path.write_bytes("name: café".encode("latin-1"))
    return path


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (_missing, "no such manifest file. Did you mean"),
        (lambda folder: folder, "no such manifest file: this is a folder"),
        (lambda folder: _missing(folder) / "x.yaml", "no such manifest file."),
        (_not_utf8, "cannot be read as UTF-8 text"),
    ],
    ids=["missing", "folder", "below a file", "latin-1"],
)
def test_a_file_that_cannot_be_read(make: Callable[[Path], Path], said: str, tmp_path: Path) -> None:
    path = make(tmp_path)
    with pytest.raises(UserError) as caught:
        load_manifest(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_only_a_near_name_is_suggested_for_a_file_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("p.yaml", "balanced.yml"):
        (tmp_path / name).write_text("x")
    for name, said in (("nope.yaml", ""), ("balanced.yaml", " Did you mean balanced.yml?")):
        with pytest.raises(UserError) as caught:
            load_manifest(Path(name))
        assert str(caught.value) == f"{name}: no such manifest file, seen from {tmp_path}.{said}"


def test_the_schema_is_valid_and_agrees_with_the_models() -> None:
    schema = manifest_schema()
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    validator.validate(small())
    assert not validator.is_valid(json.loads(changed("mix", "totl", to=1)))
    assert not validator.is_valid(json.loads(changed("mix", "total", to="9")))


def test_the_documented_manifest_fits_the_schema() -> None:
    demo = json.loads(load_manifest(Path(__file__).parents[2] / "manifests" / "demo.yaml").model_dump_json())
    Draft202012Validator(manifest_schema()).validate(demo)


def test_every_key_has_a_description() -> None:
    found = set(models())
    assert len(found) > 10
    for model in found:
        assert issubclass(model, Section)
        for name, field in model.model_fields.items():
            assert field.description, f"{model.__name__}.{name}"


def test_a_manifest_is_frozen() -> None:
    manifest = parse_manifest(json.dumps(small()), "m")
    with pytest.raises(ValidationError, match="frozen"):
        manifest.mix.total = 3  # type: ignore[misc]


def refusals(text: str) -> list[str]:
    with pytest.raises(UserError) as caught:
        parse_manifest(text, "mix.yaml")
    return str(caught.value).splitlines()


def test_every_unknown_key_has_a_line_of_its_own_and_the_rest_are_counted() -> None:
    text = ON_LINES.replace("total: 10", "totl: 10").replace("path: code", "licence: mit\n    path: code")
    lines = refusals(text)
    assert [line.split(" is not a known key")[0].split(": ")[-1] for line in lines] == [
        "mix.totl", "sources[0] (code).licence",
    ]  # fmt: skip
    assert lines[0].endswith("(line 3)")
    body = small()
    body["mix"] |= {f"key{i}": i for i in range(7)}
    body["dedup"] = {"exact": 3}
    lines = refusals(json.dumps(body))
    assert len(lines) == 5
    assert [line.endswith("more)") for line in lines] == [False] * 4 + [True]
    assert lines[-1].endswith("(3 more)")


@pytest.mark.parametrize(("key", "word"), [(False, "off"), (True, "on")])
def test_on_and_off_that_a_tool_made_a_boolean_of_are_told_to_be_quoted(key: bool, word: str) -> None:
    body = small() | {"generation": {"thinking": {key: {"temperature": 0.5}}}}
    said = refusal(json.dumps(body))
    assert f'turn the word {word} into {str(key).lower()}: quote it, `"{word}":`.' in said
    assert "turn the word" not in refusal(json.dumps(small() | {"generation": {"false": 1}}))
