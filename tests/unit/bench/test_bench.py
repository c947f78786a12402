"""The benchmark command on tiny models."""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path
from typing import Any

import pytest

from tasks.bench import __main__ as command
from tasks.bench import contenders, ctranslate, memory, trained
from tasks.bench.cases import Case, LoadedCase, random_case
from tasks.bench.contenders import label, thread_counts
from tasks.bench.measuring import CaseResult, leave_out_failing
from tasks.bench.shapes import Shape, random_pair
from tasks.bench.shares import MULTIPLYING, READING
from tasks.bench.targets import TARGETS, check_targets
from tasks.bench.timing import TimedWork
from tasks.bench.trained import bild_settings
from tasks.corpora.example import Example, write_jsonl
from tasks.decoding.settings import BildSettings
from tasks.errors import InputError
from tasks.evaluation.results.codec import joined
from tasks.evaluation.results.files import row_line
from tasks.evaluation.results.rows import DecodingCounts, DifferenceBounds, Outcome, RowHeader, TimedRow, Timing
from tasks.models.checkpoints import save_model
from tasks.models.settings import TokenizerSettings
from tasks.models.tokenizers import train_tokenizer
from tasks.paths import TaskPaths

TINY = Shape(2, 32, 2, small_layers=1, vocabulary=60, tokens=6, batch=3, batch_tokens=4)
RATIOS = {
    "vanilla_over_generate",
    "vanilla_over_ctranslate2",
    "drafter_step_over_generate",
    "speculative_over_assisted",
    "speculative_over_vanilla",
    "batched_over_generate",
    "batched_over_ctranslate2",
}


@pytest.fixture(autouse=True)
def _few_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each contender has one or two settings instead of all."""
    monkeypatch.setattr(ctranslate, "ENVIRONMENTS", {"its own choice of kernels": {}})
    monkeypatch.setattr(contenders, "DRAFT_LENGTHS", (3,))
    monkeypatch.setattr("os.sched_getaffinity", lambda _process: {0}, raising=False)
    monkeypatch.setattr("tasks.bench.__main__.timing_lock", lambda _device: contextlib.nullcontext())


def run(capsys: pytest.CaptureFixture[str], *given: str) -> tuple[dict[str, Any], str]:
    command.main((TINY,), ["--rounds", "2", *given])
    lines = capsys.readouterr().out.splitlines()
    return json.loads(lines[-1]), "\n".join(lines[:-1])


def test_the_last_line_is_json_with_every_name(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    found, said = run(capsys, "--json", str(tmp_path / "bench.json"))
    assert json.loads((tmp_path / "bench.json").read_text()) == found
    assert set(TARGETS) <= set(found)
    assert found["hardware"]["cores"] >= 1
    assert {"torch", "transformers", "ctranslate2"} <= set(found["versions"])
    case = found["cases"]["2 layers d 32"]
    assert set(case["ratios"]) == set(case["ratios_at_threads"]) == RATIOS
    assert all(ratio > 0 for ratio in case["ratios"].values())
    assert all(one["worst_margin"] < 1e-4 for one in case["mismatches"].values())
    assert set(case["settings"]) == set(case["ms_per_token"]) == set(case["tried"])
    assert all(case["settings"][name] in tried for name, tried in case["tried"].items())
    assert set(case["limit_shares"]) == {*READING, *MULTIPLYING} & set(case["settings"])
    assert all(0 <= share < 2 for share in case["limit_shares"].values())
    formats = case["formats"]
    assert formats["float32"]["over_ctranslate2"] > 0
    assert (formats["bfloat16"]["over_ctranslate2"] is None) == ("bfloat16" not in ctranslate.compute_types())
    # A target whose shape was not measured is not checked by another shape.
    assert found["targets"] == {}
    assert "vanilla_over_generate" in said and "not measured" in said


def test_unequal_tokens_end_the_benchmark(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctranslate, "version", lambda: None)
    monkeypatch.setattr(LoadedCase, "vanilla", lambda _self, sources, limit: [[5] * limit for _ in sources])
    with pytest.raises(SystemExit) as ended:
        run(capsys)
    assert ended.value.code == 1
    assert "error: 2 layers d 32: the tokens of vanilla and generate differ" in capsys.readouterr().err


@pytest.mark.parametrize("given", [["--rounds", "0"], ["--threads", "0"]])
def test_counts_below_one_are_refused(given: list[str]) -> None:
    with pytest.raises(InputError, match="at least 1"):
        command.main((TINY,), given)


def test_memory_is_measured_for_every_contender(tmp_path: Path) -> None:
    case = random_case(TINY, tmp_path)
    for contender in ("vanilla", "generate", "ctranslate2", "speculative", "assisted", "batched", "batched by ctranslate2"):
        assert set(memory.measure(case, contender)) == {"whole", "above_model"}
    again = Case.from_json(json.loads(json.dumps(case.as_json())))
    assert again == case


@pytest.mark.slow
def test_a_fresh_process_measures_what_is_allocated(tmp_path: Path) -> None:
    case = random_case(Shape(2, 64, 2, vocabulary=32128, tokens=2, batch=2, batch_tokens=2), tmp_path)
    found = memory.peaks(case, ["vanilla"])["vanilla"]
    assert found["whole"] > 32128 * 64 * 4 / 2**20  # the embeddings alone


def test_thread_counts_and_their_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _process: set(range(4)), raising=False)
    assert (thread_counts(1), thread_counts(4), thread_counts(2)) == ([1, 4], [4], [2, 4])
    assert (label("", 1), label("MKL", 2)) == ("1 thread", "MKL, 2 threads")


def case_result(name: str, no_loss: bool = True, **ratios: float) -> CaseResult:
    return CaseResult(name, ratios=ratios, bild={"quality": {"no_loss": no_loss}})


def test_each_target_is_checked_by_its_case() -> None:
    results = [
        case_result("2 layers d 64", vanilla_over_generate=6.0),
        case_result("4 layers d 256", vanilla_over_generate=2.4, speculative_over_assisted=2.0, batched_over_generate=2.5),
        case_result("translation", vanilla_over_generate=9.0, speculative_over_assisted=4.0, bild_over_vanilla=2.0),
    ]
    found = check_targets(results, "translation")
    assert {name: (one["ratio"], one["case"], one["met"]) for name, one in found.items()} == {
        "vanilla_over_generate": (2.4, "4 layers d 256", False),
        "drafter_step_over_generate": (6.0, "2 layers d 64", True),
        "speculative_over_assisted": (4.0, "translation", True),
        "bild_over_vanilla": (2.0, "translation", True),
        "batched_over_generate": (2.5, "4 layers d 256", True),
    }
    assert check_targets(results[:2], None)["speculative_over_assisted"]["case"] == "4 layers d 256"
    assert "bild_over_vanilla" not in check_targets(results[:2], None)


def test_a_fast_bild_that_loses_quality_misses_its_target() -> None:
    assert not check_targets([case_result("translation", no_loss=False, bild_over_vanilla=3.0)], "translation")[
        "bild_over_vanilla"
    ]["met"]


def row(method: str, quality: float, speedup: float, **settings: Any) -> str:
    header = RowHeader(arm="aligned", split="validation", method=method, settings=settings, lossless=False, metric="bleu")
    bounds = DifferenceBounds(lower=quality - 40.2, upper=quality - 39.8, compared=2)
    outcome = Outcome(quality={"bleu": quality}, difference_bounds=bounds, counts=DecodingCounts(tokens=1))
    timing = Timing(latency_ms=[1.0], vanilla_latency_ms=[speedup], speedup=speedup)
    return row_line(joined(TimedRow, header, outcome, timing))


def test_bild_settings_come_from_the_sweep(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    assert bild_settings(rows) == (BildSettings(), "the defaults, since there is no sweep")
    vanilla, fast = row("vanilla_large", 40.0, 1.0), row("bild", 39.0, 3.0, fallback_threshold=0.5)
    rows.write_text(vanilla + fast + row("bild", 39.5, 2.0, fallback_threshold=0.7))
    settings, origin = bild_settings(rows)
    assert (settings, origin) == (
        BildSettings(fallback_threshold=0.7),
        "the sweep's best quality, as no point is without loss",
    )
    rows.write_text(rows.read_text() + row("bild", 39.95, 1.5, fallback_threshold=0.9, rollback_threshold="inf"))
    settings, origin = bild_settings(rows)
    assert settings == BildSettings(fallback_threshold=0.9, rollback_threshold=float("inf"))
    assert origin == "the sweep's no-loss choice"


def train(folder: Path) -> None:
    """Saves a random pair, its tokenizer and a validation split in the folders of the translation task."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnopqrst", k=6)) for _ in range(60)]
    texts = [" ".join(rng.choices(words, k=5)) for _ in range(300)]
    tokenizer = train_tokenizer(texts, TokenizerSettings(vocabulary=64))
    large, small = random_pair(Shape(2, 32, 2, small_layers=1, vocabulary=64))
    paths = TaskPaths("translation")
    for place, model in ((paths.model("large"), large), (paths.model("aligned", 1), small)):
        save_model(model, tokenizer, folder / place)
    split = folder / paths.split("validation")
    split.parent.mkdir(parents=True)
    write_jsonl([Example(text, (text,)) for text in texts[:6]], split)


def test_a_trained_pair_is_timed_with_bild_and_its_quality(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = Path("params.yaml").read_text().replace("max_target_tokens: 80", "max_target_tokens: 6")
    (tmp_path / "params.yaml").write_text(quick.replace("bootstrap_samples: 1000", "bootstrap_samples: 100"))
    train(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ctranslate, "version", lambda: None)
    monkeypatch.setattr(memory, "peaks", lambda _case, _names: {})
    for name, few in (("_SOURCES", 6), ("_EXAMPLES", 2), ("_BATCH", 4), ("_BATCH_ROUNDS", 1)):
        monkeypatch.setattr(trained, name, few)
    command.main((), ["--rounds", "1", "--task", "translation"])
    lines = capsys.readouterr().out.splitlines()
    found = json.loads(lines[-1])
    case = found["cases"]["translation"]
    assert case["ratios"]["bild_over_vanilla"] == found["bild_over_vanilla"] == found["targets"]["bild_over_vanilla"]["ratio"]
    assert found["speculative_over_assisted"] == case["ratios"]["speculative_over_assisted"]
    assert case["bild"]["from"] == "the defaults, since there is no sweep"
    assert case["bild"]["quality"]["examples"] == 6
    assert any("BiLD (the defaults, since there is no sweep" in line for line in lines)
    # CTranslate2 seems not to be installed here.
    assert {"bild_over_vanilla"} | {name for name in RATIOS if "ctranslate2" not in name} == set(case["ratios"])
    assert any("pip install 'ctranslate2" in line for line in lines)


def test_an_untrained_task_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ["--task", "translation", "--params", str(Path("params.yaml").resolve())]
    monkeypatch.chdir(tmp_path)
    command.main((), given)
    lines = capsys.readouterr().out.splitlines()
    assert "translation: not trained yet, so BiLD is not timed (run make repro)" in lines
    assert json.loads(lines[-1])["bild_over_vanilla"] is None


def test_a_setting_that_fails_is_left_out() -> None:
    def failing(_turn: int) -> float:
        raise RuntimeError("no such\ncache")

    said: list[str] = []
    contenders: dict[str, dict[str, TimedWork]] = {
        "generate": {"dynamic cache, 1 thread": lambda _turn: 1.0, "static cache, 1 thread": failing}
    }
    leave_out_failing(contenders, said.append)
    assert list(contenders["generate"]) == ["dynamic cache, 1 thread"]
    assert said == ["  generate: static cache, 1 thread fails and is left out: no such cache"]
