"""The papers' experiments: each is a task that the schema accepts, at every scale; the command writes it into params.yaml."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks import config
from tasks.config import Task, check
from tasks.corpora.data_sets import DATA_SETS, LOCK
from tasks.errors import InputError
from tasks.evaluation.scoring.metrics import METRICS
from tasks.evaluation.settings import GridSettings
from tasks.evaluation.sweep.grid import preset_values
from tasks.presets import FIRST_LAYER, FULL, MODELS, SCALES, VARIANTS, Variant, variant_of
from tasks.presets.__main__ import main, table
from tests.commands import Run, runner

PARAMS = Path(config.__file__).parents[1] / "params.yaml"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command in a folder with the project's own parameters."""
    (tmp_path / "params.yaml").write_text(PARAMS.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return runner(main, monkeypatch, capsys)


def task_of(variant: Variant, pair: str = "", scale: str = FULL) -> Task:
    """A variant as the schema reads it."""
    section = variant.section(pair, scale)
    # A program of a model runs only where somebody has said so.
    allowed = {"run_generated_code": True} if "run_generated_code" in section else {}
    text = yaml.safe_dump({"active": {variant.name: LOCK}, "tasks": {variant.name: {**section, **allowed}}})
    return check(text, "params.yaml").task(variant.name)


@pytest.mark.parametrize("scale", [FULL, *SCALES])
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda one: one.name)
def test_a_variant_is_a_task_with_every_pair_and_at_every_scale(variant: Variant, scale: str) -> None:
    assert variant.metric in METRICS and variant.printed and variant.ours
    for pair in variant.pairs if scale == FULL else variant.pairs[:1]:
        task = task_of(variant, pair, scale)
        drafter = FIRST_LAYER if task.models.small.from_large else task.models.small.pretrained
        assert f"{drafter}:{task.models.large.pretrained}" == pair
        assert task.corpus.hub is not None and task.corpus.hub.data_set.name == DATA_SETS[variant.data_set].name
        assert (task.text.max_source_tokens, task.text.max_target_tokens) == tuple(variant.lengths)
        # Nothing reads a fine-tuned small model: the unaligned drafter starts from the pre-trained one, or is it.
        assert (task.finetune.small.steps, task.align.start) == (0, "pretrained")
        assert task.align.control.steps in (0, task.align.steps)
        # Numbers of a part of a split, or of prompts with examples, compare with none that is published.
        whole = scale == FULL and not variant.shots
        assert task.corpus.published == (DATA_SETS[variant.data_set].published if whole else "none")


def test_a_task_has_the_recipe_and_the_ranges_of_the_papers() -> None:
    task = task_of(variant_of("xsum", "bild"))
    assert task.finetune.large.steps == task.align.steps == 500_000
    assert preset_values(task.sweep.grid[0])["fallback_threshold"] == (0.2, 0.3, 0.4, 0.5, 0.6)
    windows = [preset_values(GridSettings(**entry))["draft_length"] for entry in variant_of("gsm8k").grid]
    assert all(list(window) == [1] for window in windows), "SpecCascade, Figure 3"
    cascades = task_of(variant_of("xsum", "cascades")).sweep
    assert (cascades.sampling.temperature, cascades.temperatures) == (1.0, (0.0, 0.1, 0.5)), "SpecCascade, section 6"
    assert variant_of("iwslt17-de-en", "bild-v1").large["steps"] == 20 * 206_112 // 16, "twenty epochs"


def test_a_shortened_task_says_how_it_is_shortened() -> None:
    hour = task_of(variant_of("xsum-bild"), scale="hour")
    assert (hour.finetune.large.steps, hour.align.steps, hour.finetune.large.evaluate_every) == (1000, 1000, 250)
    assert hour.corpus.note.endswith(
        "the large model takes 1,000 of 500,000 steps; each drafter takes 1,000 of 500,000 steps; at most 300 examples of "
        "validation and of test; 50 timed texts; at most 3 values of each setting."
    )
    assert hour.calibrate.fraction == pytest.approx(16_000 / 204_045, abs=1e-4), "as many texts as the drafters see"
    assert hour.sweep.grid[0].values["fallback_threshold"] == [0.2, 0.4, 0.6]
    assert hour.corpus.hub is not None
    # A slice stays within the slice that the full experiment reads, and never in train's.
    assert task_of(variant_of("gsm8k"), scale="hour").corpus.hub.data_set.splits == {
        "train": "train[:-1000]",
        "validation": "train[-300:]",
        "test": "test[:300]",
    }
    assert task_of(variant_of("iwslt17-de-en", "bild-v1"), scale="day").finetune.large.warmup_steps == 1030
    assert task_of(variant_of("xsum", "cascades"), scale="hour").sweep.temperatures == (0.0, 0.5), "and the main one"
    published = task_of(variant_of("multi30k-en-de"), scale="day")
    assert "the large model takes" not in published.corpus.note and published.align.control.steps == 0


def test_a_variant_is_written_into_the_parameter_file_and_activated(run: Run, tmp_path: Path) -> None:
    ended = run("add", "xsum", "--paper", "bild", "--pair", "google-t5/t5-small:google-t5/t5-large", "--scale", "day")
    assert ended.status == 0, ended.said
    assert "# Ours: lengths: SpecCascade's of this task" in ended.printed and ended.printed.endswith(
        "draftline run xsum-bild\n"
    )
    params = config.load(tmp_path / "params.yaml")
    assert (params.active["xsum-bild"], params.task("xsum-bild")) == (Path(LOCK), task_of(variant_of("xsum"), scale="day"))
    kept = (tmp_path / "params.yaml").read_text(encoding="utf-8")
    assert {line for line in PARAMS.read_text(encoding="utf-8").splitlines() if "#" in line} <= set(kept.splitlines())
    assert "has a task xsum-bild already; choose another name with --name" in run("add", "xsum").said
    assert run("add", "xsum", "--name", "copy", "--folder", "texts", "--json").status == 0
    assert config.load(tmp_path / "params.yaml").active["copy"] == Path("texts")
    # A program of a model runs only where somebody says so.
    assert "runs programs that models write, on this machine; give --run-generated-code" in run("add", "mbpp").said
    assert "runs no programs of models; leave out --run-generated-code" in run("show", "xsum", "--run-generated-code").said
    assert run("add", "mbpp", "--run-generated-code").status == 0


def test_variants_are_listed_and_shown(run: Run) -> None:
    assert run().printed.strip() == run("list").printed.strip() == table()
    assert json.loads(run("list", "--json").printed).keys() == {one.name for one in VARIANTS}
    shown: dict[str, Any] = yaml.safe_load(run("show", "cnn_dailymail", "--paper", "sd").printed)
    assert shown == {"cnn_dailymail-sd": variant_of("cnn_dailymail", "sd").section()}
    assert json.loads(run("show", "gsm8k", "--json").printed) == {"gsm8k-cascades-gemma": variant_of("gsm8k").section()}


@pytest.mark.parametrize(
    ("data_set", "paper", "pair", "said"),
    [
        ("xsun", "", "", r"there is no variant 'xsun'; did you mean xsum\? There are iwslt17-de-en, "),
        ("xsum-bild", "cascades", "", "xsum-bild is a variant of the paper bild; leave out --paper, or name xsum"),
        ("xsum", "blid", "", r"no paper 'blid' used xsum; did you mean bild\? There are bild, cascades"),
        (
            "xsum",
            "",
            "google-t5/t5-small:t5-large",
            r"xsum-bild has no pair .*; did you mean google-t5/t5-small:google-t5/t5-l",
        ),
        ("xsum", "bild", "google-t5/t5-large:first-layer", "xsum-bild has no pair"),
        ("xsum", "", "google/mt5-small:google-t5/t5-large", "google/mt5-small and google-t5/t5-large share no tokenizer; "),
        ("xsum", "", "google-t5/t5-large:google-t5/t5-small", "google-t5/t5-large is not smaller than google-t5/t5-small; "),
        ("xsum", "", "openai-community/gpt2:openai-community/gpt2-large", "xsum-bild takes encoder-decoder models, and open"),
        ("wikitext-2", "", "google-t5/t5-small:google-t5/t5-large", "wikitext-2-bild-v1 takes decoder-only models, and goo"),
    ],
)
def test_what_no_paper_did_gets_the_nearest_that_one_did(data_set: str, paper: str, pair: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        variant_of(data_set, paper).section(pair)


def test_the_table_of_the_papers_has_all_variants() -> None:
    _, table = (PARAMS.parent / "docs/papers.md").read_text(encoding="utf-8").split("| variant | printed in | pair |")
    rows = table.partition("\n\n")[0].splitlines()[2:]
    assert [row.split("`")[1] for row in rows] == [one.name for one in VARIANTS]


def test_every_model_of_a_variant_is_described() -> None:
    named = {name for variant in VARIANTS for pair in variant.pairs for name in pair.split(":")}
    assert named <= {FIRST_LAYER, *MODELS}
