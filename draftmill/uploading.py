"""A folder on the Hub: the place, whether it may be written to, the upload, and what went wrong in one line.

The Hub is asked first (is there a token, may it write, is the place as private as was said), then files are uploaded.
An upload that broke off is gone on with by the same call. No message holds the token.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from corpus.errors import UserError, first_line
from corpus.outputs import refuse_own

log = logging.getLogger("draftmill")


@dataclass(frozen=True)
class Place:
    """Where on the Hub; nowhere (None) where a folder is written."""

    repo: str | None
    private: bool
    revision: str | None = None
    kind: Literal["dataset", "model"] = "dataset"

    def words(self) -> str:
        """For a person."""
        branch = f", branch {self.revision}" if self.revision else ""
        return f"{self.repo} ({'private' if self.private else 'public'}{branch})"


def check_place(place: Place, out: Path | None = None) -> None:
    """Look at the names, before anything else.

    Raises:
        UserError: there is no place, it is no name of a repository, or the folder exists.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    if place.repo is None and out is None:
        raise UserError(
            f"push: says not where to. Name the {place.kind} on the Hub as OWNER/NAME, or a folder with --out."
        )
    if place.repo is not None:
        try:
            validate_repo_id(place.repo)
        except HFValidationError as error:
            raise UserError(f"{place.repo!r}: no name of a {place.kind} ({first_line(error)}).") from error
        if "/" not in place.repo:
            raise UserError(f"{place.repo}: names no owner; a {place.kind} on the Hub is owner/name.")
    if out is not None and os.path.lexists(out):
        raise UserError(f"{out}: exists already. Name a new folder with --out.")
    if out is not None:
        refuse_own(out)


def open_repo(place: Place) -> None:
    """Make sure that the repository and the branch are there, and as private as was said.

    Raises:
        UserError: no token, or the Hub refuses or cannot be reached.
    """
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.utils import httpx

    assert place.repo is not None
    if get_token() is None:
        raise UserError(f"{place.repo}: no Hub token. Set HF_TOKEN, or run `hf auth login`, with one that may write.")
    api = HfApi()
    try:
        api.create_repo(place.repo, private=place.private, repo_type=place.kind, exist_ok=True)
        private = bool(api.repo_info(place.repo, repo_type=place.kind).private)
        if place.private and not private:
            raise UserError(f"{place.repo}: is public, and this push is private. Say --public, or make it private.")
        if private and not place.private:
            log.warning("%s is private and stays so", place.repo)
        if place.revision:
            api.create_branch(place.repo, branch=place.revision, repo_type=place.kind, exist_ok=True)
    except (httpx.HTTPError, OSError, ValueError) as error:
        raise UserError(problem(place, error)) from error


def upload(place: Place, folder: Path, message: str, replaced: Sequence[str] = ()) -> str:
    """Upload a folder as one commit; returns its address.

    Args:
        replaced: patterns of files that go, where the folder has none of that name.

    Raises:
        UserError: the Hub refuses or cannot be reached.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.utils import httpx

    assert place.repo is not None
    try:
        commit: Any = HfApi().upload_folder(
            repo_id=place.repo,
            folder_path=folder,
            repo_type=place.kind,
            revision=place.revision,
            commit_message=message,
            delete_patterns=list(replaced) or None,
        )
    except (httpx.HTTPError, OSError, ValueError) as error:
        raise UserError(problem(place, error)) from error
    return str(commit.commit_url)


def problem(place: Place, error: BaseException) -> str:
    """One line; a library that quotes its request's headers quotes the token."""
    from huggingface_hub import get_token
    from huggingface_hub.errors import HfHubHTTPError

    said = first_line(error)[:200].replace(get_token() or "\0", "[token]")
    status = error.response.status_code if isinstance(error, HfHubHTTPError) and error.response is not None else None
    if status in (401, 403):
        return f"{place.repo}: the Hub refuses this token ({status}). Use one that may write there (HF_TOKEN)."
    if status is not None:
        return f"{place.repo}: the Hub refuses the upload ({said})."
    return f"{place.repo}: cannot be uploaded ({said}). Is the Hub reachable (HF_ENDPOINT)?"


def size(size_bytes: float) -> str:
    """Bytes for a person."""
    for unit in ("B", "KB", "MB"):
        if size_bytes < 1000:
            return f"{size_bytes:,.0f} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:,.1f} GB"
