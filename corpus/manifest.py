"""The mix manifest: one frozen model per section, one description per field.

A field's description is its help, its documentation and its entry in the JSON Schema. Unknown keys and
wrong types are errors, never warnings (see manifest_file for how they are worded). The models know nothing
of files, hubs or devices; what they cannot decide alone (does a path exist, is a category short) is decided
by the stage that needs it. Defaults live here and nowhere else.
"""

from __future__ import annotations

import fractions
import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from corpus.language_codes import language_problem

CATEGORIES = ("coding", "general", "math", "agent", "code-other")

MOST_NEAR_EMPTY = 32
"""Pools count letters and digits up to here."""

LEAST_NEAR = 0.01
"""Below it sketches have thousands of bands, and any two prompts with a common pair of words would be alike."""
MOST_NGRAM = 65_536
"""Words that are hashed at a time."""
MEAN_TOKENS = (0.001, 1e9)
"""Within it total counts prompts that a computer can count."""

Name = Annotated[str, Field(min_length=1, max_length=80, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Positive = Annotated[int, Field(ge=1, le=10**15)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Auto = Literal["auto"]


def _told(code: str) -> str:
    problem = language_problem(code)
    if problem:
        raise ValueError(f"is {json.dumps(code[:40])}; {problem}")
    return code


Language = Annotated[str, AfterValidator(_told), Field(json_schema_extra={"pattern": "^[a-z]{2}$"})]


class Section(BaseModel):
    """The base of every section: frozen, strict about types, no unknown keys."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        allow_inf_nan=False,
        protected_namespaces=(),
        use_attribute_docstrings=True,
    )


class Mix(Section):
    """What the corpus must be made of."""

    total: Positive
    """Prompts in the build (with unit: response_tokens, generated tokens)."""
    unit: Literal["prompts", "response_tokens"] = "prompts"
    """What total and shares count: prompts, or response_tokens (planned through mean_response_tokens)."""
    shares: dict[Name, Annotated[float, Field(gt=0)]] = Field(min_length=1, examples=[{"coding": 3, "math": 1}])
    """Weight of each category. They are normalised to sum to one, and the build says so."""
    shortage: Literal["fail", "rescale", "repeat"] = "fail"
    """When a category has too few prompts: fail with a table, rescale (total shrinks and shares hold), or repeat prompts as replicas that are sampled anew (refused where sampling is greedy)."""
    max_repeats: Positive = 4
    """With shortage: repeat, the most replicas of one prompt."""
    mean_response_tokens: dict[Name, Annotated[float, Field(gt=0)]] = Field(
        default_factory=dict, examples=[{"coding": 600}]
    )
    """With unit: response_tokens, generated tokens that one prompt of each category is expected to bring (all its turns). `draftmill sql` has measured means: response_tokens / prompts of composition's accepted stage."""
    tolerance: Annotated[float, Field(ge=0, le=100)] = 0.5
    """How far an accepted share may be from its target, in percentage points (at least one row)."""
    reserve: Annotated[float, Field(ge=0, le=10)] = 0.1
    """Part of a category that sources on the Hub are read beyond its quota, from which what is rejected is replaced."""
    holdout: Annotated[float, Field(ge=0, lt=1)] = 0.02
    """Part of each category that is never trained on: chosen by a salted hash of prompt_id, whatever the seed, so that no build with the same holdout trains on them. They are generated too, outside total."""

    def normalised(self) -> dict[str, float]:
        """Shares that sum to one, by category name."""
        exact = {name: fractions.Fraction(weight) for name, weight in sorted(self.shares.items())}
        whole = sum(exact.values())
        return {name: float(weight / whole) for name, weight in exact.items()}

    def prompt_weights(self) -> dict[str, fractions.Fraction]:
        """Prompts of each category for one unit of total, exactly: the share, over the tokens that a prompt brings."""
        exact = {name: fractions.Fraction(weight) for name, weight in sorted(self.shares.items())}
        whole = sum(exact.values())
        tokens = self.mean_response_tokens if self.unit == "response_tokens" else {}
        return {name: weight / whole / fractions.Fraction(tokens.get(name, 1)) for name, weight in exact.items()}

    @property
    def prompts(self) -> int:
        """Prompts that total is, in its unit."""
        return max(1, round(self.total * sum(self.prompt_weights().values())))

    @model_validator(mode="after")
    def _tokens_are_planned(self) -> Mix:
        missing = sorted(set(self.shares) - set(self.mean_response_tokens))
        if self.unit == "response_tokens" and missing:
            raise ValueError(f"mix.mean_response_tokens.{missing[0]} is missing; unit: response_tokens plans with it")
        if self.unit == "prompts" and self.mean_response_tokens:
            raise ValueError("mix.mean_response_tokens is used with unit: response_tokens only; remove one of them")
        low, high = MEAN_TOKENS
        for name, mean in sorted(self.mean_response_tokens.items()):
            if not low <= mean <= high:
                raise ValueError(f"mix.mean_response_tokens.{name} is {mean:g}; it must be from {low:g} to {high:g}")
        return self


class CategoryByColumn(Section):
    """The category is read from a column of the source."""

    column: str
    """The column that holds the upstream label."""
    map: dict[str, Name] = Field(default_factory=dict, examples=[{"algebra": "math"}])
    """Upstream label to category. A label that is not here gets `default`."""
    default: Name | None = None
    """Category of labels that `map` does not name; without it such rows are dropped (no_category)."""


class FormatFields(Section):
    """Columns named one by one, for sources that no known format fits."""

    fields: dict[Literal["prompt", "system", "messages", "tools", "id"], str] = Field(examples=[{"prompt": "question"}])
    """What draftmill needs to the column that holds it; prompt or messages is needed."""

    @model_validator(mode="after")
    def _needs_text(self) -> FormatFields:
        if not {"prompt", "messages"} & set(self.fields):
            raise ValueError("fields names neither prompt nor messages; add the column that holds one of them")
        return self


Format = Literal["auto", "messages", "sharegpt", "alpaca", "prompt", "preference", "trace"]


def _check_origin(dataset: str | None, path: str | None) -> None:
    if "" in (dataset, path):
        raise ValueError("needs exactly one of dataset and path; what it has is empty")
    if (dataset is None) == (path is None):
        step = "it has neither: add one" if path is None else "it has both: remove one"
        raise ValueError(f"needs exactly one of dataset and path; {step}")


class Source(Section):
    """One labelled source of prompts."""

    name: Name
    """Unique name; it labels every row that comes from here."""
    dataset: str | None = None
    """A dataset on the Hub, as owner/name."""
    path: str | None = None
    """Files instead of a Hub dataset: a file, folder, glob or save_to_disk folder, relative to the manifest; or hf://datasets/OWNER/NAME[@REVISION]/FILE, FOLDER or GLOB."""
    config: str | None = None
    """The dataset's configuration, where it has several."""
    split: str = "train"
    """The dataset's split; of a saved DatasetDict too."""
    revision: str = "main"
    """Branch, tag or commit; resolved to a commit and written to the lock."""
    format: Format | FormatFields = "auto"
    """Shape of the rows: auto looks and records what it found."""
    where: str | None = None
    """SQL expression over the source's own columns, as polars' sql_expr reads it; other rows are counted and left out. CSV columns are text: cast them."""
    limit: Positive | None = None
    """Most rows to read, counted after where."""
    category: Name | CategoryByColumn = "classify"
    """A category name, {column, map, default}, or classify: by what the prompt says (docs/categories.md)."""
    weight: Annotated[float, Field(gt=0)] | None = None
    """Weight among the sources of one category. Default: the rows that the source has."""
    priority: int = 0
    """Which source keeps a prompt that several share: the higher one."""
    history: Literal["regenerated", "recorded"] | None = None
    """What becomes of earlier assistant turns: regenerated drops them and the target answers each user turn; recorded keeps them as context. Default: recorded for rows with tool turns, else regenerated."""
    license: str | None = None
    """Licence, recorded with every row. Default: what the dataset's card says."""
    trust_remote_code: bool = False
    """Let the dataset's own Python code run. Recorded in the ledger. (`datasets` 4 and newer runs none in any case.)"""
    keep_original: bool = False
    """Keep the source's own answers beside its prompts, for comparison; they are never trained on."""

    @model_validator(mode="after")
    def _one_origin(self) -> Source:
        _check_origin(self.dataset, self.path)
        if not -(2**31) <= self.priority < 2**31:
            raise ValueError(
                f"priority must fit into 32 bits, from {-(2**31)} to {2**31 - 1}; it is {self.priority:.3g}"
            )
        return self


def _pair(value: Any) -> Any:
    return (None, value) if isinstance(value, int | float) and not isinstance(value, bool) else value


Range = tuple[Annotated[int, Field(ge=0)] | None, Annotated[int, Field(ge=0)] | None]


class Filters(Section):
    """Prompts outside these ranges are drops with a reason. A pair is min and max, a number is the max."""

    prompt_chars: Annotated[int, Field(ge=0)] | Range | None = None
    """Characters of all shown text."""
    prompt_tokens: Annotated[int, Field(ge=0)] | Range | None = None
    """Tokens of the prompt as the target's template and tokenizer make it (first turn)."""
    turns: Annotated[int, Field(ge=0)] | Range | None = None
    """Assistant turns to be generated."""
    near_empty: Annotated[int, Field(ge=0, le=MOST_NEAR_EMPTY)] = 1
    """Fewest letters and digits that the user turns must hold together."""
    language: tuple[Language, ...] | None = Field(default=None, min_length=1, examples=[["en"]])
    """ISO 639-1 codes of the languages to keep, told from the user turns. Texts too short to tell are kept."""

    @field_validator("prompt_chars", "prompt_tokens", "turns", mode="after")
    @classmethod
    def _ordered(cls, value: Any) -> Any:
        low, high = value if isinstance(value, tuple) else (None, value)
        if low is not None and high is not None and low > high:
            raise ValueError(f"the minimum {low} is above the maximum {high}; a pair is [minimum, maximum]")
        return value

    def bounds(self, field: Literal["prompt_chars", "prompt_tokens", "turns"]) -> tuple[int, int | None]:
        """(minimum, maximum) of one field; None is no maximum."""
        low, high = _pair(getattr(self, field)) or (None, None)
        return (low or 0, high)


class Dedup(Section):
    """Likeness is another thing than identity: these compare text, prompt_id compares bytes."""

    exact: bool = True
    """Drop prompts whose shown text is equal after NFC, case folding and white-space collapse."""
    near: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Drop prompts whose user turns share at least this part of their word pairs (Jaccard) with a prompt that is kept."""

    @field_validator("near", mode="after")
    @classmethod
    def _says_something(cls, value: float | None) -> float | None:
        if value is not None and value < LEAST_NEAR:
            raise ValueError(f"{value:g} is too low; it must be at least {LEAST_NEAR:g}, and 0.7 is usual")
        return value


class EvalSet(Section):
    """One evaluation set that the corpus must not overlap."""

    path: str | None = None
    """Files, as in a source."""
    dataset: str | None = None
    """A dataset on the Hub."""
    config: str | None = None
    """The dataset's configuration."""
    split: str = "test"
    """The dataset's split."""
    revision: str = "main"
    """Branch, tag or commit; resolved to a commit."""
    field: str
    """The column that holds the question."""

    @model_validator(mode="after")
    def _one_origin(self) -> EvalSet:
        _check_origin(self.dataset, self.path)
        return self


class Decontaminate(Section):
    """Drop prompts that share a word n-gram with an evaluation set."""

    ngram: Annotated[int, Field(ge=2)] = 13
    """Words in a row that count as overlap."""
    against: tuple[EvalSet, ...] = Field(min_length=1, examples=[[{"path": "test.jsonl", "field": "question"}]])
    """The evaluation sets."""
    common: Annotated[int, Field(ge=2)] | None = None
    """Runs of words that this many items share are a set's boilerplate (its instructions) and count for nothing. Default: every run counts."""

    @field_validator("ngram", mode="after")
    @classmethod
    def _is_hashed_at_once(cls, value: int) -> int:
        if value > MOST_NGRAM:
            raise ValueError(f"{value} words are too many; it must be at most {MOST_NGRAM}, and 13 is usual")
        return value


class Licenses(Section):
    """Which licences a build may use."""

    deny: tuple[Annotated[str, Field(min_length=1)], ...] = Field(default=(), examples=[["*-nc-*", "unknown"]])
    """Patterns (`*`, `?`), without regard to case: a source under such a licence stops the build. `unknown` is a source that states none."""


class Target(Section):
    """The model that answers, whose states are captured and for which the drafter drafts."""

    model: str
    """A Hub id, a local folder, a .gguf file, or package:NAME/FILE.gguf for one inside an installed package."""
    revision: str = "main"
    """Branch, tag or commit of a Hub model; resolved and locked."""
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    """Numbers that the engine and the capture compute with."""
    max_model_len: Annotated[int, Field(ge=16)] = 8192
    """Most tokens of prompt and response together."""
    chat_template: str | None = None
    """A Jinja file, relative to the manifest, where the model's own template lacks something (tools)."""
    trust_remote_code: bool = False
    """Let the model's own Python code run. Recorded in the ledger."""


class Sampling(Section):
    """How the engine draws tokens. A field that is not set takes the engine's neutral value."""

    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    """0 is greedy."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus."""
    top_k: Annotated[int, Field(ge=0)] = 0
    """0 is off."""
    min_p: Fraction = 0.0
    """0 is off."""
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    """As in vLLM."""
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] = 1.0
    """As in vLLM; 1 is off."""


class Thinking(Section):
    """Which prompts are answered with thinking on, and how each kind is sampled."""

    share: Fraction = 0.0
    """Part of the prompts with thinking on, chosen by a hash of the prompt."""
    on: Sampling = Sampling(temperature=0.6, top_p=0.95, top_k=20)
    """Sampling with thinking on."""
    off: Sampling = Sampling(temperature=0.7, top_p=0.8, top_k=20)
    """Sampling with thinking off."""


AnswerCheck = Literal["empty", "repetition", "no_answer", "other_language", "broken_tool_call"]


class CategoryGeneration(Section):
    """What one category overrides. A key that is not set keeps the general value."""

    max_tokens: Positive | None = None
    """Most tokens of one answer."""
    truncated: Literal["keep", "drop", "retry"] | None = None
    """What becomes of an answer that ran into max_tokens."""
    thinking_share: Fraction | None = None
    """Part of this category's prompts with thinking on."""
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    """Sampling temperature, thinking on or off."""
    reject: tuple[AnswerCheck, ...] | None = None
    """Which findings reject an answer of this category."""


class Generation(Section):
    """How the target answers."""

    thinking: Thinking = Thinking()
    """Thinking on and off."""
    max_tokens: Positive = 4096
    """Most tokens of one answer."""
    truncated: Literal["keep", "drop", "retry"] = "keep"
    """An answer that ran into max_tokens: keep (valid tokens, no end label), drop, or retry once with twice the budget. Kept answers are left out of a build once this says drop; retry is for new answers."""
    reject: tuple[AnswerCheck, ...] = ("empty", "repetition")
    """Findings that reject an answer; the others are recorded as notes. empty: white space alone; repetition: it ends in a loop; no_answer: reasoning without an answer; other_language: not the prompt's; broken_tool_call: a call that cannot be read or names no offered tool."""
    by_category: dict[Name, CategoryGeneration] = Field(
        default_factory=dict, examples=[{"agent": {"max_tokens": 2048}}]
    )
    """Overrides by category."""
    reuse: Literal["recipe", "finished"] = "recipe"
    """recipe: only answers of the same effective recipe; finished: also answers that stopped by themselves under another max_tokens and fit into this one. Prompts whose answer was cut are drawn anew, which favours short answers a little."""
    token_logprobs: bool = False
    """Keep the log-probability of each generated token (before temperature and the like) in the response shards."""
    imported: tuple[Name, ...] = Field(default=(), examples=[["team"]])
    """Imported corpora (names given to `draftmill import`) whose answers count as made: prompts outside the holdout take them, under the recipe that made them. They need the target's model, and token ids of its tokenizer and template."""

    def for_category(self, category: str) -> CategoryGeneration:
        """The values in force for one category, every key set but temperature."""
        own = self.by_category.get(category, CategoryGeneration())
        share = self.thinking.share if own.thinking_share is None else own.thinking_share
        return CategoryGeneration(
            max_tokens=own.max_tokens or self.max_tokens,
            truncated=own.truncated or self.truncated,
            thinking_share=share,
            temperature=own.temperature,
            reject=self.reject if own.reject is None else own.reject,
        )


class Engine(Section):
    """The inference engine. kv_cache_dtype, quantization and extra change numbers: they are part of the recipe."""

    kind: Literal["vllm"] = "vllm"
    """The engine."""
    max_num_seqs: Positive | Auto = "auto"
    """Sequences that run at once in one engine."""
    max_num_batched_tokens: Positive | Auto = "auto"
    """Tokens of one engine step."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.92
    """Part of a GPU's memory that one engine takes."""
    kv_cache_dtype: str = "auto"
    """Numbers of the KV cache."""
    quantization: str | None = None
    """The engine's quantisation method."""
    seed: Seed = 0
    """Seed of the engines: each adds its number, and a thousand for each time it was started again. Not part of the recipe."""
    extra: dict[str, Any] = Field(default_factory=dict, examples=[{"enforce_eager": True}])
    """Further arguments of the engine, passed as they are."""


class Extraction(Section):
    """Which states of the target are captured."""

    layers: tuple[Annotated[int, Field(ge=0)], ...] | Auto = "auto"
    """0-based layer outputs; auto spreads `features` layers by DFlash's formula."""
    features: Positive = 5
    """With layers: auto, how many."""
    final_state: bool = True
    """Also capture the state before the final norm, which teacher labels need."""
    max_tokens_per_batch: Annotated[int, Field(ge=16)] | Auto = "auto"
    """Padded tokens of one forward at most; auto takes what each device's memory holds, measured before the start."""
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    """Numbers that the shards hold."""

    @model_validator(mode="after")
    def _features_are_used(self) -> Extraction:
        if self.layers != "auto" and "features" in self.model_fields_set:
            raise ValueError(
                "extraction.features is used with layers: auto only, and layers is a list; remove one of them"
            )
        return self


class Live(Section):
    """How target workers feed drafters that train at the same time (training.feed: live)."""

    targets: Positive | Auto = "auto"
    """Workers that capture states, one a device; auto: five of eight devices, and at least one."""
    drafters: Positive | Auto = "auto"
    """Workers that train, one a device; auto: the devices that are left. On one device both share it."""
    queue_gb: Annotated[float, Field(gt=0)] | Auto = "auto"
    """Bound of the queue between them, in GB of memory; it must hold the largest pack. auto: room for four packs a worker."""
    average_every: Positive = 50
    """Each drafter's own steps between rounds, in which all become their mean; no effect with one drafter."""
    holdout_rows: Positive = 1024
    """Most held-out rows that are captured to disk, category shares kept: what acceptance is measured on."""


class Training(Section):
    """The drafter and how it is trained. Defaults are the DFlash paper's recipe, gamma as in speculators."""

    algorithm: Literal["dflash"] = "dflash"
    """The drafter's architecture."""
    block_size: Annotated[int, Field(ge=2)] = 16
    """Tokens of a block, the anchor included: 16 drafts 15."""
    draft_layers: Positive = 5
    """Decoder layers of the drafter."""
    sliding_layers: Annotated[int, Field(ge=0)] = 0
    """How many of the first draft layers use a causal sliding window."""
    sliding_window: Positive = 2048
    """Window of those layers, in tokens."""
    anchors_per_document: Positive = 512
    """Most anchors of one document and epoch; fewer take less memory."""
    gamma: Annotated[float, Field(ge=0.01, le=1e6)] = 4.0
    """Slot k has weight exp(-(k-1)/gamma) in the loss (loss_weights: decay)."""
    loss_weights: Literal["decay", "d_pace"] = "decay"
    """Weights of a block's slots: decay by gamma, or D-PACE, which weighs a slot by how likely it is to be reached."""
    d_pace_alpha: Fraction = 0.5
    """Smoothing of D-PACE: 0 trusts the drafter's own probabilities, 1 weighs all slots by what follows them alone."""
    labels: Literal["auto", "teacher", "sampled", "kl"] = "auto"
    """What a slot must predict: the target's arg max, the sampled token, or the target's distribution. auto: teacher for greedy rows, else sampled."""
    feed: Literal["shards", "live"] = "shards"
    """Train from hidden-state shards on disk, or fed live by target workers, with no states on disk but held-out ones."""
    live: Live = Live()
    """Workers and queue of the live feed."""
    init_from: Annotated[str, Field(min_length=1)] | None = None
    """Start from a published drafter: a folder (z-lab's or speculators' format, relative to where you run) or a Hub id. Its shape must be the one asked for here."""
    epochs: Positive = 6
    """Passes over the training rows; anchors are drawn anew in each."""
    tokens_per_batch: Annotated[int, Field(ge=16)] | Auto = "auto"
    """Context tokens of one pack; auto is 4,096 on a GPU and 1,024 on a CPU."""
    gradient_accumulation: Positive = 1
    """Packs of one optimiser step; the loss is divided by the supervised slots of all of them."""
    activation_checkpointing: bool | Auto = "auto"
    """Compute each draft layer again in the backward pass: much less memory, about a third more time. auto: on GPUs."""
    learning_rate: Annotated[float, Field(ge=1e-12, le=1)] = 6e-4
    """Peak of the cosine schedule (AdamW)."""
    warmup: Fraction = 0.04
    """Part of the steps that warm up."""
    weight_decay: Annotated[float, Field(ge=0, le=10)] = 0.0
    """AdamW's weight decay."""
    clip: Annotated[float, Field(ge=1e-6, le=1e9)] = 1.0
    """Gradient norm limit."""
    mask_token_id: Annotated[int, Field(ge=0)] | Auto = "auto"
    """An embedding row that text never uses; auto finds one that is neither end nor pad."""
    checkpoint_every: Positive = 200
    """Steps, of all drafters together, between checkpoints; at most 256 held-out rows are walked at each."""
    seed: Seed | None = None
    """Seed of initial weights, anchors and order. Default: the manifest's seed."""

    @model_validator(mode="after")
    def _layers_fit(self) -> Training:
        if self.sliding_layers > self.draft_layers:
            layers = f"{self.draft_layers} layer{'s' if self.draft_layers > 1 else ''} (draft_layers)"
            raise ValueError(f"training.sliding_layers is {self.sliding_layers}; the drafter has {layers}. Lower it")
        return self


class Manifest(Section):
    """The whole run in one file: mix, sources, target, and one section per stage."""

    name: Name
    """Name of the run; it labels builds in the ledger."""
    seed: Seed = 0
    """Seed of the order, the holdout excepted."""
    mix: Mix
    """What the corpus must be made of."""
    sources: tuple[Source, ...] = Field(min_length=1, examples=[[{"name": "talk", "path": "talk.jsonl"}]])
    """Where prompts come from."""
    filters: Filters = Filters()
    """Which prompts are too short, too long or too deep."""
    dedup: Dedup = Dedup()
    """Which prompts are too alike."""
    decontaminate: Decontaminate | None = None
    """Which evaluation sets must not leak in."""
    licenses: Licenses = Licenses()
    """Which licences stop a build."""
    on_bad_row: Literal["stop", "skip"] = "stop"
    """A row that cannot be read (not JSON, not UTF-8, in a damaged part of its file): stop with one line that names it, or skip it as a drop with its reason."""
    target: Target
    """The model that answers."""
    generation: Generation = Generation()
    """How the target answers."""
    engine: Engine = Engine()
    """The inference engine."""
    extraction: Extraction = Extraction()
    """Which states are captured."""
    training: Training = Training()
    """The drafter."""

    @model_validator(mode="after")
    def _names_fit(self) -> Manifest:
        names = [source.name for source in self.sources]
        for i, name in enumerate(names):
            if name in names[:i]:
                raise ValueError(
                    f"sources[{i}].name is {name}, as is sources[{names.index(name)}].name; every source needs its own"
                )
        return self

    @model_validator(mode="after")
    def _repeats_differ(self) -> Manifest:
        """A greedy answer said again is the same answer."""
        if self.mix.shortage == "repeat" and self.mix.max_repeats > 1:
            for category in sorted(self.mix.shares):
                own = self.generation.for_category(category)
                share = own.thinking_share or 0.0
                kinds = [self.generation.thinking.on] * (share > 0) + [self.generation.thinking.off] * (share < 1)
                if any((kind.temperature if own.temperature is None else own.temperature) == 0 for kind in kinds):
                    raise ValueError(
                        f"mix.shortage is repeat and {category} is sampled at temperature 0, where every replica is "
                        "the same answer; use shortage: rescale, or raise the temperature"
                    )
        return self

    def source_categories(self, source: Source) -> tuple[str, ...]:
        """Every category that a source can give."""
        if isinstance(source.category, CategoryByColumn):
            given = set(source.category.map.values())
            return tuple(sorted(given | ({source.category.default} if source.category.default else set())))
        return CATEGORIES if source.category == "classify" else (source.category,)
