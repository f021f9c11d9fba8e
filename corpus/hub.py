"""Datasets on the Hub, by id or as hf:// paths: to a commit, a list of files, and files that open without a download.

Which files a configuration and a split are is asked of `datasets`, which knows cards and naming patterns but runs no
code of a dataset. Files are read in ranges through huggingface_hub's file system, and no further than a reader asks.
What was found at a full commit never changes, so it is remembered, and found again without a network. What the Hub
refuses is one line that says what to do.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, cast
from urllib.parse import unquote

from corpus.artefacts import write_text
from corpus.canonical import digest
from corpus.errors import RowError, UserError, first_line
from corpus.manifest import Source
from corpus.pieces import SUFFIXES, SourceFile, called, file_kind

HF = "hf://"
CONVERTED = "refs/convert/"
"""The Hub's own parquet copy of a dataset; refs/convert/parquet@COMMIT is one commit of it."""
_PATH = re.compile(r"hf://datasets/([^/@]+/[^/@]+)(?:@(refs/[^/]+/[^/]+|[^/]+))?(?:/(.*))?", re.DOTALL)
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Listing:
    """A source on the Hub at one commit."""

    repository: str
    commit: str
    names: list[str]
    license: str | None
    rows: int | None


def find_on_hub(source: Source, memory: Path) -> Listing:
    """The commit and the files of a source on the Hub. `memory` is a file of what was found before.

    Raises:
        UserError: nothing is there, or the Hub refuses or is out of reach.
    """
    repository, revision, pattern = _asked(source)
    key = json.dumps([source.dataset or source.path, source.config, source.split, revision])
    known = _remembered(memory)
    if key in known:
        return Listing(**known[key])
    listing = _find(source, repository, revision, pattern)
    if _COMMIT.fullmatch(revision):
        known[key] = asdict(listing)
        write_text(memory, json.dumps({"of": digest("listings", known), "listings": known}))
    return listing


def hub_file(source: Source, listing: Listing, name: str) -> SourceFile:
    """A file of a listing; nothing is asked before it is opened."""
    from huggingface_hub.utils import httpx

    path = f"datasets/{listing.repository}@{listing.commit}/{name}"
    explain = partial(_problem, repository=listing.repository, revision=listing.commit, reading=True)
    return SourceFile(name, partial(_open, path), (httpx.HTTPError,), explain)


def without_revision(path: str) -> str:
    """An hf:// path without the revision that it names."""
    match = _PATH.fullmatch(path)
    return path if match is None or match[2] is None else path.replace(f"@{match[2]}", "", 1)


def pinned_revision(revision: str, commit: str) -> str:
    """A dataset's revision with the commit that it was read at: what lies at the Hub's own copy is laid out by name."""
    return f"{revision.partition('@')[0]}@{commit}" if revision.startswith(CONVERTED) else commit


def _open(path: str) -> IO[bytes]:
    from huggingface_hub import HfFileSystem

    # the readers choose what they read; a cache between them and the Hub would fetch more
    return cast(IO[bytes], HfFileSystem().open(path, "rb", cache_type="none"))


def _asked(source: Source) -> tuple[str, str, str | None]:
    """(repository, revision, pattern of files or None) of a source."""
    if source.dataset is not None:
        return source.dataset, source.revision, None
    match = _PATH.fullmatch(source.path or "")
    if match is None:
        form = "hf://datasets/OWNER/NAME[@REVISION]/FILE, FOLDER or GLOB"
        raise UserError(f"source {source.name}: path {ascii(source.path)[:200]}: {form} is expected.")
    repository, revision, pattern = match.groups()
    if revision and source.revision not in ("main", unquote(revision)):
        raise UserError(f"source {source.name}: path says @{revision}, revision says {source.revision}. Remove one.")
    return repository, unquote(revision) if revision else source.revision, (pattern or "").strip("/")


def _find(source: Source, repository: str, revision: str, pattern: str | None) -> Listing:
    from huggingface_hub import HfApi, constants
    from huggingface_hub.utils import httpx

    at = f"{called(source.name)}: {f'dataset {source.dataset}' if source.dataset else f'path {source.path}'}"
    try:
        at_commit = revision.partition("@")[2] if revision.startswith(CONVERTED) else ""
        info = HfApi().dataset_info(repository, revision=at_commit or revision, timeout=constants.HF_HUB_ETAG_TIMEOUT)
        commit, there = str(info.sha), sorted(one.rfilename for one in info.siblings or ())
        rows = None
        if pattern is not None:
            names = _matching(there, pattern)
            if not names:
                raise UserError(f"{at}: no file there at {commit[:12]}; {', '.join(SUFFIXES)} (.gz, .zst).")
        elif revision.startswith(CONVERTED):
            names = _converted(source, there, at)
        else:
            _refuse_script(source, repository, there, at)
            names, rows = _split_files(source, commit, at)
    except (httpx.HTTPError, OSError, ValueError, RuntimeError) as error:
        raise UserError(f"{at}: {_problem(error, repository, revision)}") from error
    if pattern is None:
        names = [name for name in names if file_kind(name)]
    if not names:
        raise UserError(f"{at}: split {source.split} has no files that are read ({', '.join(SUFFIXES)}).")
    card = getattr(info, "card_data", None)
    licence = card.get("license") if card is not None else None
    return Listing(repository, commit, names, _license_text(licence), rows)


def _license_text(licence: Any) -> str | None:
    """A card's licence, which may be a list of several."""
    return ", ".join(map(str, licence)) if isinstance(licence, list) else str(licence) if licence else None


def _matching(names: list[str], pattern: str) -> list[str]:
    """Names that a path inside a repository means: a file, a folder, or a glob."""
    from fsspec.utils import glob_translate

    if pattern in names:
        return [pattern]
    if any(char in pattern for char in "*?["):
        matches = re.compile(glob_translate(pattern)).match
        return [name for name in names if matches(name)]
    folder = f"{pattern}/" if pattern else ""
    return [name for name in names if name.startswith(folder) and file_kind(name)]


def _refuse_script(source: Source, repository: str, there: list[str], at: str) -> None:
    """A dataset that is a Python script: `datasets` 4 and newer runs none, whatever trust_remote_code says."""
    script = f"{repository.rsplit('/', 1)[-1]}.py"
    if script in there:
        raise UserError(
            f"{at}: is loaded by a script ({script}), and no script is run. Take the Hub's own parquet copy: "
            f"revision: {CONVERTED}parquet (trust_remote_code changes nothing here)."
        )


def _converted(source: Source, there: list[str], at: str) -> list[str]:
    """Files of the Hub's parquet copy, which lie in CONFIG/SPLIT/, or CONFIG/partial-SPLIT/ where it is cut."""
    folders = {tuple(name.split("/")[:2]) for name in there if name.count("/") > 1 and file_kind(name)}
    configs = sorted({config for config, _ in folders})
    config = source.config or (configs[0] if len(configs) == 1 else "default")
    if config not in configs:
        raise UserError(f"{at}: has no configuration {config}; it has {', '.join(configs) or 'none'}. Set config:.")
    splits = sorted({split.removeprefix("partial-") for name, split in folders if name == config})
    if source.split not in splits:
        raise UserError(f"{at}: has no split {source.split}; it has {', '.join(splits)}.")
    below = tuple(f"{config}/{cut}{source.split}/" for cut in ("", "partial-"))
    return [name for name in there if name.startswith(below)]


def _split_files(source: Source, commit: str, at: str) -> tuple[list[str], int | None]:
    """(files, rows if its card says so) of a configuration's split."""
    import datasets

    try:
        builder = datasets.load_dataset_builder(source.dataset, source.config, revision=commit)
    except ValueError as error:  # it says that a configuration is missing on its second line
        configs = datasets.get_dataset_config_names(source.dataset, revision=commit)
        if source.config in configs or (source.config is None and len(configs) < 2):
            raise
        has = f"has no configuration {source.config}" if source.config else f"has {len(configs)} configurations"
        raise UserError(f"{at}: {has}. Set config: to one of {', '.join(configs[:20])}.") from error
    data_files = builder.config.data_files or {}
    if source.split not in data_files:
        raise UserError(f"{at}: has no split {source.split}; it has {', '.join(sorted(map(str, data_files)))}.")
    mark = f"@{commit}/"
    names = [str(url).split(mark, 1)[1] for url in data_files[source.split] if mark in str(url)]
    splits = builder.info.splits or {}
    rows = splits[source.split].num_examples if source.split in splits else None
    return names, rows or None


def _problem(error: BaseException, repository: str, revision: str, reading: bool = False) -> str:
    """What the Hub's refusal means, and the next step."""
    from huggingface_hub.errors import (
        GatedRepoError,
        RemoteEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    page = f"https://huggingface.co/datasets/{repository}"
    for one in _causes(error):
        if isinstance(one, GatedRepoError):
            return f"is gated. Accept its terms at {page}, then set HF_TOKEN or run `hf auth login`."
        if isinstance(one, RevisionNotFoundError):
            return f"has no revision {revision}."
        if isinstance(one, RepositoryNotFoundError):
            any_more = " any more" if reading else ""
            return f"does not exist on the Hub{any_more}, or needs a token (HF_TOKEN or `hf auth login`)."
        if isinstance(one, RemoteEntryNotFoundError) or (reading and isinstance(one, FileNotFoundError)):
            return f"is not on the Hub any more at {revision[:12]} ({page}). Choose another revision."
    first = first_line(error)[:200]
    if reading:
        return f"cannot be read on ({first}). Is the Hub reachable (HF_ENDPOINT)? Run again: what was read is kept."
    return f"cannot be resolved ({first}). Is the Hub reachable (HF_ENDPOINT)? Local files go under path:."


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__


def _remembered(memory: Path) -> dict[str, Any]:
    try:
        body = json.loads(memory.read_text())
        if body["of"] == digest("listings", body["listings"]):
            return cast(dict[str, Any], body["listings"])
    except (OSError, ValueError, KeyError, TypeError, RowError):
        pass  # it is only asked again
    return {}
