"""A model's config.json, as far as several stages read it. Pure."""

from __future__ import annotations

from typing import Any


def text_config(model_config: dict[str, Any]) -> dict[str, Any]:
    """The part of a config.json that is about the language model, alone or beside a vision tower."""
    for name in ("text_config", "llm_config", "language_config"):
        inner = model_config.get(name)
        if isinstance(inner, dict) and "num_hidden_layers" in inner:
            return inner
    return model_config
