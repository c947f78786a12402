"""A large model that has collapsed to one output: the report recommends nothing and says why."""

from pathlib import Path
from unittest.mock import MagicMock

import pytest

from tasks.corpora.example import Example, write_jsonl
from tasks.evaluation.report.recommendation import as_lines
from tasks.evaluation.report.summarize import summarize
from tasks.evaluation.settings import GridSettings
from tasks.paths import ARMS
from tasks.report import read_seeds
from tests.ticking import Words
from tests.toy_sweep import PATHS, swept, use
from tests.toys import VOCABULARY, prefix_pair, says, toy_sources


def test_the_verdict_recommends_nothing_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both models say the same word to every source, as after a training that went wrong; references differ."""
    monkeypatch.chdir(tmp_path)
    PATHS.corpus.mkdir(parents=True)
    for seed, split in enumerate(("validation", "test")):
        texts = [Words().decode(row, skip_special_tokens=True) for row in toy_sources(24, seed)]
        write_jsonl([Example(text, (" ".join(reversed(text.split())),)) for text in texts], PATHS.split(split))
    collapsed = says([7], vocabulary=VOCABULARY)
    use(prefix_pair(collapsed, collapsed), monkeypatch)
    monkeypatch.setattr("tasks.sweep.SweepRecord", MagicMock())
    for arm in ARMS:
        swept(GridSettings(method="speculative", values={"draft_length": [2, 3]}), arm=arm, bootstrap_samples=200)
    arms = read_seeds(PATHS, "bleu", [1])
    summary = summarize("toy", "bleu", arms)
    text = as_lines(summary)
    assert summary.recommended is None
    assert text.startswith("These models support no recommendation: ")
    assert "gives 1 distinct output for 24 inputs, 'w7' for 100% of them" in text
    assert "the large model is not shown to beat the aligned small model alone" in text
    assert "Deploy" not in text
    assert len(summary.recommendation.against) >= 3
