"""What the second set's modules read packages with. Nothing of a package is imported or run: its Python is parsed."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.labelled.sets import Row, json_lines

Numbered = tuple[int, list[Row], list[Row] | None]
"""(row in its file, messages, tools)"""
Read = Callable[[Path], Iterator[Numbered]]


@dataclass(frozen=True)
class Call:
    """A call in parsed Python, with its arguments evaluated."""

    name: str
    given: list[Any]
    named: Row


UNKNOWN = object()
"""The value of what evaluate does not follow."""


def evaluate(node: ast.AST | None, names: Row) -> Any:
    """What an expression of literals, `names`, sums and joins says; calls become Call, anything else UNKNOWN."""
    match node:
        case ast.Constant():
            return node.value
        case ast.List() | ast.Tuple() | ast.Set():
            return [evaluate(one, names) for one in node.elts]
        case ast.ListComp(
            elt=ast.Name(),
            generators=[ast.comprehension(ifs=[ast.Compare(ops=[ast.NotIn()], comparators=[others])]) as over],
        ):  # [x for x in LIST if x not in OTHERS]
            left_out = evaluate(others, names)
            return [one for one in evaluate(over.iter, names) if one not in left_out]
        case ast.Dict():
            pairs = zip(node.keys, node.values, strict=True)
            return {evaluate(key, names): evaluate(value, names) for key, value in pairs if key is not None}
        case ast.Name():
            return names.get(node.id, UNKNOWN)
        case ast.Attribute():
            return node.attr
        case ast.BinOp(op=ast.Add()):
            left, right = evaluate(node.left, names), evaluate(node.right, names)
            return left + right if isinstance(left, str | list) and type(left) is type(right) else UNKNOWN
        case ast.JoinedStr():
            parts = [evaluate(one.value if isinstance(one, ast.FormattedValue) else one, names) for one in node.values]
            return "".join(map(str, parts)) if known(parts) else UNKNOWN
        case ast.Call():
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            given = [evaluate(one, names) for one in node.args]
            if name in ("join", "sorted") and len(given) == 1 and texts(given[0]):
                return sorted(given[0]) if name == "sorted" else str(evaluate(node.func.value, names)).join(given[0])
            return Call(name, given, {one.arg: evaluate(one.value, names) for one in node.keywords if one.arg})
    return UNKNOWN


def texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def known(value: Any) -> bool:
    """Whether nothing in a value is UNKNOWN or a Call."""
    if isinstance(value, dict):
        return all(known(key) and known(one) for key, one in value.items())
    if isinstance(value, list):
        return all(map(known, value))
    return value is not UNKNOWN and not isinstance(value, Call)


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def body(path: Path, function: str) -> list[ast.stmt]:
    """The statements of a function of a module."""
    return next(n.body for n in ast.walk(tree(path)) if isinstance(n, ast.FunctionDef) and n.name == function)


def assigned(path: Path, names: Row | None = None) -> Row:
    """What a module assigns at its top, in order; `names` are known to it."""
    return assignments(tree(path).body, names)


def assignments(statements: Iterable[ast.AST], names: Row | None = None) -> Row:
    found = dict(names or {})
    for node in statements:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and isinstance(target, ast.Name):
            found[target.id] = evaluate(node.value, found)
    return found


def calls(value: Any, name: str) -> list[Call]:
    """All calls of that name within a value."""
    if isinstance(value, Call):
        inner = calls([*value.given, *value.named.values()], name)
        return [value, *inner] if value.name == name else inner
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return [call for one in parts for call in calls(one, name)]


def called(path: Path, name: str) -> list[Call]:
    """All calls of that name in what a module assigns at its top."""
    return calls(assigned(path), name)


def anywhere(path: Path, kind: type[ast.AST], names: Row | None = None) -> list[Any]:
    """The values of a module's nodes of a kind, wherever they stand."""
    return [evaluate(node, names or {}) for node in ast.walk(tree(path)) if isinstance(node, kind)]


def calls_anywhere(path: Path, name: str, names: Row | None = None) -> list[Call]:
    return [one for one in anywhere(path, ast.Call, names) if isinstance(one, Call) and one.name == name]


def function(name: str, description: str, properties: Row, required: list[str]) -> Row:
    """A tool in OpenAI's form."""
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TYPES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", "dict": "object", "list": "array"}


def asked(text: str) -> list[Row]:
    return [{"role": "user", "content": text}]


def user(text: str, system: str | None = None) -> list[Row]:
    """A request below what the system says, without white space around them."""
    head = [{"role": "system", "content": system.strip()}] if system else []
    return [*head, *asked(text.strip())]


def stripped(messages: list[Row]) -> list[Row]:
    return [{"role": one["role"], "content": one["content"].strip()} for one in messages]


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


class Plain(yaml.SafeLoader):
    """YAML whose own tags say nothing."""


Plain.add_multi_constructor("!", lambda loader, suffix, node: None)


def read_yaml(path: Path) -> Any:
    return Plain(path.read_text()).get_single_data()


def lettered(question: str, options: list[str]) -> str:
    return "\n".join([question, *(f"{chr(65 + index)}. {one}" for index, one in enumerate(options))])


def each(load: Callable[[Path], Any], make: Callable[[Any], str], *keys: str) -> Read:
    """Rows of a list (or of a dictionary's values) that lies under `keys`; those of which nothing is made are none."""

    def read(path: Path) -> Iterator[Numbered]:
        rows = load(path)
        for key in keys:
            rows = rows[key]
        for index, row in enumerate(rows.values() if isinstance(rows, dict) else rows):
            if text := make(row):
                yield index, user(text), None

    return read


def each_line(make: Callable[[Row], str]) -> Read:
    """Rows of JSON lines, as they are made; those of which nothing is made are none."""

    def read(path: Path) -> Iterator[Numbered]:
        for index, row in json_lines(path):
            if text := make(row):
                yield index, asked(text), None

    return read


def column(name: str) -> Read:
    return each_line(lambda row: row[name])


def text_lines(path: Path) -> list[str]:
    return [line.strip() for line in path.read_text().split("\n")]


def arguments(name: str | int, function: str) -> Read:
    """An argument of a function's calls, by name or place, where it is a text."""

    def read(path: Path) -> Iterator[Numbered]:
        for index, call in enumerate(calls_anywhere(path, function, assigned(path))):
            text = call.named.get(name) if isinstance(name, str) else call.given[name]
            if isinstance(text, str) and text:
                yield index, user(text), None

    return read


def found(pattern: str, change: Callable[[str], str] = str) -> Read:
    """What a pattern finds in a file's text."""

    def read(path: Path) -> Iterator[Numbered]:
        for index, text in enumerate(re.findall(pattern, path.read_text(), re.S | re.M)):
            if len(change(text).strip()) > 8:
                yield index, user(change(text)), None

    return read
