"""Rows of a sweep: what is measured of a point, by hand, and when its row is written again."""

import dataclasses
import itertools
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tasks.decoding.generation import Counts
from tasks.decoding.method import Request, SamplingSettings
from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.methods.beam import BeamSettings
from tasks.decoding.methods.bild import BildSettings
from tasks.decoding.methods.speculative import SpeculativeSettings
from tasks.evaluation.results.codec import encode
from tasks.evaluation.results.files import SweepRowFile
from tasks.evaluation.results.rows import Outcome, Prediction, read_rows
from tasks.evaluation.scoring.quality import value_of
from tasks.evaluation.sweep import rows
from tasks.evaluation.sweep.clock import Lap
from tasks.evaluation.sweep.grid import VANILLA, SweepPoint
from tasks.evaluation.sweep.plan import work_of
from tasks.evaluation.sweep.replay import Outputs, Split
from tests import ticking
from tests.ticking import LARGE, SMALL, Clock, ToyEvaluator, Words

SPECULATIVE = SweepPoint("speculative", SpeculativeSettings(draft_length=3))
BILD = SweepPoint("bild", BildSettings(fallback_threshold=0.4))
ALONE = SweepPoint("vanilla_small", VanillaSettings())
COSTS = ticking.costs_of(SMALL.encode, LARGE.encode, SMALL.step, {1: LARGE.step, 2: LARGE.step + LARGE.position})


def ready(clock: Clock | None = None, **settings: Any) -> tuple[ToyEvaluator, Split]:
    """An evaluator and its split, with the same settings."""
    clock, sweep = clock or Clock(), ticking.sweep_settings(**settings)
    pair = ticking.ticking_pair(clock)
    return ticking.evaluator_of(pair, sweep, clock=clock), ticking.split_of(pair, sweep)


def test_counts_as_rows_hold_them() -> None:
    counts = Counts(tokens=9, large_calls=3, verified=Counter({4: 1, 1: 2}), kept=Counter({(3, 2): 1, (1, 1): 4}))
    record = rows.counts_record(counts)
    assert record.verified == {1: 2, 4: 1}
    assert record.kept == {"1/1": 4, "3/2": 1}
    assert (record.tokens, record.large_calls, record.drafted) == (9, 3, 0)
    written = encode(record)
    assert json.loads(json.dumps(written)) == written
    assert written["verified"] == {"1": 2, "4": 1}


def test_quality_is_compared_with_vanillas() -> None:
    evaluator, split = ready(bootstrap_samples=300)
    vanilla = evaluator.assess(evaluator.vanilla(split), split)
    assert vanilla.how == "decoded"
    assert vanilla.quality_difference_interval == (0.0, 0.0)
    assert vanilla.signature is not None and vanilla.signature.startswith("nrefs:1")
    small = evaluator.assess(evaluator.decoded(ALONE, split), split)
    assert small.quality_difference_interval is not None and small.quality_interval is not None
    low, high = small.quality_difference_interval
    assert low < small.quality["bleu"] - vanilla.quality["bleu"] < min(high, 0)
    assert small.quality_interval[0] < small.quality["bleu"] < small.quality_interval[1]
    same = evaluator.assess(evaluator.decoded(SPECULATIVE, split), split)
    assert dataclasses.replace(same, counts=vanilla.counts) == vanilla
    assert same.counts.large_calls < vanilla.counts.large_calls


def test_several_drawn_outputs_of_an_example_are_its_mean() -> None:
    """The first of them are those of a single sample, and those of an example are resampled together."""
    drawn = Request(ticking.LIMIT, SamplingSettings(temperature=1.0))

    def found(samples: int) -> tuple[Outputs, Outcome]:
        evaluator, split = ready(bootstrap_samples=300, samples=samples, sampling=drawn.sampling)
        evaluator.request = drawn
        outputs = evaluator.decoded(ALONE, split)
        return outputs, evaluator.assess(outputs, split)

    (one, alone), (several, together) = found(1), found(40)
    assert (several.tokens, several.counts, one.further) == (one.tokens, one.counts, [])
    assert len(several.further) == 39 * len(one.tokens) and len(set(several.further)) > len(one.tokens)
    assert alone.quality_interval is not None and together.quality_interval is not None
    widths = [high - low for low, high in (alone.quality_interval, together.quality_interval)]
    assert widths[1] < widths[0]
    split, evaluator = ready()[1], ready()[0]
    texts = [evaluator.tokenizer.decode(tokens, skip_special_tokens=True) for tokens in (*several.tokens, *several.further)]
    pooled = value_of(texts, [example.references for example in split.examples] * 40, "bleu")
    assert together.quality["bleu"] == pytest.approx(pooled)


@pytest.mark.parametrize("point", [VANILLA, ALONE, BILD, SPECULATIVE], ids=lambda point: point.method)
def test_latencies_are_those_of_the_clock(point: SweepPoint) -> None:
    evaluator, split = ready()
    outputs = evaluator.decoded(point, split)
    row = evaluator.time(point, outputs, split, evaluator.time(point, outputs, split))
    assert row.rounds is not None and len(row.rounds) == 2
    for latencies, measured in ((row.latency_ms, outputs), (row.vanilla_latency_ms, evaluator.vanilla(split))):
        wanted = [work_of([measured.by_example[example]], COSTS).runs_ms for example in split.timed]
        assert latencies == pytest.approx(wanted, abs=0.001)
    assert row.speedup == pytest.approx(sum(row.vanilla_latency_ms) / sum(row.latency_ms), rel=1e-3)
    assert row.speedup_interval is not None
    low, high = row.speedup_interval
    assert low <= row.speedup <= high
    if point == VANILLA:
        assert (low, high) == pytest.approx((1, 1))


@pytest.mark.parametrize("point", [ALONE, SPECULATIVE], ids=lambda point: point.method)
def test_shown_texts(point: SweepPoint) -> None:
    evaluator, split = ready(latency_examples=7)
    outputs, words = evaluator.decoded(point, split), Words()
    shown = evaluator.time(point, outputs, split).shown or []
    assert len(shown) == 6
    for example, one in zip(split.timed, shown, strict=False):
        assert one.source == split.examples[example].source
        assert one.references == list(split.examples[example].references)
        assert one.vanilla == words.decode(evaluator.vanilla(split).tokens[example], skip_special_tokens=True)
        assert "".join(text for text, _ in one.pieces) == words.decode(outputs.tokens[example], skip_special_tokens=True)
        proposers = [proposer for _, proposer in one.pieces]
        assert all(one != other for one, other in itertools.pairwise(proposers))
        assert set(proposers) <= {VANILLA: {"l"}, ALONE: {"s"}}.get(point, {"s", "l", "c"})


class Halves(Words):
    """A tokenizer whose tokens are halves of letters, like bytes of characters; a single half decodes to U+FFFD."""

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool) -> str:
        text = [token for token in tokens if token > 1]
        whole = "".join(chr(ord("a") + (one + other) % 26) for one, other in zip(text[::2], text[1::2], strict=False))
        return whole + "\ufffd" * (len(text) % 2)


def test_pieces_are_the_text_even_where_a_letter_is_cut() -> None:
    words, split = ready(latency_examples=7)
    evaluator = ToyEvaluator(lambda: words.pair, Halves(), "bleu", Request(ticking.LIMIT), words.sweep)
    evaluator.timer = words.timer
    outputs = evaluator.decoded(SPECULATIVE, split)
    shown = evaluator.time(SPECULATIVE, outputs, split).shown or []
    assert any(len(one.pieces) > 3 for one in shown)
    for example, one in zip(split.timed, shown, strict=False):
        text = Halves().decode(outputs.tokens[example], skip_special_tokens=True)
        assert "".join(piece for piece, _ in one.pieces) == text


def test_evaluators_of_one_large_model_decode_once_what_runs_no_small_model(monkeypatch: pytest.MonkeyPatch) -> None:
    first, split = ready()
    second, _ = ready()
    second.of_large = first.of_large
    copies = SweepPoint("speculative", SpeculativeSettings(drafter="copy"))
    points = VANILLA, copies, SweepPoint("beam_large", BeamSettings(beams=2))
    outputs = [first.outputs(one, split) for one in points]
    monkeypatch.setattr(second, "decoded", None)
    assert all(second.outputs(one, split) is found for one, found in zip(points, outputs, strict=True))


def test_a_row_is_written_again_where_a_value_differs_and_keeps_why_it_was_timed(tmp_path: Path) -> None:
    evaluator, split = ready(latency_rounds=2)
    writer = rows.RowWriter(evaluator, SweepRowFile(tmp_path / "rows.jsonl", "this work"), "toy", "aligned")
    outputs = evaluator.decoded(BILD, split)
    outcome, prediction = evaluator.assess(outputs, split), Prediction(latency_ms=9.0, speedup=2.0)
    first = writer.write_untimed(BILD, split, outcome, prediction)
    assert writer.write_untimed(BILD, split, outcome) == first
    written = [first, writer.write_untimed(BILD, split, outcome, same_as={"max_draft": 3})]
    for why, predicted in (("frontier", prediction), ("grid", None)):
        lap = evaluator.lap(BILD, outputs, split)
        assert isinstance(lap, Lap)
        written.append(writer.write_round(BILD, split, lap, rows.Asked(why, (outputs, outcome), predicted=predicted)))
    assert (written[-1].why, written[-1].predicted) == ("frontier", prediction)
    assert read_rows(tmp_path / "rows.jsonl", "") == written
