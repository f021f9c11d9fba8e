"""A corpus of anybody, looked at: rows are sampled, read as prompts, put into categories and counted.

What the counts say of the whole corpus is audit_shares' matter, how it is told audit_text's. Every row that was read
is in exactly one place: a category of its part, or a reason why it holds no prompt. Nothing is written, and no
workspace is needed; a sample is bounded in memory whatever the corpus is (a JSON document alone is read whole).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from corpus.chunks import READ_COLUMNS, RECOGNISED_ROWS
from corpus.classifier import ITS_WORDS, classify_rows, explain
from corpus.errors import RowError, UserError
from corpus.formats import Form, recognise_rows
from corpus.found_files import find_files, grown, unwatched
from corpus.manifest import FormatFields
from corpus.normalise import Normalised, Normaliser, storable
from corpus.own_rows import OwnRows, own_columns
from corpus.pieces import BadRow
from corpus.row_picks import Item, Row, RowFiles
from corpus.sampling import Group, Reservoir, allocate, group_files
from corpus.words import likeness
from draftmill.looking.audit_seen import SPEAKER, Asked, Audit, Example, Part

MOST_PARTS = 50
LEAST = 30
"""Rows that are read of every part, so that an odd one is seen."""
SOURCE_COLUMNS = ("source", "dataset", "data_source", "subset", "origin")
"""Columns by which rows of a single file are told apart, where they hold few values."""
FEW_VALUES, MOST_VALUES = 50, 200
MOST_COLUMNS = 200
"""That an error line names."""
MOST_LABELS = 500
OTHERS = "(others)"
UNLABELLED = "(no label)"
LANGUAGE_ROWS, LANGUAGE_CHARS = 400, 3_000
WHOLE_FORMS = ("trace", "preference")
"""Formats that may look at any column."""

Report = Callable[[str], None]


def audit(asked: Asked, base: Path, report: Report) -> Audit:
    """Look at a corpus.

    Raises:
        UserError: it cannot be found or read, holds no prompt, or has not a column that was named.
    """
    found = find_files(asked.place, base, SPEAKER)
    files = RowFiles(unwatched(found.files), SPEAKER, skip_bad=asked.skip_bad)
    names = [file.name for file in found.files]
    most = MOST_PARTS if asked.rows is None else max(1, min(MOST_PARTS, asked.rows // 4))
    groups = group_files(names, most)
    looked = _Looked(
        asked, files, [Part(group.label, len(group.files)) for group in groups], OwnRows(found.folder, SPEAKER)
    )
    if asked.rows is None:
        _read_all(looked, groups, report)
    else:
        _read_sample(looked, groups, asked.rows, report)
    report("counting")
    looked.finish()
    looked.result.changed = grown(found.files)
    return looked.result


def _read_all(looked: _Looked, groups: Sequence[Group], report: Report) -> None:
    for number, group in enumerate(groups):
        for file in group.files:
            report(f"reading {looked.files.files[file].name}")
            for rows in looked.files.every(file, looked.columns(file)):
                looked.result.parts[number].population += len(rows)
                looked.add(number, rows)


def _read_sample(looked: _Looked, groups: Sequence[Group], rows: int, report: Report) -> None:
    rng = np.random.default_rng(looked.result.asked.seed)
    reservoirs: list[Reservoir[Item]] = []
    for group in groups:
        reservoir = Reservoir[Item](rows, rng)
        for file in group.files:
            report(f"counting {looked.files.files[file].name}")
            looked.files.offer(file, reservoir)
        reservoirs.append(reservoir)
        if sum(len(one.held) for one in reservoirs) > 2 * rows:  # more parts only ever take from these
            for one, share in zip(reservoirs, allocate([one.seen for one in reservoirs], rows, LEAST), strict=True):
                one.trim(max(share + 1, LEAST))
    shares = allocate([one.seen for one in reservoirs], rows, LEAST)
    for number, (reservoir, share) in enumerate(zip(reservoirs, shares, strict=True)):
        part = looked.result.parts[number]
        part.population = reservoir.seen
        report(f"reading {part.name}")
        looked.add(number, looked.files.fetch(reservoir.drawn(share), looked.columns))


class _Looked:
    """An audit while rows come in."""

    def __init__(self, asked: Asked, files: RowFiles, parts: list[Part], own: OwnRows) -> None:
        self.files = files
        self.result = Audit(asked, parts)
        self._own, self._rng = own, np.random.default_rng([asked.seed, 1])
        self._form: Form | None = None if asked.shape == "auto" else asked.shape
        if asked.field is not None:
            self._form = FormatFields(fields={"prompt": asked.field})
        self._codes: dict[str, int] = {}
        self._seen_columns: set[str] = set()
        self._missing = {name for name in (asked.field, asked.label, asked.by) if name is not None}
        self._asked_texts = Reservoir[tuple[int, str]](LANGUAGE_ROWS, self._rng)
        self._examples: dict[str, Reservoir[Example]] = {}
        columns = (asked.by,) if asked.by is not None else SOURCE_COLUMNS if len(parts) == 1 else ()
        self._by: dict[str, dict[tuple[int, str], Counter[str]]] = {name: defaultdict(Counter) for name in columns}
        self._why: dict[str, Counter[str]] = defaultdict(Counter)

    def columns(self, file: int) -> frozenset[str] | None:
        """Columns of a table that are worth reading; None is all."""
        asked = self.result.asked
        rows = self.files.first_rows(file, RECOGNISED_ROWS) if self.files.is_table(file) else []
        if not rows:
            return None
        own = own_columns(rows[0])
        named = {name for name in (asked.field, asked.label, asked.by) if name is not None}
        if own is not None:
            return own | named
        form = self._form or _recognised(rows)
        if form is None or form in WHOLE_FORMS:
            return None
        said = set(form.fields.values()) if isinstance(form, FormatFields) else set()
        return READ_COLUMNS | named | said | set(self._by)

    def add(self, number: int, rows: Sequence[Row]) -> None:
        """Take rows of a part."""
        part = self.result.parts[number]
        part.read += len(rows)
        for row in rows:
            if isinstance(row.value, dict):
                self._missing -= row.value.keys()
                if len(self._seen_columns) < RECOGNISED_ROWS:
                    self._seen_columns |= row.value.keys()
        good: list[Row] = []
        for row in self._own.told(rows):
            if isinstance(row.value, BadRow):
                self.result.reasons[row.value.reason] += 1
            else:
                good.append(row)
        if not good:
            return
        values = [row.value for row in good if isinstance(row.value, dict)]
        form = self._form or _recognised(values)
        if form is None:
            self.result.reasons["unknown_format"] += len(good)
            return
        read = Normaliser(form, None, self.result.asked.label, keep_original=True, auto=self._form is None)
        columns = read.rows(values, [row.row for row in good])
        self.result.reasons.update(reason for reason in columns.reason if reason is not None)
        kept = [i for i, prompt_id in enumerate(columns.prompt_id) if prompt_id is not None]
        if kept:
            self._count(number, part, good, columns, kept)

    def finish(self) -> None:
        """Settle what can be said only at the end.

        Raises:
            UserError: not one row holds a prompt, or has a column that was named.
        """
        result = self.result
        if self._missing and result.read:
            known = self._known_columns()
            name = sorted(self._missing)[0]
            raise UserError(f"{SPEAKER}: no row has the column {ascii(name)[1:-1]}; columns are {known}.")
        if not result.prompts:
            raise UserError(self._nothing())
        from corpus.language import languages

        texts = self._asked_texts.held
        told = languages([text for _, text in texts])
        result.languages = [(part, language) for (part, _), language in zip(texts, told, strict=True)]
        result.examples = {name: held.held for name, held in self._examples.items()}
        result.by = {
            name: dict(counts) for name, counts in self._by.items() if len(counts) > 1 or result.asked.by is not None
        }
        result.why = dict(self._why)

    def _known_columns(self) -> str:
        """Columns of the rows that were read, for a line; of a file with thousands the first."""
        names = [ascii(name)[1:-1] for name in sorted(self._seen_columns)]
        more = len(names) - MOST_COLUMNS
        return ", ".join(names[:MOST_COLUMNS]) + (f" and {more:,} more" if more > 0 else "")

    def _nothing(self) -> str:
        result = self.result
        if not result.population:
            return f"{SPEAKER}: {result.asked.place.paths[0]}: no rows there. Name files that hold some."
        why = ", ".join(f"{count:,} {reason}" for reason, count in result.reasons.most_common(4))
        known = self._known_columns()
        hint = f"Columns are {known}; name the one that holds the prompts with --field." if known else ""
        return f"{SPEAKER}: none of the {result.read:,} rows that were read holds a prompt ({why}). {hint}".rstrip()

    def _count(self, number: int, part: Part, rows: Sequence[Row], columns: Normalised, kept: Sequence[int]) -> None:
        messages = [columns.messages[i] or "" for i in kept]
        tools = [columns.tools[i] for i in kept]
        if self.result.asked.label is not None:
            named = [self._label(columns.upstream_label[i] or UNLABELLED) for i in kept]
        else:
            named = classify_rows(messages, tools)
        part.counts.update(named)
        facts = self.result.facts
        keys = likeness([columns.shown[i] for i in kept])
        for place, i in enumerate(kept):
            facts.part.append(number)
            facts.category.append(self._code(named[place]))
            facts.prompt_chars.append(len(columns.shown[i]))
            facts.answer_chars.append(_answer_chars(columns.original[i]))
            facts.tools.append(tools[place] is not None or _calls_tools(messages[place]))
            facts.several_turns.append((columns.turns[i] or 1) > 1)
            facts.likeness.append(int(keys[place][:16], 16))
        self._asked_texts.offer(len(kept), lambda place: (number, columns.asked[kept[place]][:LANGUAGE_CHARS]))
        self._group(number, [rows[i].value for i in kept], named)
        if self.result.asked.why:
            for place, category in enumerate(named):
                said = _why(messages[place], tools[place])
                for_it = [reason for one, reason, weight in said if one == category and weight > 0]
                self._why[category].update(_kinds(for_it))
        if self.result.asked.examples:
            self._show(rows, columns, kept, named)

    def _label(self, said: str) -> str:
        """A label as a category: of hundreds, those that come later are one."""
        label = said if said in self._codes or len(self._codes) < MOST_LABELS else OTHERS
        self._code(label)
        return label

    def _code(self, category: str) -> int:
        if category not in self._codes:
            self._codes[category] = len(self._codes)
            self.result.categories.append(category)
        return self._codes[category]

    def _group(self, number: int, values: Iterable[Any], named: Sequence[str]) -> None:
        wanted = self.result.asked.by
        for value, category in zip(values, named, strict=True):
            for column in list(self._by):
                counts, held = self._by[column], value.get(column)
                if wanted is None and not isinstance(held, str):
                    if held is not None:
                        del self._by[column]
                    continue
                key = (number, (storable(str(held)) or "")[:200] if held is not None else UNLABELLED)
                if key not in counts and len(counts) >= (FEW_VALUES if wanted is None else MOST_VALUES):
                    if wanted is None:
                        del self._by[column]
                        continue
                    key = (number, OTHERS)
                counts[key][category] += 1

    def _show(self, rows: Sequence[Row], columns: Normalised, kept: Sequence[int], named: Sequence[str]) -> None:
        for i, category in zip(kept, named, strict=True):
            if category not in self._examples:
                self._examples[category] = Reservoir(self.result.asked.examples, self._rng)

            def shown(_: int, i: int = i) -> Example:
                row = rows[i]
                why = _why(columns.messages[i] or "", columns.tools[i]) if self.result.asked.why else ()
                return Example(self.files.files[row.file].name, row.row, columns.asked[i][:LANGUAGE_CHARS], tuple(why))

            self._examples[category].offer(1, shown)


def _recognised(rows: Sequence[dict[str, Any]]) -> Form | None:
    try:
        return recognise_rows(list(rows[0]), rows[:RECOGNISED_ROWS])
    except RowError:
        return None


_decode = msgspec.json.Decoder().decode


def _why(messages: str, tools: str | None) -> list[tuple[str, str, float]]:
    return explain(_decode(messages), _decode(tools) if tools else None)


def _kinds(reasons: Sequence[str]) -> list[str]:
    """Reasons, the weightiest first, as they are counted: every rule, and words where they weigh most."""
    kinds = {reason for reason in reasons if not reason.startswith(ITS_WORDS)}
    if reasons and reasons[0].startswith(ITS_WORDS):
        kinds.add(ITS_WORDS)
    return sorted(kinds) or ["no rule spoke"]


def _answer_chars(original: str | None) -> int:
    """Characters of a row's own answers; -1 where it has none."""
    return sum(map(len, filter(None, _decode(original)))) if original else -1


def _calls_tools(messages: str) -> bool:
    """True if turns of a prompt, as canonical JSON, call a tool: inside a text quotation marks have backslashes."""
    return '"role":"tool"' in messages or '"tool_calls":' in messages
