"""Answers by hand, as SQuAD's and GSM8K's scorers read them; perplexity of given texts; generated programs."""

import math
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from tasks.errors import InputError
from tasks.evaluation.report.formatting import METRIC_NAMES
from tasks.evaluation.scoring import metrics
from tasks.evaluation.scoring import quality as scoring
from tasks.evaluation.selection import paired_differences
from tasks.prepare import check_references
from tests.sandbox import sandboxed


@pytest.mark.parametrize(
    ("text", "references", "exact", "f1"),
    [
        ("The Eiffel  Tower!", ("eiffel tower",), 1, 1),
        ("in Paris, France", ("Paris",), 0, 0.5),  # one of three words and the only one of the other: 2 / 4
        ("cat cat", ("cat dog",), 0, 0.5),  # a repeated word counts once
        ("theory", ("ory",), 0, 0),  # an article is a whole word
        ("", ("",), 1, 1),
        ("an answer", ("",), 0, 0),
        ("", ("something",), 0, 0),
        ("", ("something", ""), 0, 0),  # a question with an answer is not also unanswerable
        ("The.", ("a",), 1, 1),
    ],
)
def test_exact_match_and_f1_by_hand(text: str, references: tuple[str, ...], exact: float, f1: float) -> None:
    assert metrics.exact_match(text, references) == exact
    assert metrics.token_f1(text, references) == pytest.approx(f1)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("So 3 + 4 = 7 apples.", "7"),
        ("She pays $1,250.00 in all.", "1250"),
        ("12,34", "34"),  # not a thousands separator
        ("it is -5 degrees", "-5"),
        ("x = −0.50", "-0.5"),
        ("10-5", "5"),
        ("half is .5", "0.5"),
        ("48/2 = <<48/2=24>>24\n#### 72", "72"),
        ("#### 1,000 of 7 days\n#### 3", "3"),
        ("version 2.0.", "2"),
    ],
)
def test_the_last_number_of_a_text(text: str, number: str) -> None:
    assert metrics.last_number(text) == Decimal(number)


def test_a_numeric_answer_needs_a_number_on_both_sides() -> None:
    assert metrics.last_number("no number") is None
    assert metrics.numeric_answer("no number", ("none",)) == 0.0
    assert metrics.numeric_answer("first 8, then 72.0", ("steps 9\n#### 72", "71")) == 1.0
    assert metrics.numeric_answer("-72", ("#### 72",)) == 0.0


REFERENCES = [("the red house",), ("blue", "deep blue"), ("42",), ("",)] * 5
GOOD = ["red house", "blue", "the answer is 42", ""] * 5
BAD = ["house", "sky", "41", "something"] * 5


@pytest.mark.parametrize("metric", ["exact_match", "token_f1", "numeric_answer"])
def test_an_answer_is_scored_as_any_other_metric(metric: str) -> None:
    quality = scoring.score(GOOD, REFERENCES, metric, samples=50, seed=1)
    statistics = scoring.example_statistics(GOOD, REFERENCES, metric)
    assert quality.value == quality.scores[metric] == scoring.value_of(GOOD, REFERENCES, metric) == statistics.mean()
    assert scoring.values_of(statistics.sum(axis=0, keepdims=True), len(GOOD))[0] == quality.value
    assert np.all(scoring.gradients_of(statistics.sum(axis=0, keepdims=True), len(GOOD)) == 1 / len(GOOD))
    assert quality.signature == "" and "bleu" not in quality.scores
    other = scoring.score(BAD, REFERENCES, metric, samples=50, seed=1)
    low, high = quality.minus(other)
    assert low <= quality.value - other.value <= high and quality.value > other.value


def test_exact_match_and_f1_are_reported_together() -> None:
    scores = scoring.score(GOOD, REFERENCES, "exact_match", samples=20, seed=1).scores
    assert scores == {"exact_match": 75.0, "token_f1": pytest.approx(100 * (1 + 1 + 2 / 4 + 1) / 4)}


def test_every_metric_has_a_name_in_the_report() -> None:
    assert set(METRIC_NAMES) == set(metrics.METRICS) and metrics.PROGRAMS in metrics.METRICS


LIKELIHOODS, TOKENS = [-6.0, -2.0, -12.0, -5.0], [3, 2, 4, 1]


def test_perplexity_is_of_all_tokens_and_not_a_mean_of_texts() -> None:
    found = scoring.score_likelihoods(LIKELIHOODS, TOKENS, 200, 1)
    assert found.scores == {"perplexity": pytest.approx(math.exp(2.5))}
    assert found.value == -found.scores["perplexity"]
    assert found.interval[0] < found.value < found.interval[1] < 0
    assert found.signature == "tokens:10|given:the second part of each text|distribution:temperature 1"
    assert found.minus(found) == (0.0, 0.0)


def test_gradients_are_those_of_the_value() -> None:
    sums, step = np.array([[25.0, 10.0], [70.0, 33.0]]), 1e-6
    found = scoring.gradients_of(sums, 4)
    for column in range(2):
        shift = np.zeros(2)
        shift[column] = step
        slope = (scoring.values_of(sums + shift, 4) - scoring.values_of(sums - shift, 4)) / (2 * step)
        assert found[:, column] == pytest.approx(slope, rel=1e-6)


def test_influences_predict_what_an_example_is_worth() -> None:
    """Leaving an example out changes the difference by about its influence over n, as for every metric that is of sums."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(50, 100, 400).tolist()
    nats = [rng.uniform(1.9, 2.1, 400) * tokens for _ in range(2)]
    point, vanilla = (metrics.likelihood_statistics((-one).tolist(), tokens) for one in nats)
    differences = paired_differences(point[None], vanilla)
    assert differences.values[0] == pytest.approx(math.exp(nats[1].sum() / sum(tokens)) - math.exp(nats[0].sum() / sum(tokens)))
    for left_out in (0, 57, 399):
        rest = [index for index in range(400) if index != left_out]
        without = paired_differences(point[None, rest], vanilla[rest]).values[0]
        assert 399 * (differences.values[0] - without) == pytest.approx(differences.influence[0, left_out], abs=0.02)


@pytest.mark.parametrize("value", [-math.inf, math.nan, -1500.0])
def test_an_impossible_text_has_no_perplexity(value: float) -> None:
    with pytest.raises(metrics.InfinitePerplexityError, match="the text of example 1 has a log-likelihood of"):
        scoring.score_likelihoods([-1.0, value], [2, 2], 100, 0)


@pytest.mark.parametrize(("values", "tokens"), [([], []), ([-1.0], [1, 2]), ([-1.0], [0])])
def test_texts_without_tokens_are_refused(values: list[float], tokens: list[int]) -> None:
    with pytest.raises(ValueError, match="one for each, of at least a token"):
        scoring.score_likelihoods(values, tokens, 100, 0)


def test_outputs_have_no_perplexity() -> None:
    with pytest.raises(InputError, match="the metric perplexity is of given texts, and these are outputs; choose another"):
        scoring.score(["a"], [("a",)], "perplexity", 100, 0)


ADD = "def add(a, b):\n    return a + b\n"
TESTS = "assert add(1, 2) == 3\nassert add(-1, 1) == 0"


@sandboxed
def test_a_program_passes_with_all_of_its_tests() -> None:
    assert metrics.passes(ADD, TESTS)
    assert not metrics.passes(ADD.replace("+", "-"), TESTS)
    assert not metrics.passes(ADD, f"{TESTS}\nassert add(1, 1) == 3")
    assert metrics.passes("import json, math, re, os\nopen('own', 'w').write('x')\nos.remove('own')", "assert not os.listdir()")


@sandboxed
@pytest.mark.parametrize(
    "program",
    ["import os\nos._exit(0)", "def add(a, b):", f"{ADD}\nimport numpy", "\0"],
    ids=["leaves", "no program", "needs a package", "NUL"],
)
def test_a_program_that_does_not_reach_its_tests_fails(program: str) -> None:
    assert not metrics.passes(program, "")


@sandboxed
def test_time_memory_and_files_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_CPU_SECONDS", 1)
    begin = time.monotonic()
    assert not metrics.passes("while True:\n    pass", "", wall_seconds=60)
    assert not metrics.passes("import time\ntime.sleep(60)", "", wall_seconds=0.3)
    assert time.monotonic() - begin < 30
    assert not metrics.passes("x = bytearray(1 << 31)", "")
    assert not metrics.passes("open('large', 'w').write('x' * (1 << 22))", "")


@sandboxed
@pytest.mark.parametrize(
    "attack",
    [
        "import socket\nsocket.create_connection(('1.1.1.1', 53), 1)",
        "import os\nos.kill(os.getppid() or 0, 0) if os.getppid() > 1 else 1 / 0",
        *(f"import os\n{one}" for one in ("open(PATH, 'a').write('x')", "os.remove(PATH)", "os.mkdir(PATH + '.d')")),
    ],
)
def test_nothing_outside_its_folder_is_in_reach(attack: str) -> None:
    kept = Path(__file__)
    before = kept.stat()
    assert not metrics.passes(f"PATH = {str(kept)!r}\n{attack}", "")
    assert all(getattr(kept.stat(), name) == getattr(before, name) for name in ("st_mode", "st_mtime_ns", "st_size"))


@sandboxed
def test_nothing_is_left_of_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert metrics.passes("import os\nos.mkdir('folder')\nopen('folder/file', 'w').close()", "")
    assert list(tmp_path.iterdir()) == []


@sandboxed
def test_pass_at_1_is_the_share_of_programs_that_pass() -> None:
    references = [(ADD, *TESTS.split("\n")), ("x = 2", "assert x == 2")]
    quality = scoring.score([f"```python\n{ADD}```", "x = 3"], references, "pass_at_1", samples=20, seed=0)
    assert (quality.value, quality.scores, quality.signature) == (50.0, {"pass_at_1": 50.0}, "")


def test_a_program_is_the_first_fenced_block() -> None:
    assert metrics.program_of(ADD) == ADD
    assert metrics.program_of(f"Here it is:\n```python\n{ADD}```\nand\n```\nmore\n```") == ADD
    assert metrics.program_of(f"```\n{ADD}") == ADD  # cut off at the length limit
    assert metrics.program_of(f"{ADD}\nAnother task: subtract two numbers.\ndef") == ADD + "\n", "as far as it is a program"
    assert metrics.program_of("no program") == "no program"


def test_an_example_without_a_test_is_refused() -> None:
    with pytest.raises(ValueError, match="example 1 has no test"):
        scoring.score(["x = 1", "x = 1"], [("x = 1", "assert x"), ("x = 1",)], "pass_at_1", 20, 0)


@pytest.fixture
def unchecked() -> Iterator[None]:
    """What ran before is forgotten, where a sandbox runs here."""
    metrics.require_sandbox.cache_clear()
    metrics.passes.cache_clear()
    yield
    metrics.require_sandbox.cache_clear()
    metrics.passes.cache_clear()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("found", [None, "/bin/true", "/bin/false"], ids=["none", "runs nothing", "does not start"])
def test_a_machine_without_a_sandbox_is_refused_before_training(monkeypatch: pytest.MonkeyPatch, found: str | None) -> None:
    monkeypatch.setattr("shutil.which", lambda name: found)
    with pytest.raises(InputError, match="nothing here runs them apart from everything else; install bubblewrap"):
        check_references({}, "pass_at_1")
