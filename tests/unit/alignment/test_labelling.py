"""Outputs of the large model: the choice of inputs, the filter for usable outputs, and the predictions stored with them."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tasks.alignment.calibration_set import FAULTS
from tasks.alignment.labelling import Labeller, TopLogitsPredictor, count_repeats, find_fault, input_set
from tasks.alignment.settings import CalibrateSettings
from tasks.corpora.example import Example, write_jsonl
from tasks.decoding.decoder import REFERENCE, Decoder
from tasks.decoding.generation import Counts, Generation
from tasks.decoding.method import SamplingSettings
from tasks.decoding.runtimes.choose import open_decoder
from tasks.errors import InputError
from tasks.training.data import JsonlDataset
from tasks.training.objective import target_log_probs
from tests.calibration import DRAWN, INPUTS, SOURCES, TEXT, saved, tiny

END = 1
SAMPLED = CalibrateSettings(batch_size=32, sampling=DRAWN, seed=3)


@pytest.mark.parametrize(
    ("tokens", "text", "fault"),
    [
        ([5, 6, END], "two words", None),
        ([5, 6], "two words", "over_long"),
        ([], "", "empty"),
        ([END], "", "empty"),
        ([5] * 3 + [END], "no no no", None),
        ([5] * 4 + [END], "no no no no", "degenerate"),
        ([4, 5, 6, 7] * 4 + [END], "one two three four", "degenerate"),
        ([4, 5, 6, 7] * 3 + [4, 5, 6, END], "one two three four", None),
    ],
)
def test_an_output_is_fit_or_has_a_fault(tokens: list[int], text: str, fault: str | None) -> None:
    assert find_fault(tokens, text, {END}, CalibrateSettings(max_repeats=3)) == fault
    assert fault is None or fault in FAULTS
    assert fault != "degenerate" or find_fault(tokens, text, {END}, CalibrateSettings(max_repeats=0)) is None


@pytest.mark.parametrize(
    ("tokens", "text", "fault"),
    [([5, 6], "two words", None), ([5] * 4, "no no no no", "degenerate"), ([6, 6], " ", "empty"), ([], "", "empty")],
)
def test_an_output_without_an_end_is_kept_where_asked_for(tokens: list[int], text: str, fault: str | None) -> None:
    assert find_fault(tokens, text, {END}, CalibrateSettings(keep_over_long=True, max_repeats=3)) == fault


@pytest.mark.parametrize(
    ("tokens", "times"), [([], 0), ([4, 4, 5, 4], 2), ([9, 4, 5, 4, 5, 4], 2), ([1, 2, 3] * 3 + [8], 3), ([*range(5)] * 9, 1)]
)
def test_repeats_are_counted_of_groups_of_up_to_four(tokens: list[int], times: int) -> None:
    assert count_repeats(tokens) == times


@pytest.fixture
def corpus(tmp_path: Path) -> list[Path]:
    files = [tmp_path / "train.jsonl", tmp_path / "unlabelled.jsonl"]
    write_jsonl(INPUTS[:30], files[0])
    write_jsonl([Example(source, ()) for source in SOURCES[30:]], files[1])
    return files


def test_shards_hold_every_input_once_and_in_order(corpus: list[Path]) -> None:
    whole = input_set("calibration", corpus[1:], (corpus[0], 1.0, 0), first=100)
    shards = list(whole.shards(12))
    assert [one.source for shard in shards for one in shard.examples] == SOURCES
    assert [shard.first for shard in shards] == [100, 112, 124, 136]
    assert {shard.name: len(shard.examples) for shard in shards} == whole.sizes(12)
    assert [*whole.sizes(12)] == [f"calibration-0000{number}" for number in range(4)]


def test_a_fraction_is_drawn_by_its_seed(corpus: list[Path]) -> None:
    drawn = [[one.source for one in next(input_set("c", [], (corpus[0], 0.3, seed)).shards(99)).examples] for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(drawn[0]) == 9
    assert sorted(drawn[0], key=SOURCES.index) == drawn[0]
    assert len(input_set("c", [], (corpus[0], 0.001, 0))) == 1


def test_a_set_without_inputs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").touch()
    with pytest.raises(InputError, match=r"train\.jsonl holds no examples"):
        input_set("calibration", [tmp_path / "train.jsonl"])


def opened(architecture: str) -> Decoder:
    return open_decoder(tiny(architecture)[0], "large", 64, REFERENCE)


@pytest.mark.parametrize("architecture", ["t5", "llama"])
def test_outputs_are_the_texts_of_the_model_and_all_are_counted(architecture: str) -> None:
    _, tokenizer = tiny(architecture)
    labelled = Labeller(opened(architecture), tokenizer, TEXT, SAMPLED).label(INPUTS)
    counts = labelled.counts
    assert counts["inputs"] == counts["outputs"] == len(SOURCES)
    assert counts["kept"] == len(labelled.examples) > 4
    assert counts["over_long"] > 0
    assert counts["outputs"] == counts["kept"] + sum(counts[fault] for fault in FAULTS)
    assert counts["tokens"] > 2 * counts["kept"]
    assert labelled.predictions is None
    assert all(example.source in SOURCES and len(example.references) == 1 for example in labelled.examples)


def test_outputs_depend_on_the_number_of_an_input_and_not_on_its_shard() -> None:
    labeller = Labeller(opened("t5"), tiny("t5")[1], TEXT, SAMPLED)
    whole = labeller.label(INPUTS, first=50, samples=2)
    parts = [labeller.label(INPUTS[begin : begin + 15], first=50 + begin, samples=2) for begin in range(0, len(SOURCES), 15)]
    assert [example for part in parts for example in part.examples] == whole.examples
    assert labeller.label(INPUTS, first=51, samples=2).examples != whole.examples


def test_equal_outputs_of_one_input_are_kept_once() -> None:
    cold = CalibrateSettings(sampling=SamplingSettings(temperature=0.3), samples=8, batch_size=64, max_repeats=0)
    found = list[int]()
    labelled = Labeller(opened("t5"), tiny("t5")[1], TEXT, cold).label(INPUTS[:6], samples=8, advance=found.append)
    pairs = [(example.source, example.references) for example in labelled.examples]
    assert len(set(pairs)) == len(pairs) == labelled.counts["kept"]
    assert labelled.counts["outputs"] == sum(found) == 48


@pytest.mark.parametrize("architecture", ["t5", "llama"])
def test_stored_predictions_have_the_ids_that_training_reads(architecture: str, tmp_path: Path) -> None:
    tokenizer = saved(architecture, tmp_path / "large")
    if architecture == "llama":
        tokenizer.bos_token = tokenizer.convert_ids_to_tokens(5)
    model, _ = tiny(architecture)
    texts = [Example(source, (source[::-1],)) for source in SOURCES]
    found = TopLogitsPredictor(model, tokenizer, TEXT, 60, kept=3, batch_size=8).along(texts)
    write_jsonl(texts, tmp_path / "texts.jsonl")
    read = JsonlDataset(tmp_path / "texts.jsonl", tokenizer, TEXT, decoder_only=architecture == "llama")
    assert [len(tokens) for tokens, _ in found] == [len(row) for row in read.targets]
    for place in (0, 17, 39):
        with torch.inference_mode():
            best, tokens = target_log_probs(model, read.batch([place]), 60).topk(3)
        assert torch.equal(found[place][0], tokens)
        torch.testing.assert_close(found[place][1], best)


@pytest.mark.parametrize("keep_over_long", [False, True])
@pytest.mark.parametrize("architecture", ["t5", "llama"])
def test_predictions_of_the_writing_are_those_of_a_second_run(architecture: str, keep_over_long: bool) -> None:
    model, tokenizer = tiny(architecture)
    predictor = TopLogitsPredictor(model, tokenizer, TEXT, 64, kept=3, batch_size=8)
    settings = replace(SAMPLED, keep_over_long=keep_over_long)
    labelled = Labeller(opened(architecture), tokenizer, TEXT, settings, predictor).label(INPUTS)
    assert (labelled.counts["over_long"] == 0) == keep_over_long
    again = predictor.along(labelled.examples)
    assert labelled.predictions is not None
    assert len(labelled.predictions) == len(again) == len(labelled.examples) > 4
    for (tokens, best), (expected_tokens, expected_best) in zip(labelled.predictions, again, strict=True):
        assert torch.equal(tokens, expected_tokens)
        torch.testing.assert_close(best, expected_best, atol=1e-4, rtol=0)
    assert labelled.examples == Labeller(opened(architecture), tokenizer, TEXT, settings).label(INPUTS).examples


def test_only_texts_that_the_tokenizer_splits_otherwise_are_run_again() -> None:
    model, tokenizer = tiny("t5")
    predictor = TopLogitsPredictor(model, tokenizer, TEXT, 64, kept=3, batch_size=8)
    read = predictor.tokenised(INPUTS[:3]).targets
    mark = [(torch.full((len(row), 3), index), torch.zeros(len(row), 3)) for index, row in enumerate(read)]
    tokens = (read[0], [9, *read[1]], read[2])
    written = [(Generation(row, "l" * len(row), Counts()), top) for row, top in zip(tokens, mark, strict=True)]
    found = predictor.along(INPUTS[:3], written)
    [expected] = predictor.along(INPUTS[1:2])
    assert found[0] is mark[0]
    assert torch.equal(found[1][0], expected[0])
    assert found[2] is mark[2]


def test_more_predictions_than_tokens_are_refused() -> None:
    with pytest.raises(InputError, match=r"calibrate\.top_logits is 65, but the vocabulary has 64 tokens"):
        TopLogitsPredictor(*tiny("t5"), TEXT, 64, kept=65, batch_size=8)
