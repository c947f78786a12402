"""Words and sentences of any script, and the tokenizers of metrics."""

from pathlib import Path
from typing import Any

import pytest
import sacrebleu
import yaml
from rouge_score import rouge_scorer

from tasks.config import load
from tasks.corpora.example import Example
from tasks.errors import InputError
from tasks.evaluation.report.formatting import metric_name
from tasks.evaluation.report.paper_tables import anything_published
from tasks.evaluation.scoring import metrics as tokenizers
from tasks.evaluation.scoring import quality as scoring
from tasks.evaluation.scoring.metrics import BLEU_TOKENIZERS, METRICS, MetricSettings, compared_as, metric_of
from tasks.evaluation.scoring.words import split_sentences, unicode_words
from tasks.evaluation.settings import Experiment
from tasks.prepare import check_references

CHINESE = ["今天天气很好,我们去公园散步。", "他在北京大学学习了三年中文。"]
OTHER = ["今天天气不好,我们去公园。", "他在北京学习了两年中文。"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The U.S. don't pay $3.50_now!", "the u s don t pay 3 50 now"),
        ("Größe, GRÖSSE; naïve ﬁne Ｆｕｌｌ²", "grösse grösse naïve fine full2"),
        ("cafe\u0301 co\u00adop", "café coop"),
        ("हिन्दी में", "हिन्दी में"),
        ("Москва́ – Ελλάς", "москва́ ελλάσ"),
        ("東京タワー2階", "東 京 タ ワ ー 2 階"),
        ("ที่นี่", "ที่ นี่"),
        ("한국어 문장", "한국어 문장"),
        ("\u0301 — ", ""),
    ],
)
def test_words_of_any_script(text: str, words: str) -> None:
    assert unicode_words(text) == words.split()


def test_english_has_the_default_s_words_without_stems() -> None:
    left = "The mayor's 3 new bridges re-opened; it's U.S. made."
    right = "The mayor opened 3 bridges: it was re-made in the U.S."
    plain = rouge_scorer.RougeScorer(["rouge2", "rougeL"], use_stemmer=False).score(right, left)
    for name in ("rouge2", "rougeL"):
        found = scoring.value_of([left], [(right,)], f"{name}[rouge_tokenizer=unicode]")
        assert found == pytest.approx(100 * plain[name].fmeasure)


def test_identical_chinese_is_perfect_where_its_script_is_read() -> None:
    references = [(text,) for text in CHINESE]
    # The default reads nothing of it.
    assert scoring.value_of(CHINESE, references, "rougeL") == scoring.value_of(CHINESE, references, "bleu") == 0
    quality = scoring.score(CHINESE, references, "rougeL[rouge_tokenizer=unicode,bleu_tokenizer=zh]", 20, 0)
    assert quality.scores == pytest.approx(dict.fromkeys(("bleu", "rouge1", "rouge2", "rougeL", "rougeLsum"), 100.0))
    assert quality.signature.startswith("tok:unicode|stem:no|sent:rules|version:")
    assert scoring.score(CHINESE, references, "rougeL", 20, 0).signature.startswith("tok:default|stem:porter|")


@pytest.mark.parametrize("tokenizer", ["zh", "char", "intl"])
def test_bleu_is_sacrebleu_s_with_its_tokenizer(tokenizer: str) -> None:
    metric, references = f"bleu[bleu_tokenizer={tokenizer}]", [(text,) for text in CHINESE]
    expected = sacrebleu.corpus_bleu(OTHER, [CHINESE], tokenize=tokenizer).score
    quality = scoring.score(OTHER, references, metric, 20, 0)
    assert quality.value == quality.scores["bleu"] == scoring.value_of(OTHER, references, metric) == expected
    assert f"|tok:{tokenizer}|" in quality.signature
    sums = scoring.example_statistics(OTHER, references, metric).sum(axis=0, keepdims=True).astype(float)
    assert scoring.values_of(sums, len(OTHER))[0] == pytest.approx(expected)


def test_a_full_name_is_read_back() -> None:
    settings = MetricSettings(name="rougeL", bleu_tokenizer="zh", rouge_tokenizer="unicode")
    assert metric_of(str(settings)) == settings and settings.tokenizer == "unicode"
    assert str(MetricSettings(name="bleu", bleu_tokenizer="13a")) == "bleu"
    assert [metric_name(name) for name in ("bleu", str(settings))] == ["BLEU", "ROUGE-L (unicode)"]
    for wrong in ("blue", "bleu[tokenizer=zh]", "bleu[bleu_tokenizer=xx]", "token_f1[bleu_tokenizer=zh]"):
        with pytest.raises(ValueError, match=r"unknown|must be one of|takes no BLEU"):
            metric_of(wrong)


def test_published_numbers_stand_beside_the_papers_tokenizers_alone() -> None:
    assert all(anything_published(metric, Experiment(dataset="xsum")) for metric in ("rougeL", "rougeL[bleu_tokenizer=zh]"))
    assert compared_as("rougeL[bleu_tokenizer=zh,rouge_tokenizer=unicode]") == "rougeL[rouge_tokenizer=unicode]"
    assert not anything_published("bleu[bleu_tokenizer=char]", Experiment(dataset="iwslt17-de-en"))
    assert [compared_as(name) for name in METRICS] == list(METRICS)


@pytest.mark.parametrize(
    ("tokenizer", "words"),
    [
        ("ja-mecab", r"needs the package sacrebleu\[ja\], which is not installed; run pip install 'sacrebleu\[ja\]'"),
        ("ko-mecab", r"pip install 'sacrebleu\[ko\]'"),
        ("flores200", r"needs the model .*, which is not there; run python -c"),
    ],
)
def test_a_missing_tokenizer_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tokenizer: str, words: str) -> None:
    monkeypatch.setattr(tokenizers, "find_spec", lambda name: name if name == "sentencepiece" else None)
    monkeypatch.setattr("sacrebleu.utils.SACREBLEU_DIR", str(tmp_path))
    tokenizers.require_bleu_tokenizer.cache_clear()
    with pytest.raises(InputError, match=words):
        check_references({"test": [Example("a", ("b",))]}, f"bleu[bleu_tokenizer={tokenizer}]")
    with pytest.raises(InputError, match=words):
        scoring.value_of(["b"], [("b",)], f"bleu[bleu_tokenizer={tokenizer}]")


def test_every_tokenizer_is_sacrebleu_s() -> None:
    assert set(BLEU_TOKENIZERS) <= set(sacrebleu.BLEU.TOKENIZERS)


@pytest.mark.parametrize(
    ("metric", "found"),
    [
        ("bleu", "bleu"),
        ({"name": "bleu", "bleu_tokenizer": "13a"}, "bleu"),
        ({"name": "rougeLsum", "rouge_tokenizer": "unicode"}, "rougeLsum[rouge_tokenizer=unicode]"),
        ({"name": "bleu", "tokenizer": "zh"}, "translation.metric: unknown setting tokenizer; did you mean bleu_tokenizer?"),
        ({"name": "bleu", "bleu_tokenizer": "xx"}, "tasks.translation.metric: bleu_tokenizer is 'xx'; it must be one of 13a"),
        ({"name": "exact_match", "rouge_tokenizer": "unicode"}, "but exact_match takes no ROUGE; leave it out"),
        (["bleu"], "tasks.translation.metric: "),
    ],
)
def test_a_metric_of_params_yaml_is_a_name_or_a_section(tmp_path: Path, metric: Any, found: str) -> None:
    params = yaml.safe_load((Path(__file__).parents[4] / "params.yaml").read_text(encoding="utf-8"))
    params["tasks"]["translation"]["metric"] = metric
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump(params), encoding="utf-8")
    if " " not in found:
        assert load(path).task("translation").metric == found
        return
    with pytest.raises(InputError) as refused:
        load(path)
    assert found in str(refused.value)


SENTENCES = [
    # Abbreviations that never end a sentence, and those that do where one begins.
    ["The U.S. Senate met Mr. Smith and Dr. No.", "He left at 5 p.m.", "The end."],
    ["He lives in the U.S.", "The president of the U.S. said so."],
    ["Apple Inc. said so.", "So did Acme Ltd.", "The firms grew."],
    ["Some fruit, e.g. apples, i.e. Red Delicious, etc. and more.", "Yes."],
    ["J. K. Rowling met George W. Bush in Washington D.C.", "Then she left."],
    ["Take bus No. 5 to St. John.", "He said no.", "Then it left."],
    # Numbers: decimals, years, lists, ordinals.
    ["It rose 3.5 percent in 1990.", "In 1991 it fell by 4.", "Good."],
    ["1. Mix it.", "2. Bake it."],
    ["Am 3. Oktober 1990 war es so weit.", "Der 2. Weltkrieg endete im 20. Jahrhundert.", "Er ist 12.", "Sie ist 13."],
    ["Ludwig XIV. war König, z. B. von Navarra, d. h. im Süden.", "Hunde, Katzen usw.", "Und so weiter."],
    # Ellipses, quotes, brackets.
    ["Wait... what?", "Well...", "No.", "OK … then."],
    ['He said "Go."', "She left.", '"Stop!" he said.', "(It rained.)", "Then it stopped."],
    # A text of tokens, a text without capitals.
    ["the mayor , 12 .", "he left for u.s. soil .", "all right ."],
    ["he came.", "she saw?", "they won!"],
    # Other punctuation.
    ["今天下雨。", "我们走吧！", "「好。」", "他说。"],
    ["वह आया।", "हम गए।"],
]


@pytest.mark.parametrize("sentences", SENTENCES, ids=lambda sentences: sentences[0])
def test_a_text_is_split_into_its_sentences(sentences: list[str]) -> None:
    lines = split_sentences("".join(sentences) if "。" in sentences[0] else " ".join(sentences)).split("\n")
    assert lines == sentences


def test_lines_are_sentences_and_nothing_is_none() -> None:
    assert split_sentences(" One two\n\n three. Four \n") == "One two\nthree.\nFour"
    assert split_sentences(" \n") == ""


def test_an_abbreviation_costs_no_rouge_lsum() -> None:
    """Split at "U.S." and "Mr.", the same words in two sentences would match in pieces, whatever their order."""
    right, wrong = "The U.S. praised Mr. Fox. It rained.", "Mr. Fox praised the U.S. It rained."
    quality = scoring.score([wrong], [(right,)], "rougeLsum", samples=10, seed=0)
    assert quality.scores["rougeLsum"] == pytest.approx(100 * 5 / 8), "three words of six in order, and both of two"
