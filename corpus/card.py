"""The card of a published build: what the dataset is, where its rows come from, what was dropped, how it is loaded.

Pure: frames of the ledger's views in, the text of a README.md out. The header is the Hub's own metadata, made by
huggingface_hub; a licence that the Hub has no identifier for is `other`, and every source's own one is listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from corpus.markdown import BARE_BAR, code_span, escaped, table

if TYPE_CHECKING:
    import polars as pl

CONFIGS = ("prompts", "responses")
"""What load_dataset's second argument may be."""
TAGS = ["speculative-decoding", "draftmill"]
SIZES = (
    (10**3, "n<1K"), (10**4, "1K<n<10K"), (10**5, "10K<n<100K"), (10**6, "100K<n<1M"), (10**7, "1M<n<10M"),
    (10**8, "10M<n<100M"), (10**9, "100M<n<1B"), (10**10, "1B<n<10B"), (10**11, "10B<n<100B"), (10**12, "100B<n<1T"),
)  # fmt: skip
UNSTATED = "not stated"
# https://huggingface.co/docs/hub/repositories-licenses: the Hub refuses a card with any other
HUB_LICENSES = frozenset((
    "apache-2.0", "mit", "openrail", "bigscience-openrail-m", "creativeml-openrail-m", "bigscience-bloom-rail-1.0",
    "bigcode-openrail-m", "afl-3.0", "artistic-2.0", "bsl-1.0", "bsd", "bsd-2-clause", "bsd-3-clause",
    "bsd-3-clause-clear", "c-uda", "cc", "cc0-1.0", "cc-by-2.0", "cc-by-2.5", "cc-by-3.0", "cc-by-4.0",
    "cc-by-sa-3.0", "cc-by-sa-4.0", "cc-by-nc-2.0", "cc-by-nc-3.0", "cc-by-nc-4.0", "cc-by-nd-4.0",
    "cc-by-nc-nd-3.0", "cc-by-nc-nd-4.0", "cc-by-nc-sa-2.0", "cc-by-nc-sa-3.0", "cc-by-nc-sa-4.0",
    "cdla-sharing-1.0", "cdla-permissive-1.0", "cdla-permissive-2.0", "wtfpl", "ecl-2.0", "epl-1.0", "epl-2.0",
    "etalab-2.0", "eupl-1.1", "eupl-1.2", "agpl-3.0", "gfdl", "gpl", "gpl-2.0", "gpl-3.0", "lgpl", "lgpl-2.1",
    "lgpl-3.0", "isc", "ms-pl", "mpl-2.0", "odc-by", "odbl", "openrail++", "osl-3.0", "postgresql", "ofl-1.1",
    "ncsa", "unlicense", "zlib", "pddl", "llama2", "llama3", "llama3.1", "llama3.2", "llama3.3", "llama4", "gemma",
    "unknown", "other",
))  # fmt: skip


@dataclass(frozen=True)
class ImportedPart:
    """Answers of a build that draftmill did not have generated: what their import says of them."""

    name: str
    model: str
    revision: str | None
    license: str | None
    answers: int


@dataclass(frozen=True)
class Published:
    """One build as it is published."""

    repo: str
    """What load_dataset's first argument is: a dataset on the Hub, or the folder's name."""
    build_id: str
    manifest: str
    seed: int
    model: str
    model_revision: str | None
    """None where it is not known: no answer was generated."""
    prompts: int
    """Rows of the prompts, the holdout and replicas included."""
    held_out: int
    responses: int | None
    """Rows of the responses; None where they are left out."""
    imported: tuple[ImportedPart, ...] = ()
    """Where those of the responses come from that are imported."""

    @property
    def imported_answers(self) -> int:
        """Responses that are imported."""
        return sum(part.answers for part in self.imported)


def card_text(build: Published, composition: pl.DataFrame, sources: pl.DataFrame, funnel: pl.DataFrame) -> str:
    """The README.md.

    Args:
        composition: rows of the view: stage, category, source, rows, prompts, response_tokens.
        sources: source, dataset, config, split, revision, license.
        funnel: rows of the view: source, reason, rows.
    """
    parts = [
        f"# {escaped(build.manifest)}",
        _what(build),
        "## Composition",
        _by_category(composition, build.responses is not None),
        "Declared shares are of prompts; what is held out is not counted. An answer is one turn.",
        "## Sources",
        _by_source(composition, sources, build.responses is not None),
        _licence_words(sources, build),
        *(["## Imported answers", _by_import(build)] if build.imported else []),
        "## What was dropped, and why",
        _funnel(funnel),
        "## Loading it",
        _loading(build),
        "## Lock",
        "`manifest.lock.yaml` holds the manifest with every default filled in, and how much was read of each source. "
        "What it reads from the Hub is named by its commit: with the same local files it selects the same rows again.",
    ]
    return f"---\n{_metadata(build, sources)}\n---\n\n" + "\n\n".join(parts) + "\n"


def one_license(sources: pl.DataFrame) -> str:
    """The Hub's identifier of the licence that all sources share, `unknown` if none states one, else `other`."""
    stated = {None if name is None else str(name).lower() for name in sources["license"]}
    if stated == {None}:
        return "unknown"
    name = next(iter(stated))
    return name if len(stated) == 1 and name in HUB_LICENSES else "other"


def size_category(rows: int) -> str:
    """The Hub's word for a number of rows."""
    return next((name for limit, name in SIZES if rows < limit), "n>1T")


def _metadata(build: Published, sources: pl.DataFrame) -> str:
    from huggingface_hub import DatasetCardData

    licence = one_license(sources)
    more: dict[str, Any] = {}
    if licence == "other":
        names = sorted({str(name or UNSTATED) for name in sources["license"]})
        more = {"license_name": "by-source", "license_link": "README.md#sources", "licenses": names}
    kinds = CONFIGS if build.responses is not None else CONFIGS[:1]
    configs = [
        {"config_name": kind, "data_files": [{"split": "train", "path": f"data/{kind}-*.parquet"}]} for kind in kinds
    ]
    data = DatasetCardData(
        pretty_name=build.manifest,
        license=licence,
        tags=TAGS,
        size_categories=[size_category(max(build.prompts, build.responses or 0))],
        configs=configs,
        **more,
    )
    return str(data.to_yaml())


def _what(build: Published) -> str:
    answers = f", and {build.responses:,} answers of the target to them" if build.responses is not None else ""
    revision = f" at `{build.model_revision}`" if build.model_revision else ""
    facts = [
        ("manifest", escaped(build.manifest)),
        ("build", f"`{build.build_id}`"),
        ("seed", str(build.seed)),
        ("target", f"{_code(build.model)}{revision}"),
        ("prompts", f"{build.prompts:,}, of which {build.held_out:,} are held out"),
    ]
    if build.responses is not None:
        here = build.responses - build.imported_answers
        facts.append(("answers", f"{build.responses:,}"))
        facts.append(("generated by the target for this corpus", f"{here:,}"))
        facts.append(("imported, made elsewhere before", f"{build.imported_answers:,}"))
    return (
        f"A corpus for training a drafter for speculative decoding: {build.prompts:,} prompts{answers}, put together "
        f"by draftmill. Every row says where it comes from.\n\n{markdown_table(('', ''), facts)}"
    )


def _by_import(build: Published) -> str:
    rows = [
        (
            escaped(part.name),
            _code(part.model),
            _code(part.revision) or UNSTATED,
            escaped(part.license or UNSTATED),
            f"{part.answers:,}",
        )
        for part in build.imported
    ]
    words = (
        "These answers were not generated for this corpus: they were made elsewhere before, and the model is the one "
        "that their import names. Their text is as it was found; their token ids were made again from it with the "
        "target's chat template and tokenizer. How they were sampled and how they ended is not known (`thinking` and "
        "`finish_reason` are null). None of them answers a held-out prompt."
    )
    return f"{words}\n\n{markdown_table(('import', 'model', 'revision', 'licence', 'answers'), rows)}"


def _by_category(composition: pl.DataFrame, answers: bool) -> str:
    import polars as pl

    def of(stage: str, column: str) -> dict[str, int]:
        rows = composition.filter(pl.col("stage") == stage).group_by("category").agg(pl.col(column).sum())
        return {category: int(value or 0) for category, value in rows.iter_rows()}

    declared, selected = of("target", "rows"), of("selected", "rows")
    answered, turns, tokens = of("accepted", "prompts"), of("accepted", "rows"), of("accepted", "response_tokens")
    header = ["category", "declared", "selected", "selected share"]
    header += ["answered", "answered share", "answers", "response tokens"] if answers else []
    lines = []
    for category in sorted(declared | selected, key=lambda name: (-declared.get(name, 0), name)):
        line = [
            escaped(category),
            _share(declared, category),
            f"{selected.get(category, 0):,}",
            _share(selected, category),
        ]
        if answers:
            line += [f"{answered.get(category, 0):,}", _share(answered, category)]
            line += [f"{turns.get(category, 0):,}", f"{tokens.get(category, 0):,}"]
        lines.append(line)
    total = ["all", "", f"{sum(selected.values()):,}", ""]
    total += (
        [f"{sum(answered.values()):,}", "", f"{sum(turns.values()):,}", f"{sum(tokens.values()):,}"] if answers else []
    )
    return markdown_table(header, [*lines, total])


def _by_source(composition: pl.DataFrame, sources: pl.DataFrame, answers: bool) -> str:
    import polars as pl

    counts = (
        composition.filter(pl.col("stage").is_in(["selected", "accepted"]))
        .group_by("source", "stage")
        .agg(pl.col("rows").sum())
    )
    rows = {(source, stage): int(n) for source, stage, n in counts.iter_rows()}
    categories = composition.filter(pl.col("stage") == "selected").group_by("source").agg(pl.col("category").unique())
    given = {source: ", ".join(escaped(name) for name in sorted(names)) for source, names in categories.iter_rows()}
    header = ["source", "categories", "dataset", "revision", "licence", "selected", *(["answers"] if answers else [])]
    lines = []
    for row in sources.sort("source").iter_rows(named=True):
        name = row["source"]
        dataset = " ".join([_code(row["dataset"]), *(escaped(row[key]) for key in ("config", "split") if row[key])])
        licence = escaped(row["license"] or UNSTATED)
        line = [escaped(name), given.get(name, ""), dataset, _code(row["revision"]), licence]
        line.append(f"{rows.get((name, 'selected'), 0):,}")
        lines.append([*line, f"{rows.get((name, 'accepted'), 0):,}"] if answers else line)
    return markdown_table(header, lines)


def _licence_words(sources: pl.DataFrame, build: Published) -> str:
    several = "Each prompt is under the licence of its source (column `license`)."
    if build.responses is None:
        return several
    others = " The imported ones are under the licence of their import as well." if build.imported else ""
    return (
        f"{several} The answers were written by {_code(build.model)}; that model's licence may bind their use too."
        f"{others}"
    )


def _funnel(funnel: pl.DataFrame) -> str:
    order = {"read": 0, "selected": 1, "held_out": 2, "not_needed": 3}
    rows = sorted(
        funnel.select("source", "reason", "rows").iter_rows(),
        key=lambda row: (row[0], order.get(row[1], 9), -row[2], row[1]),
    )
    words = "Rows of each source by what became of them; `read` is the sum of the others."
    lines = [(escaped(source), escaped(reason), f"{n:,}") for source, reason, n in rows]
    return f"{words}\n\n{markdown_table(('source', 'became', 'rows'), lines)}"


def _loading(build: Published) -> str:
    lines = ["import datasets", "", f'prompts = datasets.load_dataset("{build.repo}", "prompts", split="train")']
    words = (
        "`messages` and `tools` are JSON, as chat templates take them. Rows with `holdout` are for measuring, never "
        "for training."
    )
    if build.responses is not None:
        lines.append(f'responses = datasets.load_dataset("{build.repo}", "responses", split="train")')
        words += (
            " An answer's prompt has its `prompt_id` and `replica`. Of an answer that was generated for this corpus "
            "`prompt_token_ids` and `token_ids` are exactly what the engine saw and wrote"
        )
        words += (
            "; of an imported one (`imported_from` names its import, else it is null) they are what the target's "
            "template and tokenizer make of its text."
            if build.imported
            else ". `imported_from` is null: none is imported."
        )
    code = "\n".join(lines)
    return f"```python\n{code}\n```\n\n{words}"


def _share(counts: dict[str, int], category: str) -> str:
    whole = sum(counts.values())
    return f"{counts.get(category, 0) / whole:.1%}" if whole else ""


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are Markdown already, but for bars; what looks like a number goes right."""
    body = [[BARE_BAR.sub(r"\|", cell).replace("\n", " ") for cell in row] for row in rows]
    right = [all(_is_number(row[i]) for row in body) for i in range(len(header))]
    return table(header, right, body)


def _is_number(text: str) -> bool:
    return not text or text.rstrip("%").replace(",", "").replace(".", "").isdigit()


def _code(text: Any) -> str:
    return code_span(str(text)) if text else ""
