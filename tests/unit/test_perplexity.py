"""Perplexity with fallback: a plain implementation without caches and loops, and the command for both architectures."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

from tasks import perplexity as stage
from tasks.corpora.example import Example, write_jsonl
from tasks.decoding.decoder import Rows
from tasks.decoding.generation import Counts
from tasks.decoding.given_text import without_end_tokens
from tasks.decoding.method import Pair
from tasks.decoding.runtimes.reference import TransformersDecoder
from tasks.errors import one_line_errors
from tasks.evaluation.report.charts import Figure, save
from tasks.evaluation.sweep.given_text import read_along
from tasks.perplexity import Perplexity, chunks, latencies, perplexity
from tests.toys import END, START, Predict, prefix_pair, random_table, says, toy_sources, toy_t5, whole_runs

SMALL, LARGE = (random_table(name, agreement=0.7, sharpness=2.0) for name in ("small", "large"))


def by_hand(small: Predict, large: Predict, sources: Rows, texts: Rows, threshold: float) -> Perplexity:
    """BiLD-v1, 3.3, literally: the small model scores unless its top probability is not above the threshold."""
    log_likelihood, counts = 0.0, Counts()
    for source, text in zip(sources, texts, strict=True):
        unseen = 0
        for position, token in enumerate(text):
            prefix = (START, *text[:position])
            log_q = torch.log_softmax(small(tuple(source), prefix), -1)
            unseen += 1
            counts.small_steps += 1
            if math.exp(float(log_q.max())) > threshold:
                counts.drafted += 1
                log_likelihood += float(log_q[token])
            else:
                counts.fallbacks += 1
                counts.large_calls += 1
                counts.accepted += unseen - 1
                counts.verified[unseen] += 1
                if unseen > 1:
                    counts.kept[unseen - 1, unseen - 1] += 1
                unseen = 0
                log_likelihood += float(torch.log_softmax(large(tuple(source), prefix), -1)[token])
        counts.tokens += len(text)
    return Perplexity(log_likelihood, counts)


def perplexity_of(pair: Pair, sources: Rows, texts: Rows, threshold: float) -> Perplexity:
    return perplexity(pair, read_along(without_end_tokens(pair), sources, texts, "read"), threshold)


def same(one: Perplexity, other: Perplexity) -> bool:
    return one.counts == other.counts and one.log_likelihood == pytest.approx(other.log_likelihood, rel=1e-6)


def random_texts(count: int, vocabulary: int) -> Rows:
    """Texts of several lengths that contain end tokens."""
    return [[token % vocabulary for token in (*row, *row[:3])] for row in toy_sources(count, seed=3)]


@pytest.mark.parametrize("threshold", [0.0, 0.5, 1.0])
def test_it_follows_the_paper_on_random_tables(threshold: float) -> None:
    sources, texts = toy_sources(40), random_texts(40, 8)
    assert any(END in text[:-1] for text in texts)
    found = perplexity_of(prefix_pair(SMALL, LARGE), sources, texts, threshold)
    assert same(found, by_hand(SMALL, LARGE, sources, texts, threshold))
    assert (found.large_share == 0, found.large_share == 1) == (threshold == 0, threshold == 1)


def test_caches_change_nothing() -> None:
    models = toy_t5(1, 2, 1), toy_t5(2, 1, 3)
    pair = Pair(TransformersDecoder(models[0], "small"), TransformersDecoder(models[1], "large"))
    sources, texts = toy_sources(12), random_texts(12, 24)
    found = perplexity_of(pair, sources, texts, 0.5)
    assert same(found, by_hand(whole_runs(models[0]), whole_runs(models[1]), sources, texts, 0.5))
    assert 0.2 < found.large_share < 0.8
    assert pair.large.end_token == pair.small.end_token == END


def test_counts_by_hand() -> None:
    """Sure, sure, unsure, sure, unsure, unsure, sure: the large model reads 3, 2 and 1 new positions in its three runs."""
    pair = prefix_pair(says([2, 3, 4, 5, 6, 7, 2], unsure=[2, 4, 5]), says([2, 3, 4, 5, 6, 6, 2]))
    found = perplexity_of(pair, [[5, END]], [[2, 3, 4, 5, 6, 7, 2]], 0.5)
    expected = Counts(7, small_steps=7, large_calls=3, drafted=4, accepted=3, fallbacks=3)
    expected.verified, expected.kept = Counter({3: 1, 2: 1, 1: 1}), Counter({(2, 2): 1, (1, 1): 1})
    assert found.counts == expected
    assert found.large_share == 3 / 7
    # All positions but one are nearly certain; there the large model predicts 6, and 7 is e^-20 as likely.
    assert found.log_likelihood == pytest.approx(-20, abs=1e-4)
    assert found.value == pytest.approx(math.exp(20 / 7), rel=1e-4)


def test_an_impossible_token_gives_infinity() -> None:
    def never_seven(source: tuple[int, ...], prefix: tuple[int, ...]) -> torch.Tensor:
        return torch.zeros(8).index_fill_(0, torch.tensor([7]), -torch.inf)

    pair = prefix_pair(never_seven, never_seven)
    assert perplexity_of(pair, [[END]], [[3, 3]], 0).value == pytest.approx(7)
    assert perplexity_of(pair, [[END]], [[3, 7]], 0).value == math.inf


def test_a_stream_is_cut_into_chunks() -> None:
    sources, texts = chunks(range(11), 4)
    assert [source + text for source, text in zip(sources, texts, strict=True)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]
    assert chunks(range(9), 4)[0] == [[0], [4]], "a single remaining token cannot be scored"
    assert chunks([], 4) == chunks([3], 4) == ([], [])


def test_it_is_timed_relative_to_the_large_model_alone() -> None:
    """Uses a clock that counts the positions that the large model predicts."""
    asked = 0

    def large(source: tuple[int, ...], prefix: tuple[int, ...]) -> torch.Tensor:
        nonlocal asked
        asked += 1
        return LARGE(source, prefix)

    texts = random_texts(9, 8)
    for threshold, share in ((0.0, 0), (1.0, 1)):
        found = latencies(prefix_pair(SMALL, large), toy_sources(9), texts, threshold, 9, lambda: float(asked))
        assert sorted(found.vanilla) == sorted(1000.0 * len(text) for text in texts)
        assert found.method == [share * vanilla for vanilla in found.vanilla]
    some = latencies(prefix_pair(SMALL, large), toy_sources(9), texts, 0.5, 4, lambda: float(asked))
    assert len(some.method) == len(some.vanilla) == 4


# The command.

WORDS = [f"w{number}" for number in range(20)]
PAD, STOP, UNKNOWN = "<pad>", "</s>", "<unk>"
TEXT = " ".join(WORDS[number * number % 20] for number in range(57))
Run = Callable[..., dict[str, Any]]


def tokenizer(words: list[str]) -> Any:
    """One token a word."""
    vocabulary = {word: index for index, word in enumerate([PAD, STOP, UNKNOWN, *words])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token=PAD, eos_token=STOP, unk_token=UNKNOWN)


def gpt2(layers: int, vocabulary: int) -> Any:
    config = GPT2Config(
        vocab_size=vocabulary, n_positions=32, n_embd=16, n_layer=layers, n_head=2, bos_token_id=None, eos_token_id=1
    )
    return GPT2LMHeadModel(config)


def t5(layers: int, vocabulary: int) -> Any:
    return T5ForConditionalGeneration(
        T5Config(vocab_size=vocabulary, d_model=16, d_ff=16, d_kv=8, num_heads=2, num_layers=layers, decoder_start_token_id=0)
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models of either kind, one that has other words, and a text of 57 words."""
    place = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    for name, build in (("gpt2", gpt2), ("t5", t5)):
        for size, layers in (("small", 1), ("large", 2)):
            build(layers, 23).save_pretrained(place / f"{name}-{size}")
            tokenizer(WORDS).save_pretrained(place / f"{name}-{size}")
    gpt2(1, 22).save_pretrained(place / "other")
    tokenizer(WORDS[:-1]).save_pretrained(place / "other")
    (place / "text").write_text(TEXT, encoding="utf-8")
    (place / "lines").write_text("w1 w2 w3\nw4 w5\n", encoding="utf-8")
    (place / "targets").write_text("w3 w2 w9 w1\nw5\n", encoding="utf-8")
    (place / "one").write_text("w1", encoding="utf-8")
    (place / "holes").write_text("w1\n\nw2\n", encoding="utf-8")
    (place / "bytes").write_bytes(b"w1 \xff w2")
    return place


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Calls the command in the folder and reads its last line."""
    monkeypatch.chdir(folder)

    def call(*arguments: str, kind: str = "gpt2", **named: str) -> dict[str, Any]:
        options = {"small": f"{kind}-small", "large": f"{kind}-large", "text": "text", **named}
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        monkeypatch.setattr(sys, "argv", ["perplexity", *words, *arguments])
        with one_line_errors():
            stage.main()
        result: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
        return result

    return call


def loss_of_gpt2(name: str, ids: list[int], chunk: int) -> float:
    """Mean over all scored positions, by the model's own loss of each chunk."""
    model, losses, positions = GPT2LMHeadModel.from_pretrained(name).eval(), 0.0, 0
    for begin in range(0, len(ids), chunk):
        piece = torch.tensor([ids[begin : begin + chunk]])
        with torch.inference_mode():
            losses += float(model(piece, labels=piece).loss) * (piece.shape[1] - 1)
        positions += piece.shape[1] - 1
    return losses / positions


def test_extreme_thresholds_give_the_perplexity_of_one_model(run: Run) -> None:
    ids = [3 + WORDS.index(word) for word in TEXT.split()]
    for threshold, name in (("0", "gpt2-small"), ("1", "gpt2-large")):
        found = run("--fallback", threshold, "--chunk", "12")
        assert found["perplexity"] == pytest.approx(math.exp(loss_of_gpt2(name, ids, 12)), rel=1e-5)
        assert (found["positions"], found["texts"]) == (52, 5)
        assert found["large_share"] == float(threshold)
        assert found["large_calls"] == 52 * int(threshold)
        assert found["small_steps"] == 52


def test_between_them_both_models_score(run: Run) -> None:
    found = run("--fallback", "0.053", "--chunk", "12", "--timed", "2")
    assert 0 < found["large_share"] < 1
    assert found["large_calls"] == round(found["large_share"] * 52)
    assert len(found["latency_ms"]) == len(found["vanilla_latency_ms"]) == 2
    assert found["speedup"] == pytest.approx(sum(found["vanilla_latency_ms"]) / sum(found["latency_ms"]))


@pytest.mark.parametrize("timed", [True])
def test_several_thresholds_are_a_line_each_and_a_curve(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], timed: bool
) -> None:
    drawn: list[Figure] = []

    def noted(figure: Figure, path: Path) -> None:
        drawn.append(figure)
        save(figure, path)

    monkeypatch.setattr(stage, "save", noted)
    thresholds = ["1", "0.053", "0"]
    alone = {threshold: run("--fallback", threshold, "--chunk", "12") for threshold in thresholds}
    command = ["--small", "gpt2-small", "--large", "gpt2-large", "--text", "text", "--chunk", "12", "--figure", "curve.svg"]
    monkeypatch.setattr(sys, "argv", ["perplexity", *command, "--fallback", *thresholds, *(["--timed", "2"] if timed else [])])
    stage.main()
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for threshold, line in zip(thresholds, lines, strict=True):
        assert alone[threshold].items() <= line.items()
        assert ("speedup" in line) == timed
    [figure] = drawn
    share, *latency = [panel.to_dict()["datasets"] for panel in figure.panels]
    across = {mark["threshold"]: (mark["x"], mark["y"]) for records in share.values() for mark in records}
    assert across == {threshold: (100 * one["large_share"], one["perplexity"]) for threshold, one in alone.items()}
    assert len(latency) == timed
    assert "small model with fallback" in (folder / "curve.svg").read_text(encoding="utf-8")


def test_a_split_of_a_task_is_the_text_of_its_sources_and_references(run: Run, folder: Path) -> None:
    words = TEXT.split()
    passages = [words[:20], words[20:30], words[30:]]
    examples = [Example(" ".join(one[:5]), (" ".join(one[5:]), "w9 w9")) for one in passages]
    write_jsonl(examples, folder / "validation.jsonl")
    assert run("--chunk", "12", text="validation.jsonl") == run("--chunk", "12")


def test_an_encoder_decoder_scores_lines_given_their_sources(run: Run) -> None:
    model = T5ForConditionalGeneration.from_pretrained("t5-large").eval()
    losses = 0.0
    for source, target in (([4, 5, 6, 1], [6, 5, 12, 4, 1]), ([7, 8, 1], [8, 1])):
        with torch.inference_mode():
            losses += float(model(torch.tensor([source]), labels=torch.tensor([target])).loss) * len(target)
    found = run("--sources", "lines", "--fallback", "1", kind="t5", text="targets")
    assert found["perplexity"] == pytest.approx(math.exp(losses / 7), rel=1e-5)
    assert (found["positions"], found["texts"]) == (7, 2)


@pytest.mark.parametrize(
    ("arguments", "named", "words"),
    [
        ([], {"text": "nowhere"}, "nowhere cannot be read (No such file or directory); name a text file"),
        ([], {"text": "."}, ". cannot be read (Is a directory); name a text file"),
        ([], {"text": "bytes"}, "bytes is not UTF-8 (byte 4); save it as UTF-8"),
        ([], {"text": "one"}, "one has 1 tokens; give a text of at least 2"),
        ([], {"small": "other"}, "other has 22 tokens but gpt2-large has 23"),
        ([], {"small": "t5-small"}, "the small model is encoder-decoder (t5) but the large one is decoder-only (gpt2)"),
        (["--fallback", "1.2"], {}, "fallback_threshold is 1.2; it must be at most 1"),
        (["--fallback", "nan"], {}, "fallback_threshold is nan; it must be at least 0"),
        (["--fallback", "0.1", "-0.1"], {}, "fallback_threshold is -0.1; it must be at least 0"),
        (["--figure", "curve.pdf"], {}, "--figure is curve.pdf; its name must end in .svg or .png"),
        (["--figure", "no/curve.svg"], {}, "--figure is no/curve.svg; there is no folder no"),
        (["--chunk", "1"], {}, "chunk is 1; it must be at least 2"),
        (["--chunk", "33"], {}, "--chunk is 33, but gpt2-small has 32 positions; lower it"),
        (["--timed", "-1"], {}, "--timed is -1; it must be at least 0"),
        (["--sources", "lines"], {}, "gpt2-large is decoder-only and reads no source; leave out --sources"),
        ([], {"kind": "t5"}, "t5-large is an encoder-decoder; give --sources, a line for each line of --text"),
        (["--sources", "lines"], {"kind": "t5"}, "lines has 2 lines and text has 1; each line of one must be the source"),
        (["--sources", "holes"], {"kind": "t5"}, "holes, line 2: the line is empty; each line must hold a text"),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    run: Run, capsys: pytest.CaptureFixture[str], arguments: list[str], named: dict[str, str], words: str
) -> None:
    short = ["--chunk", "12"] if "--chunk" not in arguments else []
    with pytest.raises(SystemExit) as caught:
        run(*short, *arguments, **named)
    assert caught.value.code == 2
    errors = capsys.readouterr().err
    assert f"error: {words}" in errors
    assert "Traceback" not in errors
