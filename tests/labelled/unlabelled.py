"""Texts of unpacked packages that look like prompts, for teach.py: of what kind they are is not known here.

Packages that state an open licence, whatever their files are called: strings of JSON, YAML, TOML, CSV and Python that
stand under a name such as prompt, question or task, and short pages of exercises. Nothing of a package is imported.
"""

from __future__ import annotations

import ast
import contextlib
import csv
import itertools
import json
import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import yaml

from tests.labelled.second.reading import Plain
from tests.labelled.sets import json_lines

PER_PACKAGE, PER_FILE, FILES, LINES = 60, 30, 300, 3000
SHORTEST, LONGEST, LONGEST_FILE = 12, 3000, 4_000_000
ASKS = re.compile(
    r"prompt|question|instruct|input|query|task|descr|text|problem|content|utter|message|user|ask|scenario|title|goal"
    r"|statement|example|topic|stem|body|exercise", re.I,
)  # fmt: skip
ANSWERS = re.compile(
    r"answer|solution|output|response|assistant|expected|explan|label|license|url|path|regex|completion|reference|hint"
    r"|chosen|rejected|code$|^id$", re.I,
)  # fmt: skip
PAGES = re.compile(r"task|exerc|problem|prompt|challenge|lesson|kata|question|quiz|scenario", re.I)
NOT_READ = re.compile(
    r"node_modules|package-lock|schema|dist-info|\.egg|locale|i18n|CHANGELOG|LICENSE|README|tsconfig|package\.json"
    r"|templates?/"
)
OPEN = re.compile(r"MIT|Apache|BSD|ISC\b|CC0|CC-BY-4|Unlicense|MPL|Mozilla|Zlib|0BSD|PSF|Python Software")
CLOSED = re.compile(r"GPL|\bNC\b|CC-BY-(SA|NC)|propriet|commercial|BUSL|SSPL|Elastic|PolyForm", re.I)
ASKED_TO_STAY_OUT = re.compile(r"canary|contaminat|never.{0,20}train|not.{0,30}(train on|training)", re.I)


class Unlabelled(NamedTuple):
    """A text and where it stands."""

    package: str
    version: str
    licence: str
    file: str
    text: str


def prompt_like(text: str) -> bool:
    """Whether a text has the length and the letters of a prompt."""
    text = text.strip()
    if not SHORTEST <= len(text) <= LONGEST or text.count(" ") < 2 or len(re.findall(r"[^\W\d_]{2,}", text)) < 3:
        return False
    return sum(map(str.isalpha, text)) + sum(map(str.isspace, text)) > 0.45 * len(text)


def strings(value: Any, key: str = "") -> Iterator[str]:
    """Texts of nested lists and dictionaries whose name says that somebody asks; options stand below their question."""
    if isinstance(value, str):
        if not key or (ASKS.search(key) and not ANSWERS.search(key)):
            yield value
    elif isinstance(value, list):
        for one in value[:LINES]:
            yield from strings(one, key)
    elif isinstance(value, dict) and value.get("role", "user") == "user":
        options = value.get("options") or value.get("choices")
        listed = isinstance(options, list) and all(isinstance(one, str) for one in options)
        below = "".join(f"\n{chr(65 + at)}. {one}" for at, one in enumerate(options[:6])) if listed else ""
        for name, one in value.items():
            asks = below if isinstance(one, str) and re.search("question|stem|prompt", str(name), re.I) else ""
            yield from (text + asks for text in strings(one, str(name)))


def of_python(path: Path) -> Iterator[str]:
    """Texts of a module's literals, and of arguments that are named as prompts are."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.List | ast.Dict | ast.Tuple):
            try:
                yield from strings(ast.literal_eval(node.value))
            except ValueError:
                continue
        elif isinstance(node, ast.keyword) and node.arg and isinstance(node.value, ast.Constant):
            yield from strings(node.value.value, node.arg)


def of_file(path: Path) -> Iterator[str]:
    """Texts of one file.

    Raises:
        ValueError, OSError, SyntaxError, yaml.YAMLError, csv.Error, RecursionError: it cannot be read.
    """
    match path.suffix:
        case ".json":
            yield from strings(json.loads(path.read_text()))
        case ".jsonl" | ".ndjson":
            for _, row in itertools.islice(json_lines(path), LINES):
                yield from strings(row)
        case ".yaml" | ".yml":
            yield from strings(Plain(path.read_text()).get_single_data())
        case ".toml":
            yield from strings(tomllib.loads(path.read_text()))
        case ".csv":
            for row in itertools.islice(csv.DictReader(path.read_text().splitlines()), LINES):
                yield from strings({name: one for name, one in row.items() if isinstance(name, str)})
        case ".md" | ".txt":
            text = path.read_text()
            if PAGES.search(str(path)) and len(text) < LONGEST:
                yield text
        case ".py":
            yield from of_python(path)


def about(package: Path) -> tuple[str, str]:
    """(version, licence) of an unpacked wheel or tarball; no licence where none is stated, or none that is open."""
    for file in sorted(package.glob("*.dist-info/METADATA")):
        head = file.read_text(errors="replace").split("\n\n")[0]
        said = re.findall(r"^(?:License(?:-Expression)?|Classifier: License ::.*?):+ *(.{1,80})$", head, re.M)
        version = re.search(r"^Version: (.+)$", head, re.M)
        stays_out = ASKED_TO_STAY_OUT.search(file.read_text(errors="replace"))
        return version[1] if version else "", "" if stays_out else _open(said)
    if (file := package / "package/package.json").is_file():
        stated = json.loads(file.read_text())
        return str(stated.get("version", "")), _open([str(stated.get("license", ""))])
    return "", ""


def _open(said: list[str]) -> str:
    text = "; ".join(dict.fromkeys(said))
    found = OPEN.search(text)
    return found[0] if found and not CLOSED.search(text) else ""


def texts_of(package: Path, random: Random, seen: set[str]) -> Iterator[tuple[str, str]]:
    """(file, text) of a package, none that was seen."""
    files = sorted(file for file in package.rglob("*") if file.is_file() and not NOT_READ.search(str(file)))
    for file in random.sample(files, len(files))[:FILES]:
        if file.stat().st_size > LONGEST_FILE:
            continue
        texts: list[str] = []
        with contextlib.suppress(ValueError, OSError, SyntaxError, yaml.YAMLError, csv.Error, RecursionError):
            texts += itertools.islice(filter(prompt_like, of_file(file)), LINES)
        left = PER_FILE
        for text in random.sample(texts, len(texts)):
            key = re.sub(r"\W+", " ", text.lower())[:200]
            if left and key not in seen:
                left -= 1
                seen.add(key)
                yield file.relative_to(package).as_posix(), text.strip()


def unlabelled(folder: Path, left_out: Iterable[str]) -> Iterator[Unlabelled]:
    """At most PER_PACKAGE texts of each package in a folder, seeded; none of the packages that are left out."""
    folders = [one for one in folder.iterdir() if one.name != "npm"] + [*(folder / "npm").iterdir()]
    seen: set[str] = set()
    for package in sorted(one for one in folders if one.is_dir()):
        name = package.relative_to(folder).as_posix()
        version, licence = about(package)
        if not licence or name in left_out:
            continue
        random = Random(name)
        found = list(itertools.islice(texts_of(package, random, seen), 400))
        for file, text in random.sample(found, min(len(found), PER_PACKAGE)):
            yield Unlabelled(name, version, licence, file, text)
