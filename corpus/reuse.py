"""Imported answers that a build may take in the place of generated ones.

They stay what they are: linked under the recipe that made them, never renamed. A conversation counts whole or not at
all, each turn over its own earlier ones, and only with token ids of the target's own tokenizer and template that fit
its max_model_len. Which corpora count is said in the manifest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from corpus.errors import UserError
from corpus.ledger.writer import Readable
from corpus.manifest import Manifest


@dataclass(frozen=True)
class ImportedConversation:
    """The answers of one row of an imported corpus, one a turn."""

    imported_from: str
    recipe_id: str
    response_ids: tuple[str, ...]


ImportedAnswers = dict[str, list[ImportedConversation]]
"""By prompt_id, in the order in which replicas take them: the manifest's names, then the rows of a corpus."""


def check_imports(manifest: Manifest, target: dict[str, Any], ledger: Readable) -> dict[str, str]:
    """The import_id of every corpus that the manifest names under generation.imported, by name.

    Args:
        target: the resolved target's identity.

    Raises:
        UserError: there is no such import, or its answers are of another model, tokenizer or template.
    """
    names = dict.fromkeys(manifest.generation.imported)
    return {name: _usable_import(manifest, name, target, ledger) for name in names}


def conversation_for(
    imported: Mapping[str, Sequence[ImportedConversation]] | None, prompt_id: str, replica: int, holdout: bool
) -> ImportedConversation | None:
    """The imported conversation that one row of a build takes; None if it is generated, as held-out rows always are."""
    if holdout or not imported:
        return None
    found = imported.get(prompt_id, ())
    return found[replica] if replica < len(found) else None


def imported_answers(manifest: Manifest, target: dict[str, Any], ledger: Readable) -> ImportedAnswers:
    """Every conversation of the corpora that the manifest names under generation.imported.

    Raises:
        UserError: as check_imports.
    """
    found: ImportedAnswers = {}
    for name, import_id in check_imports(manifest, target, ledger).items():
        conversations = ledger.rows(
            """
            SELECT b.prompt_id, list(b.response_id ORDER BY b.turn)
            FROM build_responses b LEFT JOIN accepted_responses r USING (response_id)
            WHERE b.build_id = ?
            GROUP BY b.prompt_id, b.replica
            HAVING bool_and(coalesce(r.response_tokens > 0 AND r.prompt_tokens + r.response_tokens <= ?, false))
            ORDER BY b.prompt_id, b.replica
            """,
            import_id,
            manifest.target.max_model_len,
        )
        for prompt_id, response_ids in conversations:
            found.setdefault(prompt_id, []).append(ImportedConversation(name, import_id, tuple(response_ids)))
    return found


def _usable_import(manifest: Manifest, name: str, target: dict[str, Any], ledger: Readable) -> str:
    """The newest import of this name that fits the target; else why the newest does not."""
    imports = ledger.rows(
        "SELECT import_id, model, tokenizer, template FROM imports WHERE name = ? ORDER BY created_at DESC, import_id",
        name,
    )
    at, model = f"{manifest.name}: generation.imported: {name}", manifest.target.model
    if not imports:
        raise UserError(
            f"{at}: no corpus was imported under this name here. Run `draftmill import PATH --name {name}`."
        )
    wanted = (model, target["tokenizer"], target["template"])
    for import_id, *made_with in imports:
        if tuple(made_with) == wanted:
            return str(import_id)
    _, their_model, tokenizer, _ = imports[0]
    if their_model != model:
        raise UserError(
            f"{at} holds answers of {their_model}, and the target is {model}: a drafter learns its own target alone. "
            "Remove the name, or import the corpus with --model as the manifest's target has it."
        )
    why = "has no token ids" if tokenizer is None else "was tokenised with another tokenizer or chat template"
    also = " --chat-template FILE" if manifest.target.chat_template else ""
    raise UserError(f"{at} {why}. Import it again with --tokenizer {model}{also}: nothing is read or classified twice.")
