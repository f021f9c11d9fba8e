"""What is wrong in a manifest, in one line: file, key, got, expected, next step, and the line of the file.

Told from pydantic's errors by their types, never by their words. Of several mistakes the nearest to a person's typing
is told (an unknown key first, then the deepest), and the others are counted; unknown keys have a line each.
"""

from __future__ import annotations

import json
import re
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from ruamel.yaml import YAML
from ruamel.yaml.nodes import MappingNode, SequenceNode

from corpus.errors import UserError
from corpus.manifest import Manifest
from corpus.suggestions import nearest

SHOWN_CHARS = 60
NOUNS = {
    "string_type": "text",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
}
BOUNDS = {
    "greater_than": ("be above {}", "gt"),
    "greater_than_equal": ("be at least {}", "ge"),
    "less_than": ("be below {}", "lt"),
    "less_than_equal": ("be at most {}", "le"),
    "too_short": ("hold at least {}", "min_length"),
    "too_long": ("hold at most {}", "max_length"),
    "string_too_short": ("have at least {} character", "min_length"),
    "string_too_long": ("have at most {} characters", "max_length"),
}
UNKNOWN = "extra_forbidden"
SHOWN_UNKNOWN = 5
LISTS = {"tuple_type", "list_type"}
NAME = "a name of letters, digits, `.`, `_` and `-`, a letter or digit first,"
TRUE, FALSE = ("yes", "on", "true", "y", "1"), ("no", "off", "false", "n", "0")
WRITE = " Write "
LABEL = re.compile(r"[\w./@:*-]{1,60}", re.ASCII)
PLAIN = re.compile(r"(?!(?:true|false|null)$)[A-Za-z][\w./-]*")

Keys = tuple[int | str, ...]


class ManifestText:
    """A manifest as it was written, for lines that say where in it something stands."""

    def __init__(self, text: str, raw: dict[str, Any], where: str) -> None:
        self.text = text
        self.raw = raw
        self.where = where

    def error(self, path: Keys, said: str, more: int = 0) -> UserError:
        """One line about the key at `path`: `said` follows its name."""
        return self._one_line(path, f"{self.dotted(path)}{said}", more)

    def _one_line(self, path: Keys, said: str, more: int) -> UserError:
        at = self._line(path)
        notes = [f"line {at}"] if at else []
        notes += [f"{more} more"] if more else []
        return UserError(f"{self.where}: {said}" + (f" ({'; '.join(notes)})" if notes else ""))

    def explained(self, error: ValidationError) -> UserError:
        """The one line for what the models refuse."""
        found = [(self._path(p["loc"], p["type"]), p) for p in error.errors(include_url=False)]
        # a list that lost its only element is then too short as well, and a union fails as each of its members
        problems = [(path, p) for path, p in found if not any(_is_inside(other, path) for other, _ in found)]
        path, first = min(problems, key=lambda pair: (pair[1]["type"] != "extra_forbidden", -len(pair[0])))
        here = [p for other, p in problems if other == path]
        first = next((p for p in here if p["type"] == "value_error"), first)
        unknown = self._unknown(problems) if first["type"] == UNKNOWN else []
        more = {other for other, p in problems if not _is_told_by(first, p)} - {path}
        if len(unknown) > 1:
            told = {other for other, p in problems if any(_is_told_by(one, p) for _, one in unknown)}
            left = len(more - told - {other for other, _ in unknown})
            return UserError("\n".join(self._unknown_lines(unknown, left)))
        if first["type"] == "value_error":
            message = first["msg"].removeprefix("Value error, ")
            message += "" if message.endswith((".", "?")) else "."
            if not path or message.startswith(f"{self.dotted(path)}."):  # it names the key itself
                parts = re.findall(r"[^.\[\]]+", message.split(" ", maxsplit=1)[0])
                named = tuple(int(part) if part.isdecimal() else part for part in parts)
                return self._one_line(named, message, len(more))
            return self.error(path, f" {message}" if message.startswith("is ") else f": {message}", len(more))
        return self.error(path, _said(path, first, here), len(more))

    def _unknown(self, problems: list[tuple[Keys, Any]]) -> list[tuple[Keys, Any]]:
        """Keys that are not known, as they stand in the file."""
        found = [(path, problem) for path, problem in problems if problem["type"] == UNKNOWN]
        return sorted(found, key=lambda pair: (self._line(pair[0]) or 0, str(pair[0])))

    def _unknown_lines(self, unknown: list[tuple[Keys, Any]], left: int) -> list[str]:
        """A line for each of the first few; the last one counts what else is wrong."""
        shown = unknown[:SHOWN_UNKNOWN]
        left += len(unknown) - len(shown)
        return [
            str(self.error(path, _said(path, problem, []), left if path == shown[-1][0] else 0))
            for path, problem in shown
        ]

    def dotted(self, path: Keys) -> str:
        """A key's path; what stands in a list is also named by its name, or by where it comes from."""
        text = ""
        here: Any = self.raw
        for i, part in enumerate(path):
            inside: Any = (
                here[int(part)] if isinstance(here, list) else here.get(part) if isinstance(here, dict) else None
            )
            text += f"[{part}]" if isinstance(part, int) else f".{_key(part)}" if text else _key(part)
            if isinstance(part, int) and isinstance(inside, dict) and path[i + 1 :] != ("name",):
                labels = (inside.get(key) for key in ("name", "dataset", "path"))
                label = next((one for one in labels if isinstance(one, str) and LABEL.fullmatch(one)), None)
                text += f" ({label})" if label else ""
            here = inside
        return text

    def _path(self, loc: Keys, kind: str) -> Keys:
        """Only those parts of pydantic's location that stand in the file: it also names union members."""
        path: list[int | str] = []
        here: Any = self.raw
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

    def _line(self, path: Keys) -> int | None:
        """1-based line of a key, or of the nearest key above that is there; None for a file of one line."""
        if "\n" not in self.text.strip():
            return None
        node: Any = YAML(typ="safe", pure=True).compose(self.text)
        line: int | None = None
        for part in path:
            if isinstance(node, MappingNode):
                pairs = [(key, value) for key, value in node.value if key.value == part]
                if not pairs:
                    break
                line, node = pairs[0][0].start_mark.line, pairs[0][1]
            elif isinstance(node, SequenceNode) and isinstance(part, int):
                if part >= len(node.value):
                    break
                node = node.value[part]
                line = node.start_mark.line
            else:
                break
        return None if line is None else line + 1


def _said(path: Keys, first: Any, here: list[Any]) -> str:
    """What follows the key's name: what it is, what it may be, and the next step."""
    kind, got = first["type"], first.get("input")
    if kind == "extra_forbidden" or (kind == "literal_error" and first["loc"][-1] == "[key]"):
        known = _known_keys(path[:-1]) if kind == "extra_forbidden" else sorted(_words(first))
        return f" is not a known key.{_switched(path, known) or nearest(str(path[-1]), known)}" + (
            f" Known here: {', '.join(known)}."
        )
    if kind == "missing":
        return f" is missing{_meaning(path)}. Add `{path[-1]}:`{_such_as(path)}."
    step = _next_step(path, here, got)
    return f" is {_shown(got)}; {_expected(path, here, bare=step.startswith(WRITE))}.{step}"


def _switched(path: Keys, known: list[str]) -> str:
    """What to do where a tool of YAML 1.1 has read the words on and off as true and false."""
    key = str(path[-1]).lower()
    word = {"true": "on", "false": "off"}.get(key)
    return f' Some YAML tools turn the word {word} into {key}: quote it, `"{word}":`.' if word in known else ""


def _expected(path: Keys, here: list[Any], bare: bool) -> str:
    """What may stand at a key; `bare`: without an example of its form."""
    nouns: dict[str, None] = {}
    bounds: dict[str, None] = {}
    for problem in here:
        kind = problem["type"]
        if kind in BOUNDS:
            phrase, key = BOUNDS[kind]
            bound = problem["ctx"][key]
            bounds[phrase.format(f"{bound:g}" if isinstance(bound, float) else bound)] = None
        elif kind == "literal_error":
            words = _words(problem)
            nouns[f"one of {', '.join(words)}" if len(words) > 1 else words[0]] = None
        elif kind == "string_pattern_mismatch":
            nouns[NAME] = None
        elif kind in NOUNS:
            nouns[NOUNS[kind]] = None
        else:
            message = str(problem["msg"])
            return message[:1].lower() + message[1:]
    said = " or ".join(nouns)
    limits = f"it must {' and '.join(bounds)}"
    said = f"{limits}, or {said}" if bounds and said else limits if bounds else f"{said} is expected"
    has_form = nouns.keys() & {"a list", "a mapping"} or any(problem["type"] == "too_short" for problem in here)
    return said + (_such_as(path) if has_form and not bare else "")


def _next_step(path: Keys, here: list[Any], got: Any) -> str:
    kinds = {problem["type"] for problem in here}
    if got is None:
        fields = _fields_at(path)
        return " Remove the key to take the default." if fields and not fields[0].is_required() else ""
    if isinstance(got, str):
        step = (
            None
            if kinds <= LISTS and any(_models_in(field.annotation) for field in _fields_at(path))
            else _meant(kinds, got)
        )
        if step is None:
            return nearest(
                got, {word for problem in here if problem["type"] == "literal_error" for word in _words(problem)}
            )
        return f"{WRITE}{step}."
    if kinds & {"int_type", "int_from_float"} and isinstance(got, float) and got.is_integer():
        return f"{WRITE}{got:.0f}."
    if kinds == {"string_type"} and isinstance(got, int | float):
        return " Put it in quotes."
    if kinds & LISTS and not kinds & BOUNDS.keys() and isinstance(got, int) and not isinstance(got, bool):
        return f"{WRITE}[{got}]."
    return ""


def _meant(kinds: set[str], got: str) -> str | None:
    """How a text would be written in the kind that is expected."""
    if kinds <= LISTS:
        return f"[{_flow(got)}]"
    if "bool_type" in kinds:
        return "true" if got.casefold() in TRUE else "false" if got.casefold() in FALSE else None
    if "string_pattern_mismatch" in kinds:
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", got).strip("-._")
        return name or None
    if kinds & {"int_type", "float_type"}:
        bare = got.replace(",", "").replace("_", "").strip()
        return bare if re.fullmatch(r"-?\d+" if "int_type" in kinds else r"-?\d+(\.\d+)?", bare, re.ASCII) else None
    return None


def _such_as(path: Keys) -> str:
    """An example of what may stand at a key, where a form helps."""
    example = _example(path)
    return f", such as {example}" if example else ""


def _example(path: Keys) -> str | None:
    for field in _fields_at(path):
        if field.examples:
            return _flow(field.examples[0])
        if not _models_in(field.annotation):
            return None
    return next((_form(model) for model in _models_at(path)), None)


def _form(model: type[BaseModel]) -> str:
    """The keys that a section needs, or else one that may be set."""
    needed = [f"{key}: …" for key, field in model.model_fields.items() if field.is_required()]
    if needed:
        return f"{{{', '.join(needed)}}}"
    plain = [(k, f.default) for k, f in model.model_fields.items() if isinstance(f.default, str | int | float)]
    plain += [(k, f.examples[0]) for k, f in model.model_fields.items() if f.examples]
    return _flow(dict(plain[:1])) if plain else f"{{{next(iter(model.model_fields))}: …}}"


def _flow(value: Any) -> str:
    """A value in YAML's short form."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_flow(one)}' for key, one in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_flow, value))}]"
    return value if isinstance(value, str) and PLAIN.fullmatch(value) else _shown(value)


def _meaning(path: Keys) -> str:
    """What a key is for, in a few words: the first sentence of its description."""
    for field in _fields_at(path):
        text = (field.description or "").split(". ")[0].removesuffix(".")
        return f": {text[0].lower() if text[1].islower() or text[1] == ' ' else text[0]}{text[1:]}"
    return ""


def _key(part: str) -> str:
    return part if part.isprintable() and len(part) <= SHOWN_CHARS else _shown(part)


def _is_told_by(first: Any, other: Any) -> bool:
    """True if a missing key is missing because it is the unknown one, misspelt."""
    if (first["type"], other["type"], first["loc"][:-1]) != ("extra_forbidden", "missing", other["loc"][:-1]):
        return False
    return bool(nearest(str(first["loc"][-1]), [str(other["loc"][-1])]))


def _is_inside(path: Keys, outer: Keys) -> bool:
    return len(path) > len(outer) and path[: len(outer)] == outer


def _models_at(path: Keys) -> list[type[BaseModel]]:
    here: list[type[BaseModel]] = [Manifest]
    for part in path:
        if isinstance(part, int):
            continue
        fields = [m.model_fields[part].annotation for m in here if part in m.model_fields]
        here = [model for annotation in fields for model in _models_in(annotation)] or here
    return here


def _fields_at(path: Keys) -> list[FieldInfo]:
    """What a key is declared as; empty for an item of a list and a key of a person's own."""
    if not path or isinstance(path[-1], int):
        return []
    return [model.model_fields[path[-1]] for model in _models_at(path[:-1]) if path[-1] in model.model_fields]


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for arg in get_args(annotation) for model in _models_in(arg)]


def _known_keys(path: Keys) -> list[str]:
    return sorted({key for model in _models_at(path) for key in model.model_fields})


def _words(problem: Any) -> list[str]:
    return re.findall(r"'([^']*)'", str(problem["ctx"]["expected"]))


def _shown(value: Any) -> str:
    text = "empty (null)" if value is None else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 1] + "…"
