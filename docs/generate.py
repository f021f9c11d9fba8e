"""Writes the reference pages from what the code declares: manifest.md, ledger.md, hardware.md, the manifest's schema.

`make docs` runs it; a test compares its output with the files, so that they cannot drift.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from corpus.identity import LEFT_OUT
from corpus.ledger.query import views
from corpus.ledger.writer import migrate
from corpus.manifest import Manifest
from corpus.manifest_file import manifest_schema
from draftmill.answer_lengths import RESPONSE_TOKENS, THOUGHT_TOKENS
from draftmill.costing import DECODE_SHARE, FORWARD_SHARE, TRAIN_SHARE
from draftmill.hardware import ENTERED, GPUS

HERE = Path(__file__).parent
LARGE = 1e12  # bounds beyond this only guard against overflow


def pages() -> dict[str, str]:
    """File name to text."""
    return {
        "manifest.md": manifest_page(),
        "ledger.md": ledger_page(),
        "hardware.md": hardware_page(),
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
    """Views with comments, columns and types, tables, and what identities leave out."""
    import duckdb

    connection = duckdb.connect()
    migrate(connection, "the documentation's ledger")
    lines = [
        "# The ledger",
        "",
        "`draftmill sql` asks the published snapshot, read-only; `draftmill sql --views` lists the views in the terminal. The views are a contract: their",
        "columns stay, more may follow. `prompt_text`, `original_text` and `response_text` read texts from the parquet files; another DuckDB client has",
        "all but these. This page is made from the comments in the schema.",
        "",
        "## Views",
        "",
    ]
    for name, comment, columns in views():
        lines += [f"### {name}", "", f"{comment}.", "", "| column | type | |", "|---|---|---|"]
        lines += [f"| `{column}` | {_cell(kind.lower())} | {_unmarked(said)} |" for column, kind, said in columns]
        lines.append("")
    lines += ["## Tables", ""]
    query = "SELECT table_name, comment FROM duckdb_tables() WHERE comment IS NOT NULL ORDER BY 1"
    for name, comment in connection.execute(query).fetchall():
        listed = connection.execute(
            "SELECT column_name FROM duckdb_columns() WHERE table_name = ? ORDER BY column_index", [name]
        ).fetchall()
        lines += [f"### {name}", "", f"{comment}.", "", ", ".join(f"`{column}`" for (column,) in listed), ""]
    lines += ["## What an identity leaves out", "", "| identity | leaves out | because |", "|---|---|---|"]
    lines += [f"| {kind} | `{key}` | {why} |" for kind, keys in LEFT_OUT.items() for key, why in keys.items()]
    return "\n".join(lines) + "\n"


def hardware_page() -> str:
    """The GPUs that `draftmill plan` reckons with, and how."""
    lines = [
        "# Hardware",
        "",
        "`draftmill plan MANIFEST` reckons with these figures where the workspace has no rate of its own. A rate that the ledger has measured",
        "comes first, as long as the same hardware is meant. This page is made from `draftmill/hardware.py` and `draftmill/costing.py`.",
        "",
        "| `--hardware` | memory | bandwidth | bf16, dense | USD an hour | figures | prices |",
        "|---|---:|---:|---:|---:|---|---|",
    ]
    for gpu in GPUS:
        prices = _linked(gpu.price_source, gpu.price_url) if gpu.price_usd else "none compared; give `--price`"
        price = "–" if gpu.price_usd is None else f"{gpu.price_usd[0]:.2f} to {gpu.price_usd[1]:.2f}"
        lines.append(
            f"| `{gpu.name}` | {gpu.memory_bytes / 1e9:.0f} GB | {gpu.bandwidth / 1e12:.2f} TB/s | {gpu.bf16_flops / 1e12:,.0f} TFLOP/s "
            f"| {price} | {_linked(gpu.source, gpu.source_url)} | {prices} |"
        )
    lines += [
        "",
        "Prices are on-demand list prices, the lowest and the highest that the source names; `--price USD` takes your own. Prices change: open the",
        "address before you trust them. NVIDIA's addresses are its product pages, where the specifications and the datasheet are.",
        "",
        "## How hours are reckoned",
        "",
        "Of a target with P parameters, W bytes of weights and S sequences at once with C bytes of cache each:",
        "",
        "| | seconds | share of the published figure that is reached |",
        "|---|---|---|",
        f"| answers | tokens x (W + S x C) / (bandwidth x share) / S, or 2 P x S / (bf16 x share) where that is longer | {_share(DECODE_SHARE)} of bandwidth |",
        f"| their prompts, and hidden states | tokens x 2 P / (bf16 x share) | {_share(FORWARD_SHARE)} of bf16 |",
        f"| drafter | block slots x (6 x the drafter's parameters + 6 x the head's) / (bf16 x share) | {_share(TRAIN_SHARE)} of bf16 |",
        "",
        "S is what fits beside the weights, at most 256 (as `draftmill doctor` says). A drafter that is fed live needs the target's forward pass of",
        "every epoch as well. The shares are assumptions: `benchmarks/gpu_check.py` measures those of one GPU, and the first run of a workspace replaces",
        "them by its own rates. What is read of the sources, downloads and the time of a person are not in it.",
        "",
        "As a check: the corpus of 900,000 prompts that this project began with was reckoned by hand at 13 hours on 7 B200, about 350 USD, for the",
        "answers. `draftmill plan` gives 7 h there at its own assumptions, in a range from 2.1 h to 43 h.",
        "",
        "## How long answers are",
        "",
        "`plan` and `diff` ask one estimator. Lengths are measured where answers here were made under the very recipe (target, template, sampling,",
        "thinking, `max_tokens`). Else, and marked: `mix.mean_response_tokens`; answers of the target under another recipe, those that were cut counted as",
        "`max_tokens`; answers of another model, halved to doubled. Answers with thinking and without are counted apart, and weighted by",
        "`generation.thinking.share`; nothing is longer than `max_tokens`. Where nothing tells, these means are assumed:",
        "",
        "| | tokens | range | from |",
        "|---|---:|---|---|",
        f"| an answer | {_tokens(RESPONSE_TOKENS)} | a guess at a mixed corpus; no source |",
        f"| the thought before it | {_tokens(THOUGHT_TOKENS)} | [EvalScope](https://evalscope.readthedocs.io/en/latest/best_practice/think_eval.html), MATH-500, five "
        "reasoning models (QwQ-32B and its preview, DeepSeek-R1, two distilled of it): means of 1,047 to 2,059 tokens on the easiest level, 1,525 to 2,960 "
        "(mean 2,235) on the middle one, 3,441 to 5,585 on the hardest |",
        "",
        "The thought's figures are of mathematics alone; a chat may think less. Where the ledger has plain answers of the target, the thought is added to",
        "theirs.",
        "",
        "Where neither the target's folder nor the Hub is at hand, `--config FILE` names its config.json: parameters are then counted as transformers would",
        "build the model.",
    ]
    return "\n".join(lines) + "\n"


def _linked(source: str, address: str) -> str:
    return f"[{source}]({address})" if address else f"{source}: a figure of {ENTERED} without a public address"


def _tokens(amount: Any) -> str:
    return f"{amount.value:,.0f} | {amount.low:,.0f} to {amount.high:,.0f}"


def _share(amount: Any) -> str:
    return f"{amount.low:.0%} to {amount.high:.0%}"


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


def _unmarked(text: str) -> str:
    """A cell in which <x> is no tag."""
    return _cell(text).replace("<", "\\<")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    for name, text in pages().items():
        (HERE / name).write_text(text, encoding="utf-8")
