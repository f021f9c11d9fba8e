"""A stand-in Hub: a small HTTP server that answers what the real clients ask, and counts what it sends.

Commands against it run in processes of their own, because the clients read HF_ENDPOINT when they are imported.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar
from urllib.parse import unquote

import polars as pl

COMMIT = "c0ffee" + "0" * 34
CARD = b"""---
license: cc-by-4.0
configs:
- config_name: default
  data_files:
  - split: train
    path: data/*.parquet
---
# A small dataset
"""
CONVERTED = "refs/convert/parquet"


def parquet(tag: str, count: int) -> bytes:
    buffer = io.BytesIO()
    pl.DataFrame([{"id": f"{tag}{i}", "prompt": f"{tag} question {i}"} for i in range(count)]).write_parquet(buffer)
    return buffer.getvalue()


def jsonl(tag: str, count: int) -> bytes:
    return "".join(
        json.dumps({"id": f"{tag}{i}", "prompt": f"{tag} question {i}"}) + "\n" for i in range(count)
    ).encode()


@dataclass
class Repository:
    """Files of a dataset at COMMIT, and how the Hub treats it."""

    files: dict[str, bytes]
    license: Any = None
    converted: dict[str, bytes] = field(default_factory=dict)
    """Files of refs/convert/parquet."""
    walled: bool = False
    """Its page is public, its files are gated."""
    gone: set[str] = field(default_factory=set)
    """Listed files that are not there when they are asked for."""
    cut_off: bool = False
    """No answer where a file is asked for: the connection closes."""


class Hub(BaseHTTPRequestHandler):
    """owner/gated asks for terms; datasets and models are what tests put here; everything else is not there."""

    protocol_version = "HTTP/1.1"
    datasets: ClassVar[dict[str, Repository]] = {
        "owner/open": Repository(
            {"README.md": CARD, "data/part-0.parquet": parquet("a", 30), "data/part-1.parquet": parquet("b", 30)},
            "cc-by-4.0",
        )
    }
    models: ClassVar[dict[str, dict[str, bytes]]] = {}
    sent: ClassVar[list[tuple[str, int]]] = []
    """(file, bytes) of each body that was sent."""

    def log_message(self, *_: Any) -> None:
        """The log stays empty."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(self.path.partition("?")[0])
        revision = rf"({CONVERTED}|[\w.-]+)"
        model = re.match(rf"(?:/api/models)?/(owner/[\w-]+)/(revision|tree|resolve)/{revision}/?(.*)$", path)
        if model and model[1] in self.models:
            return self._model(self.models[model[1]], model[2], model[3], model[4])
        asked = re.match(rf"(?:/api)?/datasets/(owner/[\w-]+)(?:/(revision|tree|resolve)/{revision})?/?(.*)$", path)
        if not asked:
            return self._refuse(404, "RepoNotFound")
        name, kind, wanted, rest = asked.groups()
        if name == "owner/gated":
            return self._refuse(403 if self.headers.get("Authorization") else 401, "GatedRepo")
        if name not in self.datasets:
            return self._refuse(401 if name == "owner/private" else 404, "RepoNotFound")
        return self._dataset(name, kind, wanted, rest)

    def _dataset(self, name: str, kind: str | None, revision: str | None, rest: str) -> None:
        repository = self.datasets[name]
        commit = "d" * 40 if revision in (CONVERTED, "d" * 40) else COMMIT
        files = repository.converted if commit != COMMIT else repository.files
        if revision not in (None, "main", COMMIT) and not repository.converted:
            return self._refuse(404, "RevisionNotFound")
        if kind == "tree":
            return self._json(self._listing(files, rest, "recursive=true" in self.path.lower()))
        if kind != "resolve":
            siblings = [{"rfilename": file} for file in files]
            card = {"license": repository.license}
            return self._json({"id": name, "sha": commit, "siblings": siblings, "cardData": card})
        row_file = rest in files and rest != "README.md"
        if repository.cut_off and row_file:
            self.close_connection = True
            return None
        if repository.walled and row_file:
            return self._refuse(403, "GatedRepo")
        return self._refuse(404, "EntryNotFound") if rest in repository.gone else self._file(rest, files, commit)

    def _model(self, files: dict[str, bytes], kind: str, revision: str, name: str) -> None:
        if revision not in ("main", COMMIT):
            return self._refuse(404, "RevisionNotFound")
        if kind == "revision":
            return self._json({"id": "owner/model", "sha": COMMIT, "siblings": [{"rfilename": n} for n in files]})
        if kind == "tree":
            return self._json([{"type": "file", "path": n, "oid": "f" * 40, "size": len(d)} for n, d in files.items()])
        return self._file(name, files)

    def _listing(self, files: dict[str, bytes], folder: str, recursive: bool) -> list[dict[str, Any]]:
        below = {name: name.removeprefix(folder).lstrip("/") for name in files if name.startswith(folder)}
        folders = {name[: len(name) - len(rest)] + rest.split("/")[0] for name, rest in below.items() if "/" in rest}
        plain = [name for name, rest in below.items() if recursive or "/" not in rest]
        return [{"type": "directory", "path": name, "oid": "d" * 40, "size": 0} for name in sorted(folders)] + [
            {"type": "file", "path": name, "oid": "f" * 40, "size": len(files[name])} for name in plain
        ]

    def _file(self, name: str, files: dict[str, bytes], commit: str = COMMIT) -> None:
        data = files.get(name)
        if data is None:
            return self._refuse(404, "EntryNotFound")
        headers = {"X-Repo-Commit": commit, "ETag": f'"{hashlib.sha1(data[:1000]).hexdigest()}"'}  # noqa: S324
        span = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        start, end = (int(span[1]), int(span[2] or len(data) - 1)) if span else (0, len(data) - 1)
        body = data[start : end + 1]
        if self.command == "GET":
            self.sent.append((name, len(body)))
        if span:
            headers["Content-Range"] = f"bytes {start}-{end}/{len(data)}"
        return self._send(206 if span else 200, body, headers)

    def _json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _refuse(self, status: int, code: str) -> None:
        self._send(status, b'{"error": "no"}', {"X-Error-Code": code, "Content-Type": "application/json"})

    def _send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(data))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


@contextmanager
def serving() -> Iterator[str]:
    """The endpoint of a running stand-in."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


NOBODY = "http://127.0.0.1:9"


def environment(endpoint: str, home: Path) -> dict[str, str]:
    hidden = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    return hidden | {"HF_ENDPOINT": endpoint, "HF_HOME": str(home / "hf")}


def draftmill(endpoint: str, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "draftmill", *arguments],
        capture_output=True, text=True, env=environment(endpoint, home), cwd=home, check=False,
    )  # fmt: skip


def python(endpoint: str, home: Path, code: str, *arguments: str) -> list[str]:
    """Lines that a program printed."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True, text=True, env=environment(endpoint, home), cwd=home, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
