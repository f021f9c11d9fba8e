"""Ids of the ledger: each is the digest of what it names, and whatever is named is there.

Set-wise SQL. `RESPONSE_ID` is identity.response_id in DuckDB's words, so that a million ids are made again in a
second; a test holds the two against each other. An imported answer stands in a build under its own id, made of the
replica that it is in its corpus; so only ids of generated answers follow from the build's row.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from corpus import identity
from corpus.errors import RowError
from corpus.ledger.accounts import REBUILD
from corpus.ledger.findings import MOST_EXAMPLES, Finding, Problems
from corpus.ledger.query import quoted
from corpus.ledger.writer import Readable

RESPONSE_ID = (
    """substr(sha256('response:v1:{"prompt":"' || prompt_id || '","recipe":"' || recipe_id"""
    """ || '","replica":' || replica || ',"turn":' || turn || '}'), 1, 32)"""
)


@dataclass(frozen=True)
class Scope:
    """What is looked at: the whole workspace, or what one build names."""

    build_id: str | None = None

    def where(self, column: str | None) -> str:
        """A condition on one of the columns build_id, candidates_id and response_id."""
        if self.build_id is None or column is None:
            return "true"
        build = quoted(self.build_id)
        return {
            "build_id": f"build_id = {build}",
            "candidates_id": f"candidates_id IN (SELECT candidates_id FROM builds WHERE build_id = {build})",
            "response_id": f"response_id IN (SELECT response_id FROM build_responses WHERE build_id = {build})",
        }[column]


@dataclass(frozen=True)
class Reference:
    """`key` of every row of `table` is a `target_key` of `target`; both keys are SQL expressions."""

    kind: str
    table: str
    key: str
    target: str
    target_key: str
    scope: str | None
    optional: bool = False


OF_CANDIDATES = "candidates_id || '/' || prompt_id"
OF_POOL = "pool_id || '/' || prompt_id"
OF_CAPTURE = "capture_id || '/' || shard"
OF_BUILD = "build_id || '/' || source"
MADE_IN = "(SELECT run_id FROM runs UNION ALL SELECT import_id FROM imports)"
REFERENCES = (
    Reference("selected prompts that are no candidates", "(FROM selections JOIN builds USING (build_id))",
              OF_CANDIDATES, "prompts", OF_CANDIDATES, "build_id"),
    Reference("selections of no source", "selections", OF_BUILD, "sources", OF_BUILD, "build_id"),
    Reference("prompts of no pool", "prompts", "pool_id", "pools", "pool_id", "candidates_id"),
    Reference("prompts of no source row", "prompts", OF_POOL, "source_rows", OF_POOL, "candidates_id"),
    Reference("sources of no pool", "sources", "pool_id", "pools", "pool_id", "build_id"),
    Reference("wanted answers of no build", "build_responses", "build_id", "builds", "build_id", "build_id"),
    Reference("wanted answers of no recipe", "build_responses", "recipe_id", "recipes", "recipe_id", "build_id"),
    Reference("attempts of no recipe", "responses", "recipe_id", "recipes", "recipe_id", "response_id"),
    Reference("attempts of no run", "responses", "run_id", MADE_IN, "run_id", "response_id"),
    Reference("attempts of no shard", "responses", "shard", "response_shards", "shard", "response_id"),
    Reference("imported answers that are none", "imported_answers", "response_id", "responses", "response_id",
              "response_id"),
    Reference("states of no shard", "hidden_rows", OF_CAPTURE, "hidden_shards", OF_CAPTURE, "response_id"),
    Reference("hidden shards of no capture", "hidden_shards", "capture_id", "captures", "capture_id", None),
    Reference("rows set aside of no capture", "hidden_failures", "capture_id", "captures", "capture_id", "response_id"),
    Reference("trained answers that are not accepted", "drafter_responses", "response_id", "accepted_responses",
              "response_id", "response_id"),
    Reference("trained answers of no drafter", "drafter_responses", "drafter_id", "drafters", "drafter_id",
              "response_id"),
    Reference("drafters of no build", "drafters", "build_id", "builds", "build_id", "build_id", optional=True),
)  # fmt: skip


def check_references(ledger: Readable, scope: Scope) -> Finding:
    """Everything that the ledger names is in the ledger."""
    problems, checked = Problems(), 0
    for one in REFERENCES:
        there = f"AND {one.key} IS NOT NULL" if one.optional else ""
        rows, lost, ids = ledger.rows(
            f"SELECT count(*), count(*) FILTER (t.k IS NULL), "
            f"min(DISTINCT coalesce(a.k, 'NULL'), {MOST_EXAMPLES}) FILTER (t.k IS NULL) "
            f"FROM (SELECT {one.key} AS k FROM {one.table} WHERE {scope.where(one.scope)} {there}) a "
            f"LEFT JOIN (SELECT DISTINCT {one.target_key} AS k FROM {one.target}) t USING (k)"
        )[0]
        checked += rows
        problems.add(one.kind, ids or [], lost)
    said = f"{checked:,} of {len(REFERENCES)} kinds"
    return problems.finding("references", checked, said, REBUILD, proven="each leads to something")


def check_ids(ledger: Readable, scope: Scope) -> Finding:
    """Ids of answers and recipes are the digests of what they name; an answer is the one that its build means."""
    problems = Problems()
    imports = "(SELECT import_id FROM imports)"
    checked, wrong, ids = ledger.rows(
        f"""
        WITH named AS (
            SELECT response_id, prompt_id, recipe_id, replica, turn FROM responses WHERE {scope.where("response_id")}
            UNION
            SELECT response_id, prompt_id, recipe_id, replica, turn FROM build_responses
            WHERE {scope.where("build_id")} AND recipe_id NOT IN {imports}
        ), judged AS (SELECT response_id, response_id IS DISTINCT FROM {RESPONSE_ID} AS wrong FROM named)
        SELECT count(*), count(*) FILTER (wrong), min(coalesce(response_id, 'NULL'), {MOST_EXAMPLES}) FILTER (wrong)
        FROM judged
        """
    )[0]
    problems.add("not the digest of prompt, recipe, replica and turn", ids or [], wrong)
    adopted, wrong, ids = ledger.rows(
        f"""
        WITH adopted AS (
            SELECT response_id, prompt_id, recipe_id, turn FROM build_responses
            WHERE {scope.where("build_id")} AND recipe_id IN {imports}
        ), made AS (SELECT DISTINCT response_id, prompt_id, recipe_id, turn, true AS found FROM responses)
        SELECT count(*), count(*) FILTER (found IS NULL), min(response_id, {MOST_EXAMPLES}) FILTER (found IS NULL)
        FROM adopted LEFT JOIN made USING (response_id, prompt_id, recipe_id, turn)
        """
    )[0]
    problems.add("not the imported answer of its prompt and turn", ids or [], wrong)
    recipes = ledger.rows(
        f"SELECT recipe_id, body FROM recipes WHERE recipe_id IN (SELECT recipe_id FROM build_responses "
        f"WHERE {scope.where('build_id')}) OR {'true' if scope.build_id is None else 'false'} ORDER BY recipe_id"
    )
    problems.add("no digest of its recipe", [recipe_id for recipe_id, body in recipes if not _is_of(recipe_id, body)])
    said = f"{checked:,} answers, {len(recipes):,} recipes"
    notes = [f"{adopted:,} of the wanted answers are imported"] if adopted else []
    return problems.finding(
        "ids", checked + len(recipes), said, REBUILD, proven="ids made again, the same", notes=notes
    )


def _is_of(recipe_id: str, body: str) -> bool:
    try:
        return identity.recipe_id(json.loads(body)) == recipe_id
    except (ValueError, TypeError, RowError):
        return False
