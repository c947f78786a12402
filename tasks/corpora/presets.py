"""Presets: each data set of the papers with their lengths, metric, model pairs, training and sweep, as a task of params.yaml.

`python -m tasks.corpora` lists them. BiLD is Kim et al. (NeurIPS 2023), BiLD-v1 its first arXiv version, SD Leviathan et al.
(2023), SpecCascade Narasimhan et al. (2024), Outline the course project with T5 on Multi30k. What the papers leave open is this
project's choice and stands in `ours`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LOCK = "data/hub.lock.yaml"
"""What `active` names for a data set of the hub."""
Section = dict[str, Any]


@dataclass(frozen=True)
class PublishedPair:
    """Two models as a paper pairs them, by their names on the hub."""

    paper: str
    small: str
    large: str


@dataclass(frozen=True)
class Preset:
    """How the papers use a data set; the first pair is the one of the task."""

    title: str
    papers: str
    metric: str
    lengths: tuple[int, int]
    """Longest source and longest target, in tokens."""
    pairs: tuple[PublishedPair, ...]
    small: Section
    large: Section
    align: Section
    grid: tuple[Section, ...]
    temperature: float = 0.0
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of the task."""
    text: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of its section `text`."""
    calibrate: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of its section `calibrate`."""
    ours: tuple[str, ...] = ()


def _training(steps: int, learning_rate: float, **others: Any) -> Section:
    """Adafactor at a constant rate, batch 16 (BiLD, 7.1.1)."""
    every = max(100, steps // 50)
    recipe = {"optimizer": "adafactor", "learning_rate": learning_rate, "decay": "constant", "steps": steps, "batch_size": 16}
    return {**recipe, "evaluate_every": every, "checkpoint_every": every, **others}


def _cascades(*rules: str, **values: list[int]) -> tuple[Section, ...]:
    entries = ({"method": "speculative_cascade", "preset": rule} for rule in rules)
    return tuple({**entry, "values": values} if values else entry for entry in entries)


_MT5 = PublishedPair("BiLD, Table 2", "google/mt5-small", "google/mt5-large")
_T5 = PublishedPair("BiLD, Table 2", "google-t5/t5-small", "google-t5/t5-large")
_T5_V11 = PublishedPair("SpecCascade, E.1", "google/t5-v1_1-small", "google/t5-v1_1-large")
_T5_V11_XL = PublishedPair("SpecCascade, E.1", "google/t5-v1_1-small", "google/t5-v1_1-xl")
_T5_V11_XXL = PublishedPair("SD, 4.1", "google/t5-v1_1-small", "google/t5-v1_1-xxl")
_GEMMA = PublishedPair("SpecCascade, E.1", "google/gemma-2-2b-it", "google/gemma-2-27b-it")
_GEMMA_9B = PublishedPair("SpecCascade, E.1", "google/gemma-2-2b-it", "google/gemma-2-9b-it")

_BILD_RATES = "rates: the largest of those searched, {0.5, 1, 2, 5}e-4 for the small and {0.5, 1}e-4 for the large model"
_BILD_LENGTHS = "lengths: SpecCascade's of this task, since BiLD prints none"
_PREFIX = "prefix: T5's of this task, since the paper prints none"
_BILD: Section = {
    "small": _training(500_000, 5e-4),
    "large": _training(500_000, 1e-4),
    "align": {"start": "pretrained", "loss": "sequence", **_training(500_000, 5e-4)},
}


def _bild(task: str) -> tuple[Section, ...]:
    """The thresholds of BiLD's task (7.1.2), its ablations (Figure 5), and speculative decoding (Table 3)."""
    presets = (task, "no_fallback", "no_rollback")
    return (*({"method": "bild", "preset": one} for one in presets), {"method": "speculative", "preset": "block_sizes"})


_SAMPLED: tuple[Section, ...] = (
    {"method": "speculative", "preset": "block_sizes"},
    {"method": "speculative_lossy", "preset": "paper"},
    {"method": "token_cascade", "preset": "paper"},
    {"method": "sequence_cascade", "preset": "paper"},
    *_cascades("bild", "chow", "diff", "opt", "token_v1", "token_v2", "token_v3"),
)
"""The methods of SpecCascade's Table 2."""


def _gemma(title: str, metric: str, lengths: tuple[int, int], **options: Any) -> Preset:
    """A few-shot benchmark of SpecCascade: models as they are, γ = 1, 1,000 prompts (E.1, Figure 3)."""
    as_it_is = {"steps": 0, "batch_size": 16}
    aligned = {"start": "pretrained", "loss": "sequence", **_training(2000, 1e-4)}
    return Preset(
        title,
        "SpecCascade, Figure 3 and E.1",
        metric,
        lengths,
        (_GEMMA, _GEMMA_9B),
        as_it_is,
        as_it_is,
        aligned,
        (
            {"method": "speculative", "values": {"draft_length": [1]}},
            {"method": "speculative_lossy", "preset": "paper", "values": {"draft_length": [1]}},
            *_cascades("opt", "token_v1", "token_v2", "token_v3", draft_length=[1]),
        ),
        temperature=1.0,
        options=options,
        text={"chat_template": True},
        ours=(
            "prompt: instructions without examples; the paper's few-shot prompts are not printed",
            "metric, longest source and temperature: the paper prints none",
            "alignment: the paper has none for these models",
            "splits: the first 1,000 prompts, of which the paper draws 1,000; validation is cut from train where there is none",
        ),
    )


_QUESTIONS = (256, 5)
PRESETS: dict[str, Preset] = {
    "iwslt17-de-en": Preset(
        "IWSLT 2017, German to English",
        "BiLD, 7.1 and Table 1",
        "bleu",
        (80, 80),
        (_MT5,),
        **_BILD,
        grid=_bild("translation"),
        ours=(_BILD_RATES, _BILD_LENGTHS, _PREFIX),
    ),
    "wmt14-de-en": Preset(
        "WMT 2014, German to English",
        "BiLD, 7.1 and Table 1",
        "bleu",
        (80, 80),
        (_MT5,),
        **_BILD,
        grid=_bild("translation"),
        ours=(_BILD_RATES, _BILD_LENGTHS, _PREFIX),
    ),
    "wmt14-en-de": Preset(
        "WMT 2014, English to German",
        "SpecCascade, E.1 and Table 2; SD, 4.1 and Table 2",
        "bleu",
        (80, 80),
        (_T5_V11, _T5_V11_XL, _T5_V11_XXL),
        _training(250_000, 5e-4),
        _training(250_000, 1e-4),
        {"start": "pretrained", "loss": "sequence", **_training(250_000, 5e-4)},
        _SAMPLED,
        temperature=1.0,
        ours=(
            "rates, batch and optimiser: BiLD's, since SpecCascade prints the steps alone",
            "no further pre-training, of which SpecCascade does 100,000 steps",
            "alignment: SpecCascade has none",
            _PREFIX,
        ),
    ),
    "multi30k-en-de": Preset(
        "Multi30k, English to German",
        "Outline, performance of T5 models",
        "bleu",
        (80, 80),
        (PublishedPair("Outline", "google-t5/t5-small", "google-t5/t5-large"),),
        _training(18_000, 5e-4),
        _training(18_000, 1e-4),
        {"start": "pretrained", "loss": "sequence", **_training(18_000, 5e-4)},
        _bild("translation"),
        ours=("lengths, training (BiLD's recipe for ten epochs) and thresholds: the outline prints none", _PREFIX),
    ),
    "xsum": Preset(
        "XSum, summaries of one sentence",
        "BiLD, 7.1 and Table 1; SpecCascade, E.1 and Table 2 (rouge2, T = 1, 100,000 steps)",
        "rougeL",
        (1024, 64),
        (_T5, _T5_V11, _T5_V11_XL),
        **_BILD,
        grid=(*_bild("summarization"), *_cascades("chow", "diff", "opt", "token_v3")),
        ours=(_BILD_RATES, _BILD_LENGTHS, _PREFIX),
    ),
    "cnn_dailymail": Preset(
        "CNN/DailyMail, summaries of several sentences",
        "BiLD, 7.1 and Table 1; SpecCascade, E.1 and Table 2 (rouge2, T = 1, 200,000 steps); SD, Table 2",
        "rougeLsum",
        (2048, 128),
        (_T5, _T5_V11, _T5_V11_XL, _T5_V11_XXL),
        **_BILD,
        grid=(*_bild("summarization"), *_cascades("chow", "diff", "opt", "token_v3")),
        ours=(
            "metric: BiLD names ROUGE-L, but prints what is almost certainly ROUGE-Lsum",
            _BILD_RATES,
            _BILD_LENGTHS,
            _PREFIX,
        ),
    ),
    "wikitext-2": Preset(
        "WikiText-2, language modelling",
        "BiLD-v1, 4.1, 4.2 and Figure 4",
        "perplexity",
        (256, 256),
        (PublishedPair("BiLD-v1, Table 1", "openai-community/gpt2", "openai-community/gpt2-large"),),
        _training(1700, 5e-4, decay="linear"),
        _training(1700, 5e-5, decay="linear"),
        {"start": "pretrained", "loss": "forward_kl", **_training(1700, 5e-4, decay="linear")},
        ({"method": "bild", "preset": "language_modelling"},),
        temperature=1.0,
        calibrate={"texts": "references"},
        ours=(
            "alignment: KL(p|q) along the training text, since the paper aligns no model",
            "passages of 384 words, about 512 tokens of GPT-2: the first half is the prompt, the second is scored",
            "steps: five epochs of these passages",
            "rates: the ends of those searched, {0.5, 1, 2, 5}e-4; optimiser: the paper prints none",
        ),
    ),
    "gsm8k": _gemma("GSM8K, word problems", "numeric_answer", (512, 320)),
    "mbpp": _gemma("MBPP, short Python programs", "pass_at_1", (512, 320), run_generated_code=False),
    "squad_v2": _gemma("SQuAD 2.0, questions on a passage", "exact_match", (1024, 5)),
    "natural_questions": _gemma("Natural Questions, open", "exact_match", _QUESTIONS),
    "trivia_qa": _gemma("TriviaQA, without context", "exact_match", _QUESTIONS),
    "web_questions": _gemma("WebQuestions", "exact_match", _QUESTIONS),
}
"""By the names of `hub.data_sets.DATA_SETS`."""


def task_section(name: str) -> Section:
    """The task of a preset as params.yaml holds it under `tasks`."""
    preset = PRESETS[name]
    pair = preset.pairs[0]
    source, target = preset.lengths
    return {
        "seeds": [1],
        "metric": preset.metric,
        **preset.options,
        "corpus": {"source": "hub", "hub": {"preset": name}},
        "text": {"max_source_tokens": source, "max_target_tokens": target, **preset.text},
        "tokenizer": {"pretrained": pair.large},
        "models": {"large": {"pretrained": pair.large}, "small": {"pretrained": pair.small}},
        "finetune": {"large": preset.large, "small": preset.small},
        "calibrate": {"batch_size": 32, **preset.calibrate},
        "align": preset.align,
        "sweep": {"grid": list(preset.grid), "sampling": {"temperature": preset.temperature}},
    }
