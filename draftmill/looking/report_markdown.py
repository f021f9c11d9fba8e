"""A report as Markdown: the same document, without its figures.

Every string of the document is untrusted: text is escaped, names and ids are code, and no cell can end its table.
"""

from __future__ import annotations

from corpus.markdown import code_block, code_span, escaped, table
from draftmill.looking.report_blocks import (
    MOST_WORDS,
    Block,
    Code,
    Document,
    Figure,
    Items,
    Listing,
    Table,
    Words,
)
from draftmill.table import visible


def markdown_text(document: Document) -> str:
    """The whole text."""
    parts = [f"# {escaped(visible(document.title))}"]
    parts += [_words(paragraph) for paragraph in document.words]
    if document.tiles:
        rows = [[escaped(tile.name), escaped(tile.value), escaped(tile.note)] for tile in document.tiles]
        parts.append(table(["", "", ""], [False, True, False], rows))
    for section in document.sections:
        parts.append(f"## {escaped(section.title)}")
        parts += [text for block in section.blocks if (text := _block(block))]
    return "\n\n".join(parts) + "\n"


def _block(block: Block) -> str:
    if isinstance(block, Figure):
        return ""
    if isinstance(block, Words):
        return _words(block)
    if isinstance(block, Items):
        return "\n".join(f"- {escaped(visible(line, MOST_WORDS))}" for line in block.lines)
    if isinstance(block, Listing):
        title = f"{escaped(block.title)}:\n\n" if block.title else ""
        return title + code_block(block.text, block.language)
    return _table(block)


def _words(paragraph: Words) -> str:
    return "".join(
        code_span(visible(piece.text)) if isinstance(piece, Code) else _piece(piece) for piece in paragraph.pieces
    )


def _piece(text: str) -> str:
    """Escaped, with the spaces at its ends."""
    shown = visible(text, MOST_WORDS)
    return escaped(shown)


def _table(block: Table) -> str:
    def cells(row: tuple[str, ...]) -> list[str]:
        return [
            code_span(visible(cell)) if column.kind == "code" else escaped(visible(cell))
            for cell, column in zip(row, block.columns, strict=True)
        ]

    rows = [*block.rows, *([block.total] if block.total else [])]
    text = table(
        [escaped(visible(column.name)) for column in block.columns],
        [column.kind == "number" for column in block.columns],
        [cells(row) for row in rows],
    )
    return f"{text}\n\n{escaped(block.rest)}" if block.rest else text
