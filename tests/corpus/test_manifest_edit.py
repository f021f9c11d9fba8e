"""A key is set, and every other byte stays: whatever style, comments and line ends a manifest has."""

from __future__ import annotations

import difflib
import json
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from corpus.errors import UserError
from corpus.manifest_edit import edit_manifest, with_values

DEMO = Path(__file__).resolve().parents[2] / "manifests" / "demo.yaml"


def parsed(text: str) -> dict[str, object]:
    loaded: dict[str, object] = YAML(typ="safe", pure=True).load(text)
    return loaded


CASES = {
    "flow": ("a: 1\nengine: {max_num_seqs: 16}  # ours\nb: 2\n", "a: 1\nengine: {max_num_seqs: 32}  # ours\nb: 2\n"),
    "block": (
        "engine:  # ours\n  seed: 3\n  max_num_seqs: 16   # measured\nb: 2\n",
        "engine:  # ours\n  seed: 3\n  max_num_seqs: 32   # measured\nb: 2\n",
    ),
    "missing key, flow": ("engine: {seed: 3}\n", "engine: {max_num_seqs: 32, seed: 3}\n"),
    "missing key, block": ("engine:\n    seed: 3\n# end\n", "engine:\n    max_num_seqs: 32\n    seed: 3\n# end\n"),
    "anchored section": ("engine: &e\n  seed: 3\n", "engine: &e\n  max_num_seqs: 32\n  seed: 3\n"),
    "empty": ("engine:\nb: 2\n", "engine: {max_num_seqs: 32}\nb: 2\n"),
    "empty, with a comment": ("engine: # none\n# more\nb: 2\n", "engine: {max_num_seqs: 32} # none\n# more\nb: 2\n"),
    "null": ("engine: null # none\nb: 2\n", "engine: {max_num_seqs: 32} # none\nb: 2\n"),
    "empty flow": ("engine: {}\n", "engine: {max_num_seqs: 32}\n"),
    "no section": ("a: 1 # one\n# end\n", "a: 1 # one\n# end\nengine: {max_num_seqs: 32}\n"),
    "no newline at the end": ("a: 1", "a: 1\nengine: {max_num_seqs: 32}\n"),
    "windows": ("a: 1\r\nengine:\r\n  seed: 3\r\n", "a: 1\r\nengine:\r\n  max_num_seqs: 32\r\n  seed: 3\r\n"),
    "windows, no section": ("a: 1\r\n", "a: 1\r\nengine: {max_num_seqs: 32}\r\n"),
    "json": ('{"a": 1, "engine": {"seed": 3}}', '{"a": 1, "engine": {"max_num_seqs": 32, "seed": 3}}'),
    "json, no section": ('{\n "a": 1\n}\n', '{\n "a": 1, "engine": {"max_num_seqs": 32}\n}\n'),
    "json, empty": ('{"engine": {}}', '{"engine": {"max_num_seqs": 32}}'),
    "byte order mark": ("\ufeffengine: {max_num_seqs: 1}\n", "\ufeffengine: {max_num_seqs: 32}\n"),
    "anchor kept in use elsewhere": (
        "a: &n 16\nengine: {seed: *n, max_num_seqs: 4}\n",
        "a: &n 16\nengine: {seed: *n, max_num_seqs: 32}\n",
    ),
    "merged": (
        "x: &x {max_num_seqs: 4}\nengine:\n  <<: *x\n  seed: 3\n",
        "x: &x {max_num_seqs: 4}\nengine:\n  max_num_seqs: 32\n  <<: *x\n  seed: 3\n",
    ),
    "a nested key of the same name": (
        "engine:\n  extra: {max_num_seqs: 1}\n  max_num_seqs: 1\n",
        "engine:\n  extra: {max_num_seqs: 1}\n  max_num_seqs: 32\n",
    ),
    "wide characters before": ("a: 日本 😀\nengine: {max_num_seqs: 1}\n", "a: 日本 😀\nengine: {max_num_seqs: 32}\n"),
    "document start": ("---\nengine: {max_num_seqs: 1}\n", "---\nengine: {max_num_seqs: 32}\n"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_key_is_set_and_the_rest_stays(name: str) -> None:
    before, after = CASES[name]
    assert with_values(before, "engine", {"max_num_seqs": 32}, "m.yaml") == after


REFUSED = {
    "an alias for the section": "x: &x {seed: 3}\nengine: *x\n",
    "an alias for the value": "x: &n 16\nengine: {max_num_seqs: *n}\n",
    "an anchor that others use": "engine: {max_num_seqs: &n 16}\nx: *n\n",
    "a section that others use": "engine: &e {max_num_seqs: 16}\nx: *e\n",
    "two documents": "engine: {max_num_seqs: 16}\n---\na: 1\n",
    "an end before the end": "a: 1\n...\n",
    "no mapping": "- engine\n",
    "nothing": "",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_set_alone_is_refused_and_told_what_to_write(name: str) -> None:
    with pytest.raises(UserError, match=r"m\.yaml: .*engine: \{max_num_seqs: 32\}"):
        with_values(REFUSED[name], "engine", {"max_num_seqs": 32}, "m.yaml")


def test_several_keys_at_once_and_words_that_are_no_words() -> None:
    text = "engine: {max_num_seqs: 16, kv_cache_dtype: auto}\n"
    values = {"max_num_batched_tokens": 8192, "max_num_seqs": 32, "kv_cache_dtype": "fp8"}
    edited = with_values(text, "engine", values, "m.yaml")
    assert edited == "engine: {max_num_batched_tokens: 8192, max_num_seqs: 32, kv_cache_dtype: fp8}\n"
    assert with_values("engine: {}\n", "engine", {"a": "true", "b": None, "c": "x: y"}, "m.yaml") == (
        'engine: {a: "true", b: null, c: "x: y"}\n'
    )
    assert json.loads(with_values('{"engine": {"a": "b"}}', "engine", {"a": "c"}, "m.json")) == {"engine": {"a": "c"}}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("mix: {total: 9, shares: {a: 1, b: 2}}  # mine\n", "mix: {total: 9, shares: {a: 66.6, b: 2}}  # mine\n"),
        ("mix:\n  shares:  # of us\n    a: 1  # less\n    b: 2\nx: 1\n",
         "mix:\n  shares:  # of us\n    a: 66.6  # less\n    b: 2\nx: 1\n"),
        ("shares: {a: 3}\nmix:\n  shares: {a: 1}\n", "shares: {a: 3}\nmix:\n  shares: {a: 66.6}\n"),
        ('{"mix": {"shares": {"a": 1}}}', '{"mix": {"shares": {"a": 66.6}}}'),
    ],
)  # fmt: skip
def test_a_section_in_a_section_is_set_likewise(before: str, after: str) -> None:
    assert with_values(before, "mix.shares", {"a": 66.6}, "m.yaml") == after


@pytest.mark.parametrize(
    "text",
    ["a: 1\n", "mix: {total: 9}\n", "x: &x {shares: {a: 1}}\nmix: *x\n", "mix:\n", "mix: 3\n",
     "x: &x {shares: {a: 1}}\nmix:\n  <<: *x\n"],
)  # fmt: skip
def test_a_section_that_does_not_stand_in_the_other_is_not_made(text: str) -> None:
    with pytest.raises(UserError, match=r"m\.yaml: .*mix\.shares: \{a: 66\.6\}"):
        with_values(text, "mix.shares", {"a": 66.6}, "m.yaml")


names = st.sampled_from(["seed", "max_num_seqs", "kv_cache_dtype", "extra"])
scalars = st.one_of(st.integers(0, 9999), st.sampled_from(["auto", "fp8", "true", "1", "a b", "on", "~"]), st.none())


@given(
    before=st.dictionaries(st.sampled_from(["a", "b", "mix"]), st.dictionaries(names, scalars), min_size=1),
    engine=st.one_of(st.none(), st.dictionaries(names, scalars)),
    values=st.dictionaries(names, scalars, min_size=1),
    flow=st.booleans(),
    windows=st.booleans(),
)
def test_what_is_parsed_differs_in_these_keys_alone(
    before: dict[str, object], engine: dict[str, object] | None, values: dict[str, object], flow: bool, windows: bool
) -> None:
    body = before if engine is None else before | {"engine": engine}
    text = dumped(body, flow)
    text = text.replace("\n", "\r\n") if windows else text
    edited = with_values(text, "engine", values, "m.yaml")  # type: ignore[arg-type]
    assert parsed(edited) == body | {"engine": (engine or {}) | values}
    assert "\n" not in edited.replace("\r\n", "") or not windows
    assert with_values(edited, "engine", values, "m.yaml") == edited  # type: ignore[arg-type]


def dumped(body: object, flow: bool) -> str:
    from io import StringIO

    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = flow
    stream = StringIO()
    yaml.dump(body, stream)
    return stream.getvalue()


def test_the_demo_keeps_all_but_one_word() -> None:
    before = DEMO.read_text()
    after = with_values(before, "engine", {"max_num_seqs": 32}, "demo.yaml")
    changed = [line for line in difflib.ndiff(before.splitlines(), after.splitlines()) if line[0] in "+-"]
    assert changed == ["- engine: {max_num_seqs: 16}", "+ engine: {max_num_seqs: 32}"]


def test_a_file_keeps_its_mode_and_a_link_stays_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real.yaml", tmp_path / "link.yaml"
    real.write_bytes(b"a: 1\r\n")
    real.chmod(0o640)
    link.symlink_to(real)
    edit_manifest(link, "engine", {"seed": 4})
    assert link.is_symlink()
    assert real.read_bytes() == b"a: 1\r\nengine: {seed: 4}\r\n"
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.yaml", "real.yaml"]


def test_a_refused_edit_leaves_the_file(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(REFUSED["an alias for the section"])
    with pytest.raises(UserError):
        edit_manifest(path, "engine", {"seed": 4})
    assert path.read_text() == REFUSED["an alias for the section"]
    with pytest.raises(UserError, match="cannot be read"):
        edit_manifest(tmp_path / "none.yaml", "engine", {"seed": 4})
