"""A chunk of a pool while it is read: rows of a source, normalised, in one schema for every source.

The format of a source is recognised once, on its first rows; with `format: auto` a row that does not fit it may show
another of its own. A file whose prompts can be of no kind stops the reading, because a drop of every row of a file is a
mistake and not a choice. A limit cuts a piece at a row, and nothing behind that row is counted.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from corpus.errors import RowError, UserError
from corpus.formats import CHAT_COLUMNS, ID_COLUMNS, PROMPT_COLUMNS, own_form, recognise_rows
from corpus.language import letters_up_to
from corpus.manifest import MOST_NEAR_EMPTY, CategoryByColumn, FormatFields, Source
from corpus.normalise import Normalised, Normaliser, storable
from corpus.pieces import PIECE_ROWS, SKIP_KEY, Piece
from corpus.traces import ANSWER_COLUMNS, TRACE_COLUMNS
from corpus.words import likeness

if TYPE_CHECKING:
    import polars as pl

RECOGNISED_ROWS = 100
READ_COLUMNS = frozenset(
    (*CHAT_COLUMNS, *PROMPT_COLUMNS, *ID_COLUMNS, *ANSWER_COLUMNS, *TRACE_COLUMNS, "instruction", "input", "system",
     "tools", "chosen", "rejected")
)  # fmt: skip
"""Columns that the formats look at; a trace may be in any."""
MAIN_COLUMNS: dict[str, tuple[str, ...]] = {
    "messages": ("messages", "conversations"),
    "sharegpt": ("conversations",),
    "alpaca": ("instruction",),
    "prompt": ("prompt",),
    "preference": ("chosen",),
    "trace": (),
}
"""Where a format finds its prompts; a trace may be anywhere."""


class Shape:
    """The format of a source's rows: given, recorded, or recognised on the first rows; and the columns it looks at.

    Raises:
        ValueError: what was recorded is no format.
    """

    def __init__(
        self, source: Source, recorded: Any = None, main: dict[str, str] | None = None, to_skip: str = SKIP_KEY
    ) -> None:
        self.source, self._to_skip = source, to_skip
        self.form: str | FormatFields | None = None if source.format == "auto" else source.format
        if recorded is not None:
            self.form = FormatFields.model_validate(recorded) if isinstance(recorded, dict) else str(recorded)
        known = self.form is None or isinstance(self.form, FormatFields) or self.form in MAIN_COLUMNS
        if not known or not (main is None or main.keys() == {"column", "type", "file"}):
            raise ValueError(f"{recorded} with {main} is no format")
        self.main = main
        """The column that prompts were found in, the type that it had, and the first such file."""

    @property
    def recorded(self) -> Any:
        """The format as pool.json holds it."""
        return self.form.model_dump() if isinstance(self.form, FormatFields) else self.form

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Columns worth reading, None while that is not known."""
        if self.form in (None, "trace", "preference"):
            return None
        named = set(self.form.fields.values()) if isinstance(self.form, FormatFields) else set()
        label = label_column(self.source)
        return tuple(sorted(named | READ_COLUMNS | ({label} if label else set())))

    def recognise(self, rows: list[dict[str, Any]], file: str) -> str | FormatFields:
        """The format, recognised on these rows if it is not known yet.

        Raises:
            UserError: the rows have no known shape.
        """
        if self.form is None:
            try:
                self.form = recognise_rows(list(rows[0]), rows[:RECOGNISED_ROWS])
            except RowError as error:
                raise UserError(
                    f"source {self.source.name}: {file}: no known format ({error.detail}). "
                    "Say which: format: {fields: {prompt: COLUMN}}."
                ) from error
        return self.form

    def refuse_change(self, rows: list[dict[str, Any]], file: str) -> None:
        """Refuse a file in whose first rows no prompt can be, where an earlier file has prompts.

        Raises:
            UserError: naming both files, and the type of the column in each.
        """
        form = self.recognise(rows, file)
        if isinstance(form, FormatFields):
            columns: tuple[str, ...] = (form.fields.get("messages") or form.fields["prompt"],)
        else:
            columns = MAIN_COLUMNS[form]
        if self.source.format == "auto" and any(own_form(row) not in (None, form) for row in rows[:RECOGNISED_ROWS]):
            return
        values = [(column, row[column]) for row in rows for column in columns if column in row]
        good = next(((c, v) for c, v in values if isinstance(v, str | list | dict)), None)
        if good is not None:
            self.main = self.main or {"column": good[0], "type": type(good[1]).__name__, "file": file}
        elif columns and self.main is not None and all(value is not None for _, value in values):
            column, kind, first = (self.main[key] for key in ("column", "type", "file"))
            got = f"is {type(values[0][1]).__name__}" if values else "is not there"
            raise UserError(
                f"source {self.source.name}: {file}: column {column} {got}; in {first} it is {kind}. "
                f"Make it a source of its own with its format, or {self._to_skip}."
            )


class Collected:
    """A chunk while it is read."""

    def __init__(self, shape: Shape, room: int | None) -> None:
        self.shape, self.source, self.room = shape, shape.source, room
        self.rows = self.left_out = self.shown_chars = 0
        self.cut = False
        """True if the limit left something of the last piece unread."""
        self.files: list[str] = []
        self._frames: list[pl.DataFrame] = []
        self._open, self._open_files = Normalised(), list[str]()

    def add(self, piece: Piece, file: str) -> None:
        """Take a piece of a file, as far as there is room.

        Raises:
            UserError: its rows have no known shape, or not the columns that the manifest names.
        """
        piece = self._within_room(piece)
        self.left_out += len(piece.left_out)
        if piece.rows:
            form = self.shape.recognise(piece.rows, file)
            self._refuse_missing(piece.rows, file)
            normaliser = Normaliser(
                form, self.source.history, label_column(self.source), self.source.keep_original,
                self.source.format == "auto",
            )  # fmt: skip
            self._take(normaliser.rows(piece.rows, piece.indexes), file)
        if piece.bad:
            bad, count = Normalised(), len(piece.bad)
            for one in fields(Normalised):
                setattr(bad, one.name, [""] * count if one.name in ("shown", "asked") else [None] * count)
            bad.row_index = [one.row for one in piece.bad]
            bad.reason, bad.detail = [one.reason for one in piece.bad], [storable(one.detail) for one in piece.bad]
            self._take(bad, file)

    def _within_room(self, piece: Piece) -> Piece:
        """The piece up to the row that uses up the limit. Rows that cannot be read use it up too."""
        if self.room is None:
            return piece
        places = sorted([*piece.indexes, *(bad.row for bad in piece.bad)])
        if len(places) < self.room:
            self.room -= len(places)
            return piece
        last, self.room = places[self.room - 1], 0
        rows = [row for index, row in zip(piece.indexes, piece.rows, strict=True) if index <= last]
        left_out = [index for index in piece.left_out if index < last]
        self.cut = len(left_out) < len(piece.left_out) or places[-1] > last
        bad = [one for one in piece.bad if one.row <= last]
        return Piece(rows, [index for index in piece.indexes if index <= last], piece.position, left_out, bad)

    def _take(self, columns: Normalised, file: str) -> None:
        for one in fields(Normalised):
            getattr(self._open, one.name).extend(getattr(columns, one.name))
        count = len(columns.row_index)
        self._open_files += [file] * count
        self.rows += count
        self.shown_chars += sum(map(len, columns.shown))
        if file not in self.files[-1:]:
            self.files.append(file)
        if len(self._open_files) >= PIECE_ROWS:
            self._close()

    def _close(self) -> None:
        if self._open_files:  # a frame for each of many tiny files would cost more than their rows
            self._frames.append(chunk_frame(self._open, self._open_files))
            self._open, self._open_files = Normalised(), []

    def _refuse_missing(self, rows: list[dict[str, Any]], file: str) -> None:
        """Not one row with a column that the manifest names is a mistake in the manifest."""
        for column in sorted(_named_columns(self.source)):
            if not any(column in row for row in rows):
                known = ", ".join(sorted({name for row in rows[:100] for name in row})[:12])
                raise UserError(
                    f"source {self.source.name}: {file}: no row has the column {column} that the manifest names; "
                    f"columns are {known}."
                )

    def frame(self) -> pl.DataFrame:
        """All rows of the chunk."""
        import polars as pl

        self._close()
        return pl.concat(self._frames) if self._frames else pl.DataFrame(schema=chunk_schema())


def chunk_frame(columns: Normalised, files: list[str]) -> pl.DataFrame:
    """Rows as a chunk holds them, and the file of each."""
    import polars as pl

    keys = likeness(columns.shown)
    values: dict[str, Any] = {
        "row_index": columns.row_index,
        "file": files,
        "upstream_id": columns.upstream_id,
        "upstream_label": columns.upstream_label,
        "prompt_id": columns.prompt_id,
        "likeness": [key if found else None for key, found in zip(keys, columns.prompt_id, strict=True)],
        "messages": columns.messages,
        "tools": columns.tools,
        "original": columns.original,
        "turns": columns.turns,
        "prompt_chars": list(map(len, columns.shown)),
        "format": columns.format,
        "letters": letters_up_to(pl.Series(columns.asked, dtype=pl.String), MOST_NEAR_EMPTY),
        "reason": columns.reason,
        "detail": columns.detail,
    }
    return pl.DataFrame(values, schema=chunk_schema())


def chunk_schema() -> dict[str, Any]:
    """Columns of a chunk: one schema for every source."""
    import polars as pl

    return {
        "row_index": pl.Int64,
        "file": pl.String,
        "upstream_id": pl.String,
        "upstream_label": pl.String,
        "prompt_id": pl.String,
        "likeness": pl.String,
        "messages": pl.String,
        "tools": pl.String,
        "original": pl.String,
        "turns": pl.Int32,
        "prompt_chars": pl.Int64,
        "format": pl.String,
        "letters": pl.Int64,
        "reason": pl.String,
        "detail": pl.String,
    }


def label_column(source: Source) -> str | None:
    """The column that gives the category, where the manifest names one."""
    return source.category.column if isinstance(source.category, CategoryByColumn) else None


def _named_columns(source: Source) -> set[str]:
    """Columns that the manifest names: not one row without them is a mistake in the manifest."""
    label = label_column(source)
    named = {label} if label else set()
    if isinstance(source.format, FormatFields):
        named |= {column for what, column in source.format.fields.items() if what in ("prompt", "messages")}
    return named
