"""The target model as everything before the engine sees it: a folder, a revision, a tokenizer and a template.

No torch. A Hub id is resolved to a commit, a local folder to a digest of its files, a .gguf file to the folder
that it is converted to once. Prompts are rendered by the model's own chat template (or the manifest's) and
tokenised without adding anything: what the engine is shown is exactly these token ids.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corpus.errors import RowError, UserError, first_line
from corpus.gguf import ensure_converted, is_gguf_target
from corpus.manifest import Target
from corpus.records import Message
from corpus.sources import FileDigests

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt", "tokenizer_config.json")


@dataclass(frozen=True)
class ResolvedTarget:
    """A target at one revision. `folder` is where it lies on this machine and enters no identity."""

    target: Target
    revision: str
    folder: Path
    template: str
    tokenizer_hash: str

    @property
    def template_hash(self) -> str:
        """Digest of the chat template's text."""
        return hashlib.sha256(self.template.encode()).hexdigest()[:24]

    def identity(self) -> dict[str, Any]:
        """What recipes and captures say of the target."""
        return {
            "model": self.target.model,
            "revision": self.revision,
            "tokenizer": self.tokenizer_hash,
            "template": self.template_hash,
        }

    @property
    def config(self) -> dict[str, Any]:
        """The model's config.json."""
        body: dict[str, Any] = json.loads((self.folder / "config.json").read_text())
        return body


def resolve_target(target: Target, base: Path, digests: FileDigests, *, tokenizer_only: bool = False) -> ResolvedTarget:
    """Find the target; relative paths are taken from the manifest's folder. Of a Hub model, all but the weights.

    With `tokenizer_only` a local folder needs no weights, and its revision says nothing of them.

    Raises:
        UserError: there is no such model, or its folder lacks weights, tokenizer or template.
    """
    if is_gguf_target(target.model):
        folder = ensure_converted(target.model, base)
        revision = _folder_digest(folder, digests)
    elif local_folder(target, base).is_dir():
        folder = local_folder(target, base)
        if tokenizer_only:
            _check_tokenizer(folder, target.model)
            revision = _tokenizer_hash(folder, digests)
        else:
            _check_folder(folder, target.model)
            revision = _folder_digest(folder, digests)
    else:
        looked_at = local_folder(target, base).absolute()
        if _is_path(target.model):
            raise UserError(
                f"target {target.model}: there is no folder {looked_at}. Relative paths start at the manifest's folder."
            )
        folder, revision = _from_hub(target, looked_at, weights=False)
    return ResolvedTarget(target, revision, folder, _template(target, base, folder), _tokenizer_hash(folder, digests))


def fetch_weights(resolved: ResolvedTarget, base: Path) -> None:
    """Bring a Hub model's weights to this machine, into the folder that is resolved already.

    Raises:
        UserError: the Hub refuses, or files are missing.
    """
    target = resolved.target
    if is_gguf_target(target.model) or local_folder(target, base).is_dir():
        return
    asked = target.model_copy(update={"revision": resolved.revision})
    folder, _ = _from_hub(asked, local_folder(target, base).absolute(), weights=True)
    _check_folder(folder, target.model)


class Renderer:
    """Messages to the text and token ids that the target is shown."""

    def __init__(self, resolved: ResolvedTarget) -> None:
        import transformers

        transformers.utils.logging.set_verbosity_error()
        try:
            self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(
                resolved.folder, trust_remote_code=resolved.target.trust_remote_code
            )
        except Exception as error:  # tokenizers raises Exception itself, transformers whatever a config runs into
            first = first_line(error)
            raise UserError(f"target {resolved.target.model}: its tokenizer cannot be loaded ({first}).") from error
        self.template = resolved.template

    def text(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]], thinking: bool) -> str:
        """The prompt as text, up to where the assistant's answer begins.

        Raises:
            RowError: template_error, where the template refuses these messages.
        """
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    list(messages),
                    tools=list(tools) or None,
                    chat_template=self.template,
                    tokenize=False,
                    add_generation_prompt=True,
                    enable_thinking=thinking,
                )
            )
        except Exception as error:  # a template runs what it likes: it may divide by zero
            raise RowError("template_error", str(error).splitlines()[0][:200] if str(error) else "") from error

    def text_or_none(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]], thinking: bool) -> str | None:
        """`text`, or None where the template refuses these messages."""
        try:
            return self.text(messages, tools, thinking)
        except RowError:
            return None

    def lengths(self, texts: list[str]) -> list[int]:
        """How many token ids `encode` gives for each text; offsets, which cost most, are not worked out."""
        if not texts:
            return []
        backend = self.tokenizer.backend_tokenizer if self.tokenizer.is_fast else None
        if backend is None or backend.truncation or backend.padding or self.tokenizer.split_special_tokens:
            return [len(ids) for ids in self.encode(texts)]
        return [len(encoding) for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)]

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Token ids of texts, nothing added."""
        if not texts:
            return []
        ids: list[list[int]] = self.tokenizer(texts, add_special_tokens=False)["input_ids"]
        return ids


def local_folder(target: Target, base: Path) -> Path:
    """Where the model is, if it is a folder of this machine."""
    return base / Path(target.model).expanduser()


def _is_path(model: str) -> bool:
    """Whether it cannot be a name on the Hub, which is NAME or OWNER/NAME."""
    return model.startswith(("/", "~", ".")) or model.endswith("/") or model.count("/") > 1 or "\\" in model


def _from_hub(target: Target, looked_at: Path, weights: bool) -> tuple[Path, str]:
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        RepositoryNotFoundError,
    )
    from huggingface_hub.utils import httpx

    at = f"target {target.model}"
    try:
        revision = str(HfApi().model_info(target.model, revision=target.revision).sha)
        patterns = ["*.json", "*.model", "*.txt", "*.jinja", *(["*.safetensors"] if weights else [])]
        return Path(snapshot_download(target.model, revision=revision, allow_patterns=patterns)), revision
    except GatedRepoError as error:
        page = f"https://huggingface.co/{target.model}"
        raise UserError(
            f"{at} is gated. Accept its terms at {page}, then set HF_TOKEN or run `hf auth login`."
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise UserError(
            f"{at}: neither a folder here ({looked_at}) nor a model on the Hub (a private one needs HF_TOKEN)."
        ) from error
    except (httpx.HTTPError, OSError, ValueError) as error:
        first = first_line(error)[:200]
        raise UserError(
            f"{at}: there is no folder {looked_at}, and the Hub cannot be asked ({first}). Is the Hub reachable "
            "(HF_ENDPOINT)?"
        ) from error


def _check_folder(folder: Path, model: str) -> None:
    if not (folder / "config.json").exists():
        raise UserError(f"target {model}: {folder} has no config.json; a Hugging Face model folder is expected.")
    weights = list(folder.glob("*.safetensors"))
    index = folder / "model.safetensors.index.json"
    if index.exists():
        try:
            needed = set(json.loads(index.read_text())["weight_map"].values())
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"target {model}: {index} cannot be read. Fetch it again.") from error
        missing = sorted(needed - {path.name for path in weights})
        if missing:
            raise UserError(f"target {model}: {folder} lacks {len(missing)} weight files, {missing[0]} first.")
    if not weights:
        raise UserError(f"target {model}: {folder} has no weights (*.safetensors). Fetch the whole model.")
    empty = [path.name for path in weights if path.stat().st_size < 8]
    if empty:
        raise UserError(f"target {model}: {folder}: {empty[0]} is empty. Fetch it again.")
    _check_tokenizer(folder, model)


def _check_tokenizer(folder: Path, model: str) -> None:
    if not any((folder / name).exists() for name in TOKENIZER_FILES[:3]):
        raise UserError(f"target {model}: {folder} has no tokenizer (tokenizer.json).")


def _template(target: Target, base: Path, folder: Path) -> str:
    if target.chat_template is not None:
        path = base / target.chat_template
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"target.chat_template: {path} cannot be read ({error}).") from error
    if (folder / "chat_template.jinja").exists():
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    try:
        template = json.loads((folder / "tokenizer_config.json").read_text()).get("chat_template")
    except (OSError, ValueError):
        template = None
    if isinstance(template, list):
        template = next((entry["template"] for entry in template if entry.get("name") == "default"), None)
    if not isinstance(template, str):
        raise UserError(f"target {target.model}: has no chat template. Name a Jinja file in target.chat_template.")
    return template


def _tokenizer_hash(folder: Path, digests: FileDigests) -> str:
    marks = {name: digests.sha256(folder / name) for name in TOKENIZER_FILES if (folder / name).exists()}
    return hashlib.sha256(json.dumps(marks, sort_keys=True).encode()).hexdigest()[:24]


def _folder_digest(folder: Path, digests: FileDigests) -> str:
    files = [*sorted(folder.glob("*.safetensors")), folder / "config.json"]
    marks = {path.name: digests.sha256(path) for path in files}
    return hashlib.sha256(json.dumps(marks, sort_keys=True).encode()).hexdigest()[:40]
