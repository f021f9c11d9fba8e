"""The folder that one project's runs share: where things lie, and who may write.

One coordinator at a time holds an flock on workspace.lock; the file says who it is. Readers need no lock:
they open the published snapshot. Ids name files, so a path is never stored in an identity.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from corpus.artefacts import WORKSPACE_LOCK, full_disk
from corpus.errors import UserError

LEDGER, SNAPSHOT = "ledger.duckdb", "ledger.snapshot.duckdb"


def is_workspace(folder: Path) -> bool:
    """Whether a folder is one, whatever of it is left."""
    return any(os.path.lexists(folder / name) for name in (WORKSPACE_LOCK, LEDGER, SNAPSHOT))


@dataclass(frozen=True)
class Workspace:
    """Paths below one root."""

    root: Path

    def __post_init__(self) -> None:
        """Raises UserError for names that DuckDB does not take as they are."""
        name = str(self.root.absolute())
        if "?" in name or (not name.isascii() and name.encode("utf-8", "replace").decode() != name):
            raise UserError(f"{str(self.root)!a}: a workspace's path may not hold `?` or text that is not UTF-8.")

    @property
    def lock(self) -> Path:
        """Who coordinates."""
        return self.root / WORKSPACE_LOCK

    @property
    def ledger(self) -> Path:
        """Opened by the coordinator alone."""
        return self.root / LEDGER

    @property
    def snapshot(self) -> Path:
        """What every reader opens."""
        return self.root / SNAPSHOT

    def published(self) -> Path:
        """The snapshot.

        Raises:
            UserError: none is published yet.
        """
        if not self.snapshot.exists():
            raise UserError(
                f"{self.root.absolute()}: holds no published ledger. It is the workspace that -w or "
                "DRAFTMILL_WORKSPACE chooses, else ./workspace, wherever the manifest lies. Choose the one that was "
                f"built in, or run `draftmill build MANIFEST -w {shlex.quote(str(self.root))}` first."
            )
        return self.snapshot

    def pool(self, pool_id: str) -> Path:
        """Folder of one source's normalised rows."""
        return self.root / "pools" / pool_id

    def candidates(self, candidates_id: str) -> Path:
        """Folder of one nested order."""
        return self.root / "candidates" / candidates_id

    def build(self, build_id: str) -> Path:
        """Folder of one build."""
        return self.root / "builds" / build_id

    def imported(self, import_id: str) -> Path:
        """Folder that describes one imported corpus."""
        return self.root / "imports" / import_id

    @property
    def responses(self) -> Path:
        """Folder of response shards."""
        return self.root / "responses"

    def hidden(self, capture_id: str) -> Path:
        """Folder of one capture's shards."""
        return self.root / "hidden" / capture_id

    def drafter(self, drafter_id: str) -> Path:
        """Folder of one drafter."""
        return self.root / "drafters" / drafter_id

    def run(self, run_id: str) -> Path:
        """Folder of one execution's logs and samples."""
        return self.root / "runs" / run_id

    @property
    def cache(self) -> Path:
        """Things that cost only time to make again."""
        return self.root / "cache"

    def coordinator(self) -> str | None:
        """Who writes here now, in words; None if nobody does. Takes no lock: that could refuse a starting run."""
        try:
            inode = self.lock.stat().st_ino
            locks = Path("/proc/locks").read_text().splitlines()
            held = any("FLOCK" in line and f":{inode} " in line for line in locks)
            return _owner(self.lock.read_bytes()) if held else None
        except OSError:
            return None

    @contextmanager
    def coordinate(self, command: str) -> Iterator[None]:
        """Hold the workspace while `command` writes.

        Raises:
            UserError: another process coordinates, or the folder cannot be written.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.lock, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            reason = full_disk(error, self.root) or f"{self.root}: cannot be a workspace ({error.strerror})."
            raise UserError(reason) from error
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise UserError(_busy(self.root, os.read(handle, 4096))) from error
            owner = {
                "pid": os.getpid(),
                "host": socket.gethostname(),
                "command": command,
                "since": datetime.now(UTC).isoformat(timespec="seconds"),
            }
            os.ftruncate(handle, 0)
            os.pwrite(handle, json.dumps(owner).encode(), 0)
            yield
        except OSError as error:
            full = full_disk(error, Path(error.filename) if isinstance(error.filename, str) else self.lock)
            if full is None:
                raise
            raise UserError(full) from error
        finally:
            os.close(handle)


def _owner(written: bytes) -> str:
    try:
        who = json.loads(written)
        return f"`draftmill {who['command']}`, process {who['pid']} on {who['host']}, since {who['since']}"
    except (ValueError, KeyError, TypeError):
        return "another process"


def _busy(root: Path, written: bytes) -> str:
    return (
        f"{root}: {_owner(written)} is writing here; one coordinator at a time. "
        "Wait for it, stop it, or choose another --workspace."
    )
