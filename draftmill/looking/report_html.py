"""A report as one HTML file that asks for nothing: no script, no font, no request, and a policy that forbids them.

Every string of the document is untrusted: the template escapes what it is given, charts escape what they draw, and what
would steer a terminal or the direction of writing is made visible first.
"""

from __future__ import annotations

from importlib import resources

from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup

from draftmill.looking.charts_html import chart_html
from draftmill.looking.report_blocks import (
    MOST_WORDS,
    Block,
    Code,
    Column,
    Document,
    Figure,
    Items,
    Listing,
    Table,
    Words,
)
from draftmill.table import visible

TEMPLATE, STYLE = "report.html.jinja", "report.css"


def html_text(document: Document) -> str:
    """The whole file."""
    folder = resources.files("draftmill.looking") / "templates"
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        loader=DictLoader({TEMPLATE: (folder / TEMPLATE).read_text(encoding="utf-8")}),
    )  # fmt: skip
    environment.filters |= {
        "visible": visible,
        "words": lambda text: visible(text, MOST_WORDS),
        "chart": chart_html,
        "kind": _kind,
        "is_code": lambda piece: isinstance(piece, Code),
        "cell": _cell,
    }
    style = Markup((folder / STYLE).read_text(encoding="utf-8"))  # noqa: S704 (ours)
    return environment.get_template(TEMPLATE).render(document=document, style=style)


def _kind(block: Block) -> str:
    kinds = {Words: "words", Items: "items", Table: "table", Listing: "listing", Figure: "figure"}
    return kinds[type(block)]


def _cell(cell: str, column: Column) -> str:
    shown = visible(cell)
    return Markup("<code>{}</code>").format(shown) if column.kind == "code" and shown else shown
