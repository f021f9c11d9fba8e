"""Reading a manifest file, and answering what is wrong in it with one line.

YAML 1.2 (ruamel.yaml), so `on` and `off` are words and not booleans, and a key that stands twice is an
error (manifest_errors has the words). Nothing here opens a source or a model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from corpus.errors import UserError, first_line
from corpus.manifest import CategoryByColumn, Manifest
from corpus.manifest_errors import ManifestText
from corpus.suggestions import nearest, nearest_file

KINDS = {"list": "a list", "str": "text", "int": "a number", "float": "a number", "bool": "true or false"}
NEAR_SHARE = 0.8
"""A label that is this near to a share's name, and has none, is taken for a slip."""


def load_manifest(path: Path) -> Manifest:
    """The manifest in a YAML file.

    Raises:
        UserError: the file is missing, is not YAML, or does not hold a manifest.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        near = nearest_file(path.name, [p.name for p in path.parent.glob("*.y*ml")])
        hint = f" Did you mean {path.parent / near}?" if near else ""
        looked = "" if path.is_absolute() else f", seen from {Path.cwd()}"
        raise UserError(f"{path}: no such manifest file{looked}.{hint}") from None
    except IsADirectoryError:
        raise UserError(f"{path}: no such manifest file: this is a folder. Name a YAML file.") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: cannot be read as UTF-8 text ({first_line(error)}).") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}).") from error
    manifest = parse_manifest(text, str(path))
    _check_room(manifest, ManifestText(text, {}, str(path)))
    return manifest


def parse_manifest(text: str, where: str) -> Manifest:
    """The manifest in a YAML text; `where` names it in errors.

    Raises:
        UserError: as load_manifest.
    """
    try:
        raw = YAML(typ="safe", pure=True).load(text)
    except YAMLError as error:
        raise UserError(f"{where}: not valid YAML: {_yaml_problem(error)}.") from error
    return _valid(raw, text, where)


def locked_manifest(body: Any, where: str) -> Manifest:
    """The manifest that a build's lock holds, which is JSON and was read.

    Raises:
        UserError: it is none.
    """
    return _valid(body, json.dumps(body), where)


def _valid(raw: Any, text: str, where: str) -> Manifest:
    if not isinstance(raw, dict):
        got = "nothing" if raw is None else KINDS.get(type(raw).__name__, type(raw).__name__)
        raise UserError(f"{where}: holds {got}; a manifest is a mapping with name, mix, sources and target.")
    try:
        data = json.dumps(raw, ensure_ascii=False, default=str).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"{where}: holds what no manifest can ({first_line(error)}).") from error
    written = ManifestText(text, raw, where)
    try:
        manifest = Manifest.model_validate_json(data)
    except ValidationError as error:
        raise written.explained(error) from error
    _check_categories(manifest, written)
    return manifest


def manifest_schema() -> dict[str, Any]:
    """The JSON Schema of a manifest, for editors."""
    schema = Manifest.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "draftmill manifest"} | schema


def _check_categories(manifest: Manifest, written: ManifestText) -> None:
    shares = manifest.mix.shares
    known = {c for source in manifest.sources for c in manifest.source_categories(source)}
    has = f"mix.shares has {', '.join(sorted(shares))}"
    for i, source in enumerate(manifest.sources):
        if isinstance(source.category, CategoryByColumn):
            labels = [("map", label, category) for label, category in source.category.map.items()]
            labels += [("default", "", source.category.default)] if source.category.default else []
            for key, label, category in labels:
                near = nearest(category, shares, NEAR_SHARE)
                if category not in shares and near:
                    path: tuple[int | str, ...] = ("sources", i, "category", key, *([label] if key == "map" else []))
                    how = "Rows that shall be left out take a name unlike every share's, such as none."
                    raise written.error(path, f" is {category}, which has no share; {has}.{near} {how}")
    for category in shares:
        if category not in known:
            gives = f"sources give {', '.join(sorted(known))}"
            said = f" is a category that no source gives; {gives}.{nearest(category, known)}"
            raise written.error(("mix", "shares", category), said)
    for i, source in enumerate(manifest.sources):
        given = manifest.source_categories(source)
        if not set(given) & set(shares):
            said = f" is {', '.join(given)}, which has no share; {has}.{nearest(given[0], shares)}"
            raise written.error(("sources", i, "category"), said)
    for section, named in (
        (("generation", "by_category"), manifest.generation.by_category),
        (("mix", "mean_response_tokens"), manifest.mix.mean_response_tokens),
    ):
        for category in named:
            if category not in shares:
                said = f" is a category without a share; {has}.{nearest(category, shares)}"
                raise written.error((*section, category), said)


def _check_room(manifest: Manifest, written: ManifestText) -> None:
    """Limits that the context can never reach. Asked of files alone: a build's lock names defaults too."""
    room = manifest.target.max_model_len
    is_room = f"target.max_model_len is {room}"
    _, most = manifest.filters.bounds("prompt_tokens")
    if most is not None and most >= room:
        said = f" lets prompts of {most} tokens in, but {is_room}, which leaves no room for an answer."
        raise written.error(
            ("filters", "prompt_tokens"), f"{said} Lower it to what leaves room, or raise max_model_len."
        )
    asked: list[tuple[tuple[str, ...], int | None]] = []
    if "max_tokens" in manifest.generation.model_fields_set:
        asked.append((("generation", "max_tokens"), manifest.generation.max_tokens))
    for category, own in manifest.generation.by_category.items():
        asked.append((("generation", "by_category", category, "max_tokens"), own.max_tokens))
    for path, tokens in asked:
        if tokens is not None and tokens > room:
            said = f" is {tokens}, but {is_room}, for prompt and answer together: it can never be reached."
            raise written.error(path, f"{said} Lower it to {room - 1} or less, or raise max_model_len.")


def _yaml_problem(error: YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or first_line(error)
    at = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    return f"{at}{problem}".splitlines()[0]
