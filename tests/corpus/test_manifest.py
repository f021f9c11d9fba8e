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
    (("sources", 0, "limt"), "sources[0].limt", "limit"),
    (("sources", 1, "category", "colum"), "sources[1].category.colum", "column"),
    (("sources", 0, "format"), "sources[0].format.feilds", "fields"),
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
    assert "decontaminate.against[0].splt is not a known key. Did you mean split?" in line


WRONG_VALUES = [
    (("mix", "total"), "9", 'mix.total is "9"', "integer"),
    (("mix", "total"), 0, "mix.total is 0", "greater than or equal to 1"),
    (("mix", "total"), 1.5, "mix.total is 1.5", "integer"),
    (("mix", "total"), True, "mix.total is true", "integer"),
    (("mix", "total"), 10**40, "mix.total is 1000", "less than or equal"),
    (("seed",), 2**63, "seed is 9223372036854775808", "less than"),
    (("mix", "shares"), {}, "mix.shares is {}", "at least 1"),
    (("mix", "shares"), [1], "mix.shares is [1]", "object"),
    (("mix", "shares", "coding"), "much", 'mix.shares.coding is "much"', "number"),
    (("mix", "shares", "coding"), 0, "mix.shares.coding is 0", "greater than 0"),
    (("mix", "shares", "two words"), 1, "mix.shares.two words", "pattern"),
    (("mix", "shortage"), "fial", 'mix.shortage is "fial"', "Did you mean fail?"),
    (("mix", "holdout"), 1, "mix.holdout is 1", "less than 1"),
    (("mix",), "x", 'mix is "x"', "object"),
    (("sources",), [], "sources is []", "at least 1"),
    (("sources",), {"a": 1}, 'sources is {"a": 1}', "array"),
    (("sources", 0), "x", 'sources[0] is "x"', "object"),
    (("sources", 0, "limit"), -1, "sources[0].limit is -1", "greater than or equal to 1"),
    (("sources", 0, "weight"), 0, "sources[0].weight is 0", "greater than 0"),
    (("sources", 0, "category"), 3, "sources[0].category is 3", "string or input should be an object"),
    (("sources", 0, "format"), "shargpt", 'sources[0].format is "shargpt"', "Did you mean sharegpt?"),
    (("sources", 0, "format"), {"fields": {"promt": "q"}}, "sources[0].format.fields.promt", "Did you mean prompt?"),
    (("sources", 0, "format"), {"fields": {"prompt": 3}}, "sources[0].format.fields.prompt is 3", "string"),
    (("sources", 0, "format"), {"fields": {"id": "x"}}, "sources[0].format: fields names neither", "messages"),
    (("sources", 1, "category", "map"), {"a": 3}, "sources[1].category.map.a is 3", "string"),
    (("filters",), None, "filters is null", "object"),
    (("filters", "turns"), [9, 3], "filters.turns: the minimum 9 is above the maximum 3", ""),
    (("filters", "turns"), [1, 2, 3], "filters.turns is [1, 2, 3]", "at most 2"),
    (("filters", "turns"), "x", 'filters.turns is "x"', "integer or input should be a valid array"),
    (("dedup", "near"), 1, "dedup.near is 1", "less than 1"),
    (("decontaminate", "against"), [], "decontaminate.against is []", "at least 1"),
    (("engine", "max_num_seqs"), "lots", 'engine.max_num_seqs is "lots"', "'auto'"),
    (("extraction", "layers"), ["a"], 'extraction.layers[0] is "a"', "integer"),
    (("training", "gamma"), 0, "training.gamma is 0", "greater than 0"),
]


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


@pytest.mark.parametrize("key", ["name", "mix", "sources", "target"])
def test_a_missing_section_says_what_it_is_for(key: str) -> None:
    description = Manifest.model_fields[key].description
    assert refusal(without(key)) == f"mix.yaml: {key} is missing; {description}"


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
    assert "sources[0].category is coding, which has no share; mix.shares has math" in only


def test_an_override_of_a_category_without_a_share() -> None:
    line = refusal(changed("generation", "by_category", to={"codin": {"max_tokens": 4}}))
    assert "generation.by_category.codin is a category without a share" in line
    assert "Did you mean coding?" in line


def test_two_sources_of_one_name() -> None:
    line = refusal(changed("sources", 1, "name", to="code"))
    assert "sources[1].name is code, as is sources[0].name" in line


@pytest.mark.parametrize("extra", [{"dataset": "a/b"}, {"path": None}], ids=["both", "neither"])
def test_a_source_has_one_origin(extra: Body) -> None:
    body = small()
    body["sources"][0] |= extra
    assert "sources[0]: needs exactly one of dataset and path" in refusal(json.dumps(body))


NOT_A_MANIFEST = {
    "name: [": "line 1, column 8",
    "name: a\nname: b\n": 'duplicate key "name"',
    "- a": "holds list",
    "": "holds nothing",
    "words": "holds str",
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
        (lambda folder: folder, "no such manifest file"),
        (_not_utf8, "cannot be read as UTF-8 text"),
    ],
    ids=["missing", "folder", "latin-1"],
)
def test_a_file_that_cannot_be_read(make: Callable[[Path], Path], said: str, tmp_path: Path) -> None:
    path = make(tmp_path)
    with pytest.raises(UserError) as caught:
        load_manifest(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


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
