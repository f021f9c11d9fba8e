"""What composition comes to, kept in the ledger as it is published, so that asking does not count a million rows again.

Kept is what the view itself counts, in a transaction of its own; nothing is added up on the way. The view takes it only
while `fingerprint`, rows and sums of every table that is counted, is what it was then, and counts anew otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection as Connection

HOLDS = "SELECT count(*) FROM kept_fingerprint WHERE counts IS NOT DISTINCT FROM (SELECT counts FROM fingerprint)"


def keep_composition(connection: Connection) -> bool:
    """Count the composition of every build and keep it; False if what is kept holds."""
    kept = connection.execute(HOLDS).fetchone()
    if kept and kept[0]:
        return False
    for table in ("kept_fingerprint", "kept_composition"):
        connection.execute(f"DELETE FROM {table}")
    connection.execute("INSERT INTO kept_composition SELECT * FROM counted_composition")
    connection.execute("INSERT INTO kept_fingerprint SELECT counts FROM fingerprint")
    return True
