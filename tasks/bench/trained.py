"""The trained pair of a task as a case: BiLD at the setting that the sweep chose, and its quality."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from tasks.bench import ctranslate
from tasks.bench.cases import Case, LoadedCase
from tasks.bench.timing import Found
from tasks.corpora.example import read_jsonl
from tasks.decoding.batches import decode_all
from tasks.decoding.decoder import Decoder
from tasks.decoding.registry import Pair, Request
from tasks.decoding.settings import BildSettings, VanillaSettings
from tasks.evaluation.frontier import CHOSEN_ON, tradeoff_of
from tasks.evaluation.quality import Quality, score
from tasks.evaluation.results.rows import SweepRow, read_rows
from tasks.evaluation.selection.bounds import normal_bounds
from tasks.evaluation.selection.choosing import choose_rows, keeps_quality
from tasks.evaluation.selection.differences import paired_differences
from tasks.models.checkpoints import load_model
from tasks.models.pair import vocabulary_size
from tasks.models.prompting import encode_sources
from tasks.models.tokenizers import load_tokenizer
from tasks.paths import TaskPaths
from tasks.schema import Params

_SOURCES, _EXAMPLES, _BATCH, _BATCH_ROUNDS = 144, 16, 32, 5


def trained_case(name: str, params: Params, folder: Path) -> Case | None:
    """The case of a task; None where its models or its validation split are missing."""
    paths, text = TaskPaths(name), params.task(name).text
    drafter = paths.model("aligned", params.task(name).seeds[0])
    needed = [paths.model("large"), drafter, paths.split(CHOSEN_ON)]
    if not all(path.exists() for path in needed):
        return None
    large, small = map(load_model, (paths.model("large"), drafter))
    tokenizer = load_tokenizer(paths.model("large"))
    sources = encode_sources(tokenizer, [one.source for one in read_jsonl(paths.split(CHOSEN_ON))], text)
    converted = folder / name
    if ctranslate.version() and large.config.model_type == "t5":
        ctranslate.convert(large, converted)
    settings, origin = bild_settings(paths.rows("aligned"))
    return Case(
        name=name,
        large=paths.model("large"),
        small=drafter,
        converted=converted,
        sources=sources[:_SOURCES],
        limit=text.max_target_tokens,
        examples=_EXAMPLES,
        batch=_BATCH,
        batch_limit=text.max_target_tokens,
        batch_rounds=_BATCH_ROUNDS,
        vocabulary=vocabulary_size(tokenizer, large, small),
        bild=dataclasses.asdict(settings),
        bild_from=origin,
    )


def bild_settings(rows: Path) -> tuple[BildSettings, str]:
    """Settings of BiLD and their origin, described.

    They are those of the sweep's fastest point without loss, else of its best point, else the defaults.
    """
    measured = read_rows(rows, "run the stage sweep again (dvc repro)")
    choice = choose_rows(measured).get(("bild", "no_loss"))
    if choice is not None:
        return _settings(measured[choice]), "the sweep's no-loss choice"
    bild = [row for row in measured if row.split == CHOSEN_ON and row.method == "bild"]
    points = [(point, row) for row in bild if (point := tradeoff_of(row)) is not None]
    if points:
        _, best = max(reversed(points), key=lambda one: one[0].quality)
        return _settings(best), "the sweep's best quality, as no point is without loss"
    return BildSettings(), "the defaults, since there is no sweep"


def _settings(row: SweepRow) -> BildSettings:
    values: Found = {name: float("inf") if value == "inf" else value for name, value in row.settings.items()}
    return BildSettings(**values)


class Validation:
    """Quality on the validation split, on which operating points are chosen."""

    def __init__(self, name: str, params: Params) -> None:
        self._task, paths = params.task(name), TaskPaths(name)
        examples = read_jsonl(paths.split(CHOSEN_ON))
        self._tokenizer = load_tokenizer(paths.model("large"))
        self._sources = encode_sources(self._tokenizer, [one.source for one in examples], self._task.text)
        self._references = [one.references for one in examples]
        self._resampling = (self._task.metric, self._task.sweep.bootstrap_samples, self._task.sweep.seed)

    def texts(self, method: str, settings: object, pair: Pair) -> list[str]:
        """Texts that a method generates."""
        request = Request(self._task.text.max_target_tokens)
        done = decode_all(method, settings, pair, self._sources, request, self._task.sweep.quality_batch)
        texts: list[str] = self._tokenizer.batch_decode([one.tokens for one in done], skip_special_tokens=True)
        return texts

    def quality(self, texts: list[str]) -> Quality:
        """Quality of texts by the task's metric."""
        return score(texts, self._references, *self._resampling)

    def quality_alone(self, decoder: Decoder) -> float:
        """Quality of one model decoding alone, in points."""
        return self.quality(self.texts("vanilla_large", VanillaSettings(), Pair(decoder, decoder))).value

    def bild(self, loaded: LoadedCase) -> Found:
        """Quality of vanilla and of BiLD, and whether BiLD is without loss (see `keeps_quality`)."""
        ours = self.quality(self.texts("bild", BildSettings(**(loaded.case.bild or {})), loaded.pair))
        theirs = self.quality(self.texts("vanilla_large", VanillaSettings(), loaded.pair))
        margins = self._task.sweep.margins
        [lower] = normal_bounds(paired_differences(ours.statistics[None], theirs.statistics), 1.0 - margins.confidence)
        return {
            "metric": self._task.metric,
            "examples": len(self._sources),
            "vanilla": round(theirs.value, 3),
            "bild": round(ours.value, 3),
            "difference_interval": list(ours.minus(theirs)),
            "no_loss": keeps_quality(float(lower), margins.no_loss),
        }
