"""An error in one line: the line that says it, whatever library raised it and however it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pytest
from pydantic import BaseModel, Field, ValidationError, model_validator

from fleet.process import last_lines
from fleet.worker import child_error, describe


class ModelConfig(BaseModel):
    max_model_len: int = 1

    @model_validator(mode="after")
    def _check(self) -> ModelConfig:
        if self.max_model_len > 10:
            raise ValueError("max_model_len is greater than 10.\nTo allow it, set something.")
        return self


class CacheConfig(BaseModel):
    cache_dtype: Annotated[str, Field(pattern="^fp8$")]
    block_size: int = 0


def refused(kind: type[BaseModel], **values: object) -> ValidationError:
    with pytest.raises(ValidationError) as caught:
        kind(**values)
    return caught.value


def test_a_refused_value_is_named_with_what_was_wrong_and_no_link() -> None:
    assert (
        describe(refused(ModelConfig, max_model_len=11))
        == "ValidationError: ModelConfig: max_model_len is greater than 10."
    )
    said = describe(refused(CacheConfig, cache_dtype="fp99", block_size="x"))
    assert said.startswith("ValidationError: CacheConfig.cache_dtype: String should match pattern")
    assert said.endswith("(and 1 more)")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ""),
        ("no weights", ": no weights"),
        ("CUDA error: out of memory\nFor debugging consider this", ": CUDA error: out of memory"),
        ("The following keys are unknown:\n  gone\nSee the manual", ": The following keys are unknown: gone"),
        ('ray::f()\n  File "a.py", line 1, in f\nValueError: the cause', ": ValueError: the cause"),
        ("Traceback (most recent call last):\n  ...\nKeyError: 'x'\n", ": KeyError: 'x'"),
    ],
)  # fmt: skip
def test_of_many_lines_the_telling_one(text: str, said: str) -> None:
    assert describe(RuntimeError(text)) == f"RuntimeError{said}"


def test_without_a_message_the_cause_speaks() -> None:
    try:
        try:
            raise OSError("gone")
        except OSError as error:
            raise RuntimeError from error
    except RuntimeError as error:
        assert describe(error) == "RuntimeError: OSError: gone"


def test_what_is_printed_in_passing_is_no_last_word(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    passing = [
        "Triton is installed, but doesn't include CPU backend. Disabling Triton.",
        "(MainProcess pid=25627) INFO 11-30 02:37:45 [model.py:733] Resolved architecture: LlamaForCausalLM",
        "WARNING 11-30 02:37:45 [cpu.py:224] Triton is not installed. triton-cpu is expected on x86 CPUs.",
        "/x/y.py:3: DeprecationWarning: it goes away",
        "  warnings.warn(text)",
    ]
    log.write_text("\n".join(passing))
    assert last_lines(log, 0) == ""
    telling = "(EngineCore pid=1) ERROR 11-30 02:37:45 [core.py:1] out of memory"
    log.write_text("\n".join([passing[0], telling, *passing[1:], "Killed"]))
    assert last_lines(log, 0) == f"{telling} | Killed"


def test_the_cause_that_a_child_took_with_it_is_its_last_error() -> None:
    printed = [
        "(EngineCore pid=7) ERROR 11-30 02:37:45 [core.py:9] Traceback (most recent call last):",
        "(EngineCore pid=7) ERROR 11-30 02:37:45 [core.py:9]     raise ValueError(text)",
        "(EngineCore pid=7) ERROR 11-30 02:37:45 [core.py:9] ValueError: no room for one sequence",
        "(EngineCore pid=7) Process EngineCore:",
        "(EngineCore pid=7) ValueError: no room for one sequence, raise it",
        "(MainProcess pid=3) ERROR 11-30 02:37:46 [x.py:9] RuntimeError: see above",
        "RuntimeError: Engine core initialization failed. See root cause above.",
    ]
    assert child_error("\n".join(printed), 3) == "EngineCore: ValueError: no room for one sequence, raise it"
    assert child_error("\n".join(printed[5:]), 3) == ""
