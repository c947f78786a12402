"""A sweep of the metric perplexity: scored, timed on a clock that only model runs advance, compared and chosen."""

import dataclasses
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.corpora.example import Example
from tasks.decoding.decoder import Rows
from tasks.decoding.generation import Counts, Generation
from tasks.decoding.given_text import UNTRUNCATED, TextPredictions, predict_along
from tasks.decoding.method import Pair, Request
from tasks.decoding.methods.bild import BildSettings
from tasks.decoding.methods.cascades import TokenCascadeSettings
from tasks.errors import InputError
from tasks.evaluation.results.files import SweepRowFile
from tasks.evaluation.results.rows import SweepRow, TimedRow
from tasks.evaluation.selection import choose_rows
from tasks.evaluation.settings import MarginSettings, SweepSettings
from tasks.evaluation.sweep import given_text
from tasks.evaluation.sweep.given_text import GivenTextEvaluator, GivenTextTimer, first_difference, given_tokens
from tasks.evaluation.sweep.grid import BASELINES, VANILLA, SweepPoint
from tasks.evaluation.sweep.replay import Split
from tasks.evaluation.sweep.rows import RowWriter, counts_record
from tasks.evaluation.sweep.run import SweepRunner, TaskSweep
from tasks.models.settings import TextSettings
from tests.ticking import ALIGNED, LARGE, LIMIT, SMALL, Clock, ToyEvaluator, Words, here, split_of, sweep_settings, ticking_pair
from tests.toys import START, prefix_pair, says

THRESHOLDS = (0.0, 0.3, 0.6, 1.0)
GRID = [
    *(
        SweepPoint("bild", BildSettings(fallback_threshold=threshold, rollback_threshold=math.inf, max_draft=64))
        for threshold in THRESHOLDS
    ),
    SweepPoint("token_cascade", TokenCascadeSettings(deferral_cost=0.6)),
]
MARGINS = MarginSettings(no_loss=2.0, one_point=100.0, confidence=0.6)


class ToyGivenText(ToyEvaluator, GivenTextEvaluator):
    """Evaluates given texts, with a clock beside it."""


def evaluator_of(pair: Pair, sweep: SweepSettings, clock: Callable[[], float]) -> ToyGivenText:
    evaluator = ToyGivenText(lambda: pair, Words(), "perplexity", Request(LIMIT, UNTRUNCATED), sweep)
    evaluator.timer = GivenTextTimer({ALIGNED: pair}, sweep, "cpu")
    evaluator.timer.clock = clock
    return evaluator


def ready(**settings: Any) -> tuple[ToyGivenText, Split]:
    clock, sweep = Clock(), sweep_settings(sampling=UNTRUNCATED, margins=MARGINS, **settings)
    pair = ticking_pair(clock)
    return evaluator_of(pair, sweep, clock), split_of(pair, sweep, count=16)


def swept(evaluator: ToyGivenText, split: Split, folder: Path) -> list[SweepRow]:
    """The rows of a sweep in the order of the grid."""
    writer = RowWriter(evaluator, SweepRowFile(folder / "rows.jsonl", "work"), "toy", "aligned")
    runner = SweepRunner(ALIGNED, writer, folder / "cache")
    return in_order(TaskSweep({ALIGNED: runner}, {ALIGNED: GRID}, here(evaluator.timer)).validate(split)[ALIGNED])


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[SweepRow]:
    """The rows of a finished sweep on validation: both baselines, then the grid in its order."""
    return swept(*ready(), tmp_path_factory.mktemp("given"))


def in_order(rows: list[SweepRow]) -> list[SweepRow]:
    """Rows come in the order in which their points were timed."""
    keys = [(point.method, point.plain_settings) for point in (*BASELINES, *GRID)]
    return sorted(rows, key=lambda row: keys.index((row.method, row.settings)))


def by_hand(pair: Pair, sources: Rows, texts: Rows, threshold: float) -> tuple[float, Counts]:
    """BiLD-v1, 3.3, literally: the small model scores unless its top probability is not above the threshold."""
    log_likelihood, counts = 0.0, Counts()
    for source, text in zip(sources, texts, strict=True):
        unseen = 0
        for position, token in enumerate(text):
            prefix = (START, *text[:position])
            q, p = (torch.log_softmax(model.predict(tuple(source), prefix), -1) for model in (pair.small, pair.large))  # type: ignore[attr-defined]
            unseen += 1
            counts.small_steps += 1
            if math.exp(float(q.max())) > threshold:
                counts.drafted += 1
                log_likelihood += float(q[token])
            else:
                counts.fallbacks += 1
                counts.large_calls += 1
                counts.accepted += unseen - 1
                counts.verified[unseen] += 1
                if unseen > 1:
                    counts.kept[unseen - 1, unseen - 1] += 1
                unseen = 0
                log_likelihood += float(p[token])
        counts.tokens += len(text)
    return log_likelihood, counts


def test_the_quality_of_a_row_is_minus_the_papers_perplexity(rows: list[SweepRow]) -> None:
    evaluator, split = ready()
    texts = given_tokens(Words(), split.examples, LIMIT)
    for threshold, row in zip(THRESHOLDS, rows[2:], strict=False):
        log_likelihood, counts = by_hand(evaluator.pair, split.sources, texts, threshold)
        assert isinstance(row, TimedRow)
        assert row.quality == {"perplexity": pytest.approx(math.exp(-log_likelihood / counts.tokens), rel=1e-6)}
        assert row.value == -row.quality["perplexity"]
        assert row.counts == counts_record(counts)
        assert row.how == "scored"


def test_bounds_and_choices_follow_the_direction(rows: list[SweepRow]) -> None:
    """A margin is one of perplexity: the fastest point that raises it by less than the margin beyond doubt is chosen."""
    timed = [row for row in rows if isinstance(row, TimedRow)]
    for row in timed:
        assert row.quality_difference_interval is not None
        assert row.difference_bounds.lower <= row.value - timed[0].value <= row.difference_bounds.upper
    losing = [row for row in timed if row.quality["perplexity"] > timed[0].quality["perplexity"] + MARGINS.no_loss]
    chosen = {choice: index for (method, choice), index in choose_rows(rows, MARGINS).items() if method == "bild"}
    assert losing
    assert chosen["no_loss"] is not None and chosen["one_point"] is not None
    assert rows[chosen["no_loss"]] not in losing
    kept = [row for row in timed[2:6] if row.difference_bounds and row.difference_bounds.lower > -MARGINS.no_loss]
    assert rows[chosen["no_loss"]] == max(kept, key=lambda row: row.speedup)


def test_decoding_the_text_is_timed() -> None:
    """The clock counts runs: of the large model, one for each token or each time that it takes over."""
    evaluator, split = ready()
    for point in (VANILLA, GRID[1], GRID[2]):
        outputs = evaluator.decoded(point, split)
        timing = evaluator.time(point, outputs, split)
        assert timing.timed_mismatches is None or timing.timed_mismatches == 0
        for milliseconds, counts in zip(timing.latency_ms, outputs.timed(split), strict=True):
            runs = counts.small_steps * SMALL.step + counts.large_calls * LARGE.step
            least = LARGE.encode + (SMALL.encode if point != VANILLA else 0) + runs
            assert least <= milliseconds <= least + counts.tokens * (SMALL.step + LARGE.position)
        assert {piece for one in timing.shown for _, piece in one.pieces} <= {"s", "l"}


def test_a_timed_call_that_scores_otherwise_fails_the_point(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluator, split = ready()
    outputs = evaluator.decoded(GRID[1], split)

    def otherwise(*about: Any) -> TextPredictions:
        known = predict_along(*about)  # what the models predict in one run
        return dataclasses.replace(known, log_p=[-9.0] * len(known.tokens))

    monkeypatch.setattr(given_text, "predict_along", otherwise)
    with pytest.raises(RuntimeError, match=r"TimedTokensError: .* scored the given text otherwise than one run"):
        evaluator.time(GRID[1], outputs, split)


def test_the_first_difference_is_by_model_or_by_likelihood() -> None:
    def scored(proposers: str, *values: float) -> Generation:
        return Generation([2] * len(proposers), proposers, None, list(values))  # type: ignore[arg-type]  # not read

    one = scored("sls", -1.0, -2.0, -3.0)
    assert first_difference(one, scored("sls", -1.0, -2.0001, -3.0)) is None
    assert first_difference(one, scored("sll", -1.0, -2.0, -3.0)) == 2
    assert first_difference(one, scored("sls", -1.0, -2.1, -3.0)) == 1


def test_a_text_without_probability_fails_its_points_and_no_other(tmp_path: Path) -> None:
    """The small model excludes a token that the text has."""

    def never_four(source: tuple[int, ...], prefix: tuple[int, ...]) -> torch.Tensor:
        return says([2, 3, 5])(source, prefix).index_fill_(0, torch.tensor([4]), -math.inf)

    sweep = sweep_settings(sampling=UNTRUNCATED, latency_examples=2)
    pair = prefix_pair(never_four, says([2, 3, 4]))
    examples = [Example("w5", ("w2 w3 w4",)), Example("w6", ("w2 w3 w4",))]
    split = Split("validation", examples, Words(), TextSettings(max_source_tokens=8), sweep)
    clock = itertools.count(1.0)
    large, small, alone, *_, never, _ = swept(evaluator_of(pair, sweep, lambda: next(clock)), split, tmp_path)
    assert isinstance(large, TimedRow) and isinstance(never, TimedRow)
    for row in (small, alone):
        assert row.error.startswith("InfinitePerplexityError: the text of example 0 has a log-likelihood of -inf")


def test_scored_tokens_end_before_the_end_token() -> None:
    class WithStart(Words):
        bos_token_id = 9

        def __call__(self, texts: list[str], *, max_length: int, truncation: bool) -> dict[str, Any]:
            rows = super().__call__(texts, max_length=max_length - 1, truncation=truncation)["input_ids"]
            return {"input_ids": [[9, *row] for row in rows]}

    examples = [Example("w5", ("w2 w3 w4", "w7"))]
    assert given_tokens(Words(), examples, 8) == [[2, 3, 4]]
    assert given_tokens(Words(), examples, 3) == [[2, 3]]
    assert given_tokens(WithStart(), examples, 8) == [[2, 3, 4]]
    with pytest.raises(InputError, match=r"example 1: its text has no token to score; raise text.max_target_tokens"):
        given_tokens(Words(), examples, 1)
