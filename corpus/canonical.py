"""Canonical JSON and the digests that identities are made of.

Canonical JSON has sorted keys, no spaces and is UTF-8; a digest is SHA-256 over it with a prefix that names
the kind and its version, so that two kinds never meet and a changed rule never reads as an old one. Text
that is not valid Unicode has no canonical form: it is a RowError.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from corpus.errors import RowError


def canonical_json(value: Any) -> str:
    """The one JSON text of a value made of dict, list, str, int, float, bool and None.

    Raises:
        RowError: invalid_unicode, where a string holds a lone surrogate; not_json for NaN and the like.
    """
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:  # a date from parquet, NaN, a thousand levels
        raise RowError("not_json", str(error)[:200]) from error
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RowError("invalid_unicode", f"lone surrogate at character {error.start}") from error
    return text


def digest(kind: str, value: Any, *, version: int = 1, length: int = 32) -> str:
    """`length` hex digits that identify a value of this kind, as `kind`-prefixed SHA-256."""
    data = f"{kind}:v{version}:{canonical_json(value)}".encode()
    return hashlib.sha256(data).hexdigest()[:length]
