"""Setting keys of one section in a manifest's text, and leaving every other byte as it was.

A value is replaced where it stands, a key that is missing is put first in its section, a section that is missing goes
to the end: comments, order, quotes and line ends stay. The result is parsed and held against what was wanted, so what
cannot be edited so (an alias, an anchor that others use, several documents) is refused and never guessed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode

from corpus.artefacts import write_atomically
from corpus.errors import UserError

Scalar = str | int | float | bool | None
Edit = tuple[int, int, str]
"""Where it begins and ends in the text, and what stands there instead."""


def edit_manifest(path: Path, section: str, values: Mapping[str, Scalar]) -> None:
    """Set keys of a section in a manifest's file, atomically; a link stays a link.

    Raises:
        UserError: as with_values, or the file cannot be read or written.
    """
    file = path.resolve()
    try:
        text = file.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error}).") from error
    edited = with_values(text, section, values, str(path)).encode("utf-8")

    def write(temporary: Path) -> None:
        temporary.write_bytes(edited)
        shutil.copymode(file, temporary)

    try:
        write_atomically(file, write)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}). {_by_hand(section, values)}") from error


def with_values(text: str, section: str, values: Mapping[str, Scalar], where: str) -> str:
    """The text of a manifest with these keys of a section set; `where` names it in errors.

    A section within another is named with a dot (mix.shares); what it is in must be there.

    Raises:
        UserError: it is no mapping, or cannot be edited without touching something else.
    """
    yaml = YAML(typ="safe", pure=True)
    refused = UserError(f"{where}: {section} cannot be set without touching other parts. {_by_hand(section, values)}")
    try:
        before, root = yaml.load(text), yaml.compose(text)
        if not before or not isinstance(before, dict) or not isinstance(root, MappingNode):
            raise refused
        *outer, name = section.split(".")
        for one in outer:
            pair = _pair(root, one)
            if pair is None or not isinstance(pair[1], MappingNode) or _place(text, *pair) is None:
                raise refused
            root = pair[1]
        if outer and _pair(root, name) is None:
            raise refused
        edited = _edited(text, root, name, values)
        after = yaml.load(edited)
    except YAMLError as error:
        raise refused from error
    if after != _with(before, section.split("."), values):
        raise refused
    return edited


def _with(body: dict[str, Any], path: Sequence[str], values: Mapping[str, Scalar]) -> dict[str, Any]:
    """A parsed mapping with these keys set at this path."""
    if not path:
        return body | dict(values)
    return body | {path[0]: _with(body.get(path[0]) or {}, path[1:], values)}


def _edited(text: str, root: MappingNode, section: str, values: Mapping[str, Scalar]) -> str:
    pair = _pair(root, section)
    if pair is None:
        return _with_section(text, root, section, values)
    key, node = pair
    place = _place(text, key, node)
    if place is None:
        return text
    quoted = text[key.start_mark.index] == '"'
    if not isinstance(node, MappingNode):
        return _applied(text, [(*place, _flow(values, quoted))])
    edits: list[Edit] = []
    missing: dict[str, Scalar] = {}
    for name, value in values.items():
        inner = _pair(node, name)
        if inner is None:
            missing[name] = value
        elif (place := _place(text, *inner)) is not None:
            edits.append((*place, _scalar(value, quoted)))
    return _applied(text, [*edits, _put_first(text, node, missing, quoted)] if missing else edits)


def _place(text: str, key: Node, value: Node) -> tuple[int, int] | None:
    """Where a value begins and ends; None for an alias, whose text is elsewhere."""
    begin, end = value.start_mark.index, value.end_mark.index
    if begin < key.end_mark.index:
        return None
    if begin == end:  # nothing stands there, and the parser is at whatever comes next
        begin = end = text.index(":", key.end_mark.index) + 1
    return begin, end


def _pair(node: MappingNode, name: str) -> tuple[Node, Node] | None:
    """A key and its value; one that comes of a merge does not stand there."""
    return next(((key, value) for key, value in node.value if isinstance(key, ScalarNode) and key.value == name), None)


def _put_first(text: str, node: MappingNode, values: Mapping[str, Scalar], quoted: bool) -> Edit:
    """New keys before the first of a mapping."""
    if not node.flow_style:
        first = node.value[0][0].start_mark
        rest = _newline(text) + " " * first.column
        return first.index, first.index, "".join(f"{key}: {_scalar(value)}{rest}" for key, value in values.items())
    inside = _flow(values, quoted)[1:-1]
    if not node.value:
        brace = node.end_mark.index - 1
        return brace, brace, inside
    first = node.value[0][0].start_mark
    return first.index, first.index, f"{inside}, "


def _with_section(text: str, root: MappingNode, section: str, values: Mapping[str, Scalar]) -> str:
    """The section at the end."""
    if root.flow_style:
        quoted = text[root.value[0][0].start_mark.index] == '"'
        name = json.dumps(section) if quoted else section
        end = len(text[: root.end_mark.index - 1].rstrip())
        return f"{text[:end]}, {name}: {_flow(values, quoted)}{text[end:]}"
    newline = _newline(text)
    gap = "" if text.endswith("\n") else newline
    return f"{text}{gap}{section}: {_flow(values, quoted=False)}{newline}"


def _applied(text: str, edits: Sequence[Edit]) -> str:
    """Spans replaced, the last first, so that none moves another."""
    for begin, end, new in sorted(edits, reverse=True):
        space = " " if text[begin - 1] == ":" else ""  # a value that was not there
        text = f"{text[:begin]}{space}{new}{text[end:]}"
    return text


def _flow(values: Mapping[str, Scalar], quoted: bool) -> str:
    return "{" + ", ".join(f"{json.dumps(k) if quoted else k}: {_scalar(v, quoted)}" for k, v in values.items()) + "}"


def _scalar(value: Scalar, quoted: bool = False) -> str:
    """A value as YAML reads it; words stand bare where they may."""
    bare = isinstance(value, str) and value.isidentifier() and not quoted
    if bare and YAML(typ="safe", pure=True).load(str(value)) == value:
        return str(value)
    return json.dumps(value, ensure_ascii=False)


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _by_hand(section: str, values: Mapping[str, Scalar]) -> str:
    return f"Set it by hand: {section}: {_flow(values, quoted=False)}"
