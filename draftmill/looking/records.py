"""The whole provenance of one thing as a nested mapping: what `show` prints and `show --json` gives.

Keys are words, values are text, numbers, times, lists and mappings; what is not known is None. One function a kind;
each asks by id, so it costs the same on a large ledger. Texts come from the files (draftmill.looking.texts); one that
cannot be read has the reason in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from corpus.ledger.query import LedgerReader
from corpus.ledger.texts import response_texts
from corpus.records import Prompt
from corpus.workspace import Workspace
from draftmill.looking.finding import Match
from draftmill.looking.row_records import fate, places_of, texts_of
from draftmill.looking.work_records import BEST_FIRST, acceptance, build_record, drafter_record, many, one, run_record

Record = dict[str, Any]


def record_of(match: Match, workspace: Workspace, reader: LedgerReader) -> Record:
    """Everything that is known of it."""
    head = {"kind": match.kind, "id": match.id}
    if match.kind == "response":
        return head | _response(match.id, workspace, reader)
    if match.kind == "prompt":
        return head | _prompt(match.id, workspace, reader)
    if match.kind == "source row":
        return head | _source_row(match, workspace, reader)
    if match.kind == "build":
        return head | build_record(match.id, reader)
    if match.kind == "drafter":
        return head | drafter_record(match.id, reader)
    return head | run_record(match.id, reader)


def _prompt_part(prompt_id: str, reader: LedgerReader) -> Record:
    """Where a prompt is from, and what became of it in each build."""
    places = places_of(prompt_id, reader)
    return {"source_rows": places, "builds": fate(prompt_id, places, reader)}


def _prompt(prompt_id: str, workspace: Workspace, reader: LedgerReader) -> Record:
    answers = many(
        reader,
        "response_id build_id replica turn state reason finish_reason response_tokens",
        "WITH best AS (SELECT * FROM responses WHERE prompt_id = $1 QUALIFY row_number() OVER (PARTITION BY "
        f"response_id ORDER BY {BEST_FIRST}) = 1) "
        "SELECT br.response_id, br.build_id, br.replica, br.turn, CASE WHEN r.state = 'accepted' AND "
        "br.left_out IS NOT NULL THEN 'left_out' ELSE coalesce(r.state, 'unfinished') END, "
        "coalesce(br.left_out, r.reason), r.finish_reason, r.response_tokens "
        "FROM (FROM build_responses WHERE prompt_id = $1) br LEFT JOIN best r USING (response_id) "
        "ORDER BY br.build_id, br.replica, br.turn",
        prompt_id,
    )
    return {
        **_prompt_part(prompt_id, reader),
        "answers": answers,
        "text": prompt_text(prompt_id, workspace, reader),
    }


def _source_row(match: Match, workspace: Workspace, reader: LedgerReader) -> Record:
    assert match.place is not None
    pool_id, _, file, row_index = match.place
    ((prompt_id, reason, detail),) = reader.rows(
        "SELECT prompt_id, reason, detail FROM source_rows WHERE pool_id = ? AND chunk = ? AND file = ? "
        "AND row_index = ? LIMIT 1",
        *match.place,
    )
    if prompt_id is None:
        place = places_of(None, reader, match.place)
        return {"source_rows": place, "read": {"prompt": None, "reason": reason, "detail": detail}}
    body = {"prompt_id": prompt_id, **_prompt(prompt_id, workspace, reader)}
    for row in body["source_rows"]:
        row["this_row"] = (row["file"], row["row_index"], row["pool_id"]) == (file, row_index, pool_id)
    return body


def prompt_text(prompt_id: str, workspace: Workspace, reader: LedgerReader) -> Record:
    """Messages and tools of one prompt, or why they cannot be read."""
    found = texts_of([prompt_id], workspace, reader).get(prompt_id)
    if found is None:
        return {"messages": [], "tools": [], "unreadable": "the ledger names no file that holds it"}
    return {"messages": found.messages, "tools": found.tools, "unreadable": found.why}


ATTEMPT = (
    "attempt state reason finish_reason stop_reason prompt_tokens response_tokens reasoning_tokens notes seed engine "
    "device queued_at started_at first_token_at ended_at run_id shard shard_row recipe_id extends_turn"
)


def _response(response_id: str, workspace: Workspace, reader: LedgerReader) -> Record:
    builds = many(
        reader,
        "build_id name prompt_id recipe_id replica turn category source holdout left_out",
        "SELECT br.build_id, b.name, br.prompt_id, br.recipe_id, br.replica, br.turn, br.category, br.source, "
        "br.holdout, br.left_out FROM (FROM build_responses WHERE response_id = ?) br LEFT JOIN builds b "
        "USING (build_id) ORDER BY b.created_at DESC",
        response_id,
    )
    attempts = many(
        reader,
        f"prompt_id replica turn {ATTEMPT} place",
        f"SELECT prompt_id, replica, turn, {', '.join(ATTEMPT.split())}, row_number() OVER (ORDER BY {BEST_FIRST}) "
        "FROM responses WHERE response_id = ? ORDER BY attempt, shard, shard_row",
        response_id,
    )
    known = builds[0] if builds else attempts[0]
    prompt_id, turn = known["prompt_id"], known["turn"]
    recipes = {row["recipe_id"] for row in (*builds, *attempts)}
    drafters = many(
        reader,
        "drafter_id build_id algorithm steps created_at",
        "SELECT d.drafter_id, d.build_id, d.algorithm, d.steps, d.created_at FROM (SELECT DISTINCT drafter_id FROM "
        "drafter_responses WHERE response_id = ?) r JOIN drafters d USING (drafter_id) ORDER BY d.created_at",
        response_id,
    )
    measured = sorted({row["drafter_id"] for row in drafters} | _drafters_of(builds, reader))
    categories = sorted({row["category"] for row in builds if row["category"] is not None})
    best = next((row for row in attempts if row["place"] == 1), None)
    return {
        "answer": {
            "prompt_id": prompt_id,
            "replica": known["replica"],
            "turn": turn,
            "state": _state(builds, best),
            "category": ", ".join(categories) or None,
        },
        **_prompt_part(prompt_id, reader),
        "wanted_by": [{key: row[key] for key in ("build_id", "name", "category", "source", "holdout", "left_out")}
                     for row in builds],
        "imported_row": many(
            reader, "import_id name file row_index upstream_id",
            "SELECT a.import_id, i.name, a.file, a.row_index, a.upstream_id FROM (FROM imported_answers WHERE "
            "response_id = ?) a LEFT JOIN imports i USING (import_id) ORDER BY ALL", response_id,
        ),
        "recipe": [_recipe(recipe_id, reader) for recipe_id in sorted(recipes)],
        "attempts": [{key: row[key] for key in ATTEMPT.split() if key != "recipe_id"} for row in attempts],
        "hidden_states": _hidden(response_id, reader),
        "drafters_trained_on_it": drafters,
        "acceptance_of_its_category": acceptance(measured, categories, reader),
        "text": _answered_text(prompt_id, known | {"response_id": response_id}, best, workspace, reader),
    }  # fmt: skip


def _state(builds: Sequence[Record], best: Record | None) -> str:
    if best is None:
        return "unfinished"
    left_out = bool(builds) and all(row["left_out"] for row in builds)
    return "left out" if left_out and best["state"] == "accepted" else str(best["state"])


def _recipe(recipe_id: str, reader: LedgerReader) -> Record:
    names = "model revision dtype thinking temperature max_tokens"
    known = one(reader, names, f"SELECT {', '.join(names.split())} FROM recipes WHERE recipe_id = ?", recipe_id)
    imported = one(reader, "imported_from", "SELECT name FROM imports WHERE import_id = ?", recipe_id)
    return {"recipe_id": recipe_id, **(known or {}), **(imported or {})}


def _hidden(response_id: str, reader: LedgerReader) -> list[Record]:
    rows = many(
        reader,
        "capture_id shard shard_row tokens model layer_ids dtype",
        "SELECT h.capture_id, h.shard, h.shard_row, h.tokens, c.model, c.layer_ids, c.dtype FROM "
        "(FROM hidden_rows WHERE response_id = ?) h LEFT JOIN captures c USING (capture_id) ORDER BY ALL",
        response_id,
    )
    for row in rows:
        row["shard"] = f"hidden/{row['capture_id']}/{row['shard']}"
    return rows + many(
        reader, "capture_id not_captured tokens device",
        "SELECT capture_id, reason, tokens, device FROM hidden_failures WHERE response_id = ? ORDER BY ALL",
        response_id,
    )  # fmt: skip


def _drafters_of(builds: Sequence[Record], reader: LedgerReader) -> set[str]:
    ids = [row["build_id"] for row in builds]
    return {str(row[0]) for row in reader.rows("SELECT drafter_id FROM drafters WHERE list_contains(?, build_id)", ids)}


def _answered_text(
    prompt_id: str, known: Record, best: Record | None, workspace: Workspace, reader: LedgerReader
) -> Record:
    """What the target was shown before this turn, and what it answered; earlier answers too."""
    text = prompt_text(prompt_id, workspace, reader)
    turn, recipe_id, replica = known["turn"], known.get("recipe_id"), known["replica"]
    earlier = reader.rows(
        "SELECT turn, shard, shard_row, response_id FROM accepted_responses WHERE prompt_id = ? AND recipe_id = ? "
        "AND replica = ? AND turn < ? ORDER BY turn",
        prompt_id, recipe_id, replica, turn,
    )  # fmt: skip
    places = [(earlier_id, shard, row) for _, shard, row, earlier_id in earlier]
    own = (best["shard"], best["shard_row"]) if best else None
    read = response_texts(workspace, [*places, *([(known["response_id"], *own)] if own else [])])
    texts = {place[0]: (read[place[1], place[2]], place[3]) for place in earlier}
    messages = _context(text["messages"], turn, texts)
    answer = read[own] if own else None
    return {
        "messages": messages,
        "tools": text["tools"],
        "answer": answer.text if answer and answer.why is None else None,
        "unreadable": text["unreadable"] or (answer.why if answer else None),
    }


def _context(messages: list[Record], turn: int, answers: dict[int, Any]) -> list[Record]:
    """Messages before a turn, the target's earlier answers in their places."""
    prompt = Prompt(tuple(messages))
    ends = prompt.ends() if messages else []
    if not ends or turn >= len(ends):
        return messages
    if prompt.recorded:
        return messages[: ends[turn]]
    shown: list[Record] = []
    for at in range(turn + 1):
        shown += messages[ends[at - 1] if at else 0 : ends[at]]
        if at < turn:
            text, response_id = answers.get(at, (None, None))
            content = text.text if text and text.why is None else None
            shown.append({"role": "assistant", "content": content, "response_id": response_id})
    return shown
