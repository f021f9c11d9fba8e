"""Reading a manifest file, and answering what is wrong in it with one line.

YAML 1.2 (ruamel.yaml), so `on` and `off` are words and not booleans, and a key that stands twice is an
error. The line of an error says file, key, got, expected and the nearest known key. Nothing here opens a
source or a model.
"""

from __future__ import annotations

import difflib
import json
import re
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from corpus.errors import UserError, first_line
from corpus.manifest import Manifest

SHOWN_CHARS = 60


def load_manifest(path: Path) -> Manifest:
    """The manifest in a YAML file.

    Raises:
        UserError: the file is missing, is not YAML, or does not hold a manifest.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, IsADirectoryError):
        near = difflib.get_close_matches(path.name, [p.name for p in path.parent.glob("*.y*ml")], n=1)
        hint = f" Did you mean {path.parent / near[0]}?" if near else ""
        raise UserError(f"{path}: no such manifest file.{hint}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read as UTF-8 text ({first_line(error)}).") from error
    return parse_manifest(text, str(path))


def parse_manifest(text: str, where: str) -> Manifest:
    """The manifest in a YAML text; `where` names it in errors.

    Raises:
        UserError: as load_manifest.
    """
    try:
        raw = YAML(typ="safe", pure=True).load(text)
    except YAMLError as error:
        raise UserError(f"{where}: not valid YAML: {_yaml_problem(error)}.") from error
    if not isinstance(raw, dict):
        got = "nothing" if raw is None else type(raw).__name__
        raise UserError(f"{where}: holds {got}; a manifest is a mapping with name, mix, sources and target.")
    try:
        data = json.dumps(raw, ensure_ascii=False, default=str).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"{where}: holds what no manifest can ({first_line(error)}).") from error
    try:
        manifest = Manifest.model_validate_json(data)
    except ValidationError as error:
        raise UserError(_explain(error, raw, where)) from error
    _check_categories(manifest, where)
    return manifest


def manifest_schema() -> dict[str, Any]:
    """The JSON Schema of a manifest, for editors."""
    schema = Manifest.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "draftmill manifest"} | schema


def _check_categories(manifest: Manifest, where: str) -> None:
    known = {c for source in manifest.sources for c in manifest.source_categories(source)}
    for category in manifest.mix.shares:
        if category not in known:
            raise UserError(
                f"{where}: mix.shares.{category} is a category that no source gives; "
                f"sources give {', '.join(sorted(known))}.{_nearest(category, known)}"
            )
    for i, source in enumerate(manifest.sources):
        given = manifest.source_categories(source)
        if not set(given) & set(manifest.mix.shares):
            raise UserError(
                f"{where}: sources[{i}].category is {', '.join(given)}, which has no share; mix.shares has "
                f"{', '.join(sorted(manifest.mix.shares))}.{_nearest(given[0], manifest.mix.shares)}"
            )
    for category in manifest.generation.by_category:
        if category not in manifest.mix.shares:
            raise UserError(
                f"{where}: generation.by_category.{category} is a category without a share; mix.shares has "
                f"{', '.join(sorted(manifest.mix.shares))}.{_nearest(category, manifest.mix.shares)}"
            )


def _explain(error: ValidationError, raw: dict[str, Any], where: str) -> str:
    found = [(_real_path(p["loc"], raw, p["type"]), p) for p in error.errors(include_url=False)]
    # a list that lost its only element is then too short as well, and a union fails as each of its members
    problems = [(path, p) for path, p in found if not any(_is_inside(other, path) for other, _ in found)]
    path, first = min(problems, key=lambda pair: (pair[1]["type"] != "extra_forbidden", -len(pair[0])))
    here = [p for other, p in problems if other == path]
    first = next((p for p in here if p["type"] == "value_error"), first)
    key, got = _dotted(path), _shown(first.get("input"))
    kind = first["type"]
    if kind == "extra_forbidden":
        known = _known_keys(path[:-1])
        line = f"{key} is not a known key.{_nearest(str(path[-1]), known)} Known here: {', '.join(known)}."
    elif kind == "missing":
        line = f"{key} is missing; {_description(path) or 'it is needed.'}"
    elif kind == "value_error":
        message = first["msg"].removeprefix("Value error, ")
        line = message if not key or message.startswith(key) else f"{key}: {message}"
        line += "." if not line.endswith(".") else ""
    else:
        expected = dict.fromkeys(f"{p['msg'][0].lower()}{p['msg'][1:]}" for p in here)
        words = {word for p in here for word in re.findall(r"'([^']*)'", str(p.get("ctx", {}).get("expected", "")))}
        near = _nearest(first["input"], words) if isinstance(first.get("input"), str) else ""
        line = f"{key} is {got}; {' or '.join(expected)}.{near}"
    more = len({_dotted(other) for other, _ in problems}) - 1
    return f"{where}: {line}" + (f" ({more} more)" if more else "")


def _is_inside(path: tuple[int | str, ...], outer: tuple[int | str, ...]) -> bool:
    return len(path) > len(outer) and path[: len(outer)] == outer


def _real_path(loc: tuple[int | str, ...], raw: Any, kind: str) -> tuple[int | str, ...]:
    """Only those parts of pydantic's location that stand in the file: it also names union members."""
    path: list[int | str] = []
    here = raw
    names_an_absent_key = kind in ("missing", "extra_forbidden")
    for i, part in enumerate(loc):
        if isinstance(here, list) and isinstance(part, int) and part < len(here):
            here = here[part]
        elif isinstance(here, dict) and (part in here or (names_an_absent_key and i == len(loc) - 1)):
            here = here.get(part)
        else:
            continue
        path.append(part)
    return tuple(path)


def _dotted(path: tuple[int | str, ...]) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _models_at(path: tuple[int | str, ...]) -> list[type[BaseModel]]:
    here: list[type[BaseModel]] = [Manifest]
    for part in path:
        if isinstance(part, int):
            continue
        fields = [m.model_fields[part].annotation for m in here if part in m.model_fields]
        here = [model for annotation in fields for model in _models_in(annotation)] or here
    return here


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for arg in get_args(annotation) for model in _models_in(arg)]


def _known_keys(path: tuple[int | str, ...]) -> list[str]:
    return sorted({key for model in _models_at(path) for key in model.model_fields})


def _description(path: tuple[int | str, ...]) -> str | None:
    for model in _models_at(path[:-1]):
        if path[-1] in model.model_fields:
            return model.model_fields[str(path[-1])].description
    return None


def _nearest(key: str, known: Any) -> str:
    near = difflib.get_close_matches(key, sorted(known), n=1, cutoff=0.5)
    return f" Did you mean {near[0]}?" if near else ""


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 1] + "…"


def _yaml_problem(error: YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or first_line(error)
    at = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    return f"{at}{problem}".splitlines()[0]
