"""The benchmark of decoding on tiny models."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks import console
from tasks.bench import contenders, decoding, harness
from tasks.bench.contenders import Shape, random_model
from tasks.bench.decoding import Case, Settings, TrainedTask, last_line
from tasks.bench.harness import Found, UnequalError
from tasks.decoding.methods.bild import BildSettings
from tasks.decoding.pair_folder import PairManifest, write_pair_folder
from tasks.decoding.registry import configure_method
from tasks.models.checkpoints import save_model
from tasks.models.settings import ModelSettings, TextSettings
from tasks.models.tokenizers import load_tokenizer
from tasks.paths import TaskPaths
from tasks.training.settings import TrainingSettings
from tests.training import toy_job

RATIOS = {name for name in decoding.RATIOS if not name.startswith("bild")}


@pytest.fixture(autouse=True)
def _few_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each contender has one or two settings instead of all."""
    monkeypatch.setattr(contenders, "ENVIRONMENTS", {"its own choice of kernels": {}})
    monkeypatch.setattr(decoding, "DRAFT_LENGTHS", (3,))
    monkeypatch.setattr("os.sched_getaffinity", lambda _process: {0}, raising=False)


def run(capsys: pytest.CaptureFixture[str], *given: str) -> tuple[dict[str, Any], str]:
    console.set_up()
    decoding.main(["--quick", *given])
    printed = capsys.readouterr()
    return json.loads(printed.out), printed.err


def test_the_last_line_is_json_with_every_name(capsys: pytest.CaptureFixture[str]) -> None:
    found, said = run(capsys)
    case = found["cases"]["2 layers d 32"]
    assert set(case["ratios"]) == RATIOS
    assert all(one["ratio"] > 0 for one in case["ratios"].values())
    assert all(one["worst_margin"] < 1e-4 for one in case["mismatches"].values())
    assert set(case["settings"]) == set(case["ms_per_token"]) == set(case["tried"])
    assert all(case["settings"][name] in tried for name, tried in case["tried"].items())
    assert case["formats"]["float32"]["over_ctranslate2"]["ratio"] > 0
    assert (case["formats"]["bfloat16"]["over_ctranslate2"] is None) == ("bfloat16" not in contenders.compute_types())
    assert "vanilla_over_generate" in said
    drawn = {f"sampled_over_{one}" for one in ("greedy_vanilla", "greedy_speculative", "generate", "ctranslate2")}
    assert all(found[name]["ratio"] > 0 for name in {*drawn, "sampled_speculative_over_vanilla"})


def test_unequal_tokens_end_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contenders, "ctranslate2_version", lambda: None)
    monkeypatch.setattr(Case, "vanilla", lambda _self, sources, limit: [[5] * limit for _ in sources])
    with pytest.raises(UnequalError, match="2 layers d 32: the tokens of vanilla and generate differ"):
        decoding.main(["--quick"])


def test_the_last_line_has_the_step_of_its_own_case_in_float32() -> None:
    def formats(share: float) -> Found:
        step = {"bandwidth_share": share, "check_over_step": 1.1}
        return {"formats": {"float32": {"step": step}}, "sampled": {"sampled_over_generate": share}}

    found = last_line({"4 layers d 256": formats(0.9), "2 layers d 64": formats(0.6)}, 1, 1)
    assert found["sampled_over_generate"] == 0.6, "of the last case"
    assert (found["bandwidth_share"], found["check_over_step"]) == (0.9, 1.1)
    assert last_line({"2 layers d 64": formats(0.6)}, 1, 1)["bandwidth_share"] is None


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A random pair, its tokenizer and a corpus in the folders of the translation task, and short texts."""
    params = Path("params.yaml").read_text().replace("max_target_tokens: 80", "max_target_tokens: 6")
    (tmp_path / "params.yaml").write_text(params.replace("bootstrap_samples: 1000", "bootstrap_samples: 100"))
    monkeypatch.chdir(tmp_path)
    paths, cpu = TaskPaths("translation"), torch.device("cpu")
    toy_job(paths, ModelSettings(), TrainingSettings())
    for seed, place in enumerate((paths.model("large"), paths.model("aligned", 1))):
        shape = Shape("t5", 32, 2 - seed, 64, 2, 2, 64)
        save_model(random_model(shape, cpu, seed), load_tokenizer(paths.tokenizer), place)
    return tmp_path


def test_a_trained_pair_is_measured(trained: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contenders, "ctranslate2_version", lambda: None)
    monkeypatch.setattr(decoding, "QUICK", ())
    found, said = run(capsys, "--task", "translation")
    case = found["cases"]["translation"]
    assert case["bild"]["quality"]["examples"] == 30
    assert "BiLD (the defaults: " in said
    assert {"bild_over_vanilla"} | {name for name in RATIOS if "ctranslate2" not in name} == set(case["ratios"])
    assert "pip install 'ctranslate2" in said


def test_bild_runs_at_the_operating_point_of_the_pair(trained: Path) -> None:
    from tasks.config import load

    paths = TaskPaths("translation")
    point = configure_method("bild", {"fallback_threshold": 0.9, "rollback_threshold": 3.0})
    manifest = PairManifest(point, TextSettings(max_source_tokens=16, max_target_tokens=6))
    write_pair_folder(paths.results / "pair", manifest, paths.model("large"), paths.model("aligned", 1), [])
    case = TrainedTask("translation", load(Path("params.yaml"))).case(quick=True)
    assert case.bild == BildSettings(fallback_threshold=0.9, rollback_threshold=3.0)
    assert case.bild_from == "the operating point of results/translation/pair"


def test_an_untrained_task_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = ["--task", "translation", "--params", str(Path("params.yaml").resolve())]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(decoding, "QUICK", ())
    found, said = run(capsys, *given)
    assert "translation: not trained yet, so BiLD is not timed (run make repro)" in said.splitlines()
    assert found["cases"] == {}


def test_a_setting_that_fails_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    def failing(_turn: int) -> float:
        raise RuntimeError("no such\ncache")

    works: dict[str, Settings] = {"generate": {"dynamic cache, 1 thread": lambda _turn: 1.0, "static cache, 1 thread": failing}}
    console.set_up()
    harness.leave_out_failing(works)
    assert list(works["generate"]) == ["dynamic cache, 1 thread"]
    assert capsys.readouterr().err == "  generate: static cache, 1 thread fails and is left out: no such cache\n"
