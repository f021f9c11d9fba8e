"""Writes the reference pages from what the code declares: manifest.md, ledger.md, manifest.schema.json.

`make docs` runs it; a test compares its output with the files, so that they cannot drift.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from corpus.identity import LEFT_OUT
from corpus.ledger.writer import migrate
from corpus.manifest import Manifest
from corpus.manifest_file import manifest_schema

HERE = Path(__file__).parent
LARGE = 1e12  # bounds beyond this only guard against overflow


def pages() -> dict[str, str]:
    """File name to text."""
    return {
        "manifest.md": manifest_page(),
        "ledger.md": ledger_page(),
        "manifest.schema.json": json.dumps(manifest_schema(), indent=2, ensure_ascii=False) + "\n",
    }


def manifest_page() -> str:
    """Every key of the manifest with type, default and description."""
    lines = [
        "# The manifest",
        "",
        "One YAML file for the whole run. Unknown keys and wrong types are errors. A key in bold is needed. This page is made from",
        "the models in `corpus/manifest.py`; `draftmill schema` prints the same as JSON Schema.",
        "",
    ]
    for name, model in sections():
        lines += [
            f"## {name}",
            "",
            (model.__doc__ or "").strip(),
            "",
            "| key | type | default | |",
            "|---|---|---|---|",
        ]
        schemas = model.model_json_schema()["properties"]
        for key, field in model.model_fields.items():
            shown = f"**`{key}`**" if field.is_required() else f"`{key}`"
            lines.append(
                f"| {shown} | {_cell(_type(schemas[key]))} | {_default(field)} | {_cell(field.description or '')} |"
            )
        lines.append("")
    return "\n".join(lines)


def sections() -> list[tuple[str, type[BaseModel]]]:
    """Every model below Manifest with the path at which it stands, in order of declaration."""
    found: list[tuple[str, type[BaseModel]]] = []

    def visit(path: str, model: type[BaseModel]) -> None:
        if any(known is model for _, known in found):
            return
        found.append((path, model))
        for key, field in model.model_fields.items():
            for child in _models(field.annotation):
                visit(f"{path}.{key}" if path != "manifest" else key, child)

    visit("manifest", Manifest)
    return found


def ledger_page() -> str:
    """Tables and views with their comments and columns, and what identities leave out."""
    import duckdb

    connection = duckdb.connect()
    migrate(connection, "the documentation's ledger")
    lines = [
        "# The ledger",
        "",
        "`draftmill sql` asks the published snapshot, read-only. The views are a contract: their columns stay, more may follow. Three more",
        "views read texts from the parquet files: `prompt_text` (prompt_id, messages, tools, asked: the user turns; of every prompt read, dropped ones",
        "too), `original_text` (prompt_id, file, row_index, answers: the sources' own, one a turn, where `keep_original` is set) and",
        "`response_text` (response_id, attempt, text, prompt_token_ids, token_ids). This page is made from the comments in the schema.",
        "",
    ]
    for title, query in (
        ("Views", "SELECT view_name, comment FROM duckdb_views() WHERE NOT internal ORDER BY 1"),
        ("Tables", "SELECT table_name, comment FROM duckdb_tables() WHERE comment IS NOT NULL ORDER BY 1"),
    ):
        lines += [f"## {title}", ""]
        for name, comment in connection.execute(query).fetchall():
            columns = connection.execute(
                "SELECT column_name FROM duckdb_columns() WHERE table_name = ? ORDER BY column_index", [name]
            ).fetchall()
            lines += [f"### {name}", "", f"{comment or ''}.", "", ", ".join(f"`{column}`" for (column,) in columns), ""]
    lines += ["## What an identity leaves out", "", "| identity | leaves out | because |", "|---|---|---|"]
    lines += [f"| {kind} | `{key}` | {why} |" for kind, keys in LEFT_OUT.items() for key, why in keys.items()]
    return "\n".join(lines) + "\n"


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for arg in get_args(annotation) for model in _models(arg)]


def _type(schema: dict[str, Any]) -> str:
    """A field's JSON Schema in words."""
    if "anyOf" in schema:
        return " or ".join(_type(option) for option in schema["anyOf"])
    if "$ref" in schema:
        return str(schema["$ref"]).rsplit("/", 1)[-1]
    if "enum" in schema:
        return " or ".join(str(value) for value in schema["enum"])
    if "const" in schema:
        return str(schema["const"])
    kind = schema.get("type", "anything")
    if kind == "array":
        items = schema.get("prefixItems")
        return "pair" if items else f"list of {_type(schema.get('items', {}))}"
    if kind == "object":
        value = schema.get("additionalProperties")
        return f"mapping to {_type(value)}" if isinstance(value, dict) else "mapping"
    bounds = [
        f"{sign} {schema[key]:g}"
        for key, sign in (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<"))
        if key in schema and abs(schema[key]) < LARGE
    ]
    return " ".join([str(kind), ", ".join(bounds)]).strip()


def _default(field: Any) -> str:
    if field.is_required():
        return ""
    value = field.default_factory() if field.default_factory else field.default
    if value is PydanticUndefined or value is None:
        return ""
    if isinstance(value, BaseModel):
        body = value.model_dump(exclude_unset=True)
        return _cell(f"`{json.dumps(body)}`") if body else "see below"
    return _cell(f"`{json.dumps(value)}`")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    for name, text in pages().items():
        (HERE / name).write_text(text, encoding="utf-8")
