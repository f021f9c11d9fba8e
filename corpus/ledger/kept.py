"""What composition comes to, kept in the ledger when a run ends, so that asking does not count a million rows again.

Kept is what the view itself counts, in the transaction that ends the run; nothing is added up on the way. The view
takes it only while `fingerprint`, rows and sums of every table that is counted, is what it was then, and counts anew
otherwise. While a run goes on, a child process counts it in the copy that is published.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection as Connection

HOLDS = "SELECT count(*) FROM kept_fingerprint WHERE counts IS NOT DISTINCT FROM (SELECT counts FROM fingerprint)"


CHILD_THREADS = 2
CHILD_LIMIT_S = 120.0
"""A child that takes longer is ended, and the copy is published without."""


def is_kept(connection: Connection) -> bool:
    """True if what is kept is what would be counted."""
    kept = connection.execute(HOLDS).fetchone()
    return bool(kept and kept[0])


def keep_composition(connection: Connection) -> bool:
    """Count the composition of every build and keep it; False if what is kept holds."""
    if is_kept(connection):
        return False
    for table in ("kept_fingerprint", "kept_composition"):
        connection.execute(f"DELETE FROM {table}")
    connection.execute("INSERT INTO kept_composition SELECT * FROM counted_composition")
    connection.execute("INSERT INTO kept_fingerprint SELECT counts FROM fingerprint")
    return True


def kept_by_child(path: Path) -> bool:
    """Keep it in a ledger that nobody has open, in a process of its own; False: that failed, and it is spoilt."""
    packages = str(Path(__file__).resolve().parents[2])
    script = f"from corpus.ledger.kept import keep_in_file; keep_in_file({str(path.absolute())!r})"
    try:
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, check=False, timeout=CHILD_LIMIT_S,
            env=os.environ | {"PYTHONPATH": packages},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def keep_in_file(path: str) -> None:
    """Keep it in a ledger that nobody has open."""
    import duckdb

    with duckdb.connect(path, config={"threads": CHILD_THREADS}) as connection:
        connection.execute("BEGIN")
        keep_composition(connection)
        connection.execute("COMMIT")
