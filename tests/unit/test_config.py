"""params.yaml as a schema: what it accepts, and how a mistake is named."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks.config import load, main, table
from tasks.errors import InputError

ROOT = Path(__file__).parents[2]


def test_the_file_of_the_repository_is_valid() -> None:
    params = load(ROOT / "params.yaml")
    assert set(params.tasks) == {"translation", "multi30k", "dialogsum_smollm"}
    assert list(params.active) == ["translation"]
    assert str(params.corpus_source("multi30k")) == "../multi30k"
    for task in params.tasks.values():
        assert {grid.method for grid in task.sweep.grid} >= {"bild", "speculative"}


def test_a_copy_of_a_data_set_is_published_only_if_the_settings_say_so(tmp_path: Path) -> None:
    corpus = {"source": "hub", "hub": {"preset": "xsum"}}
    tasks = {name: {"metric": "rougeL", "corpus": corpus} for name in ("hub", "copy")}
    tasks["said"] = {"metric": "rougeL", "corpus": {**corpus, "dataset": "xsum"}}
    active = {"hub": "data/hub.lock.yaml", "copy": str(tmp_path), "said": str(tmp_path)}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump({"active": active, "tasks": tasks}), encoding="utf-8")
    params = load(tmp_path / "params.yaml")
    assert {name: params.published(name) for name in active} == {"hub": "xsum", "copy": "none", "said": "xsum"}


def test_the_documented_settings_are_those_of_the_schema() -> None:
    """A method that is not documented yet may lack its section."""
    page = (ROOT / "docs/settings.md").read_text(encoding="utf-8")
    for section in table().split("\n| **"):
        name = section.partition("**")[0]
        if f"| **{name}**" in page or not name.startswith("grid values of"):
            assert section in page, "run: python -m tasks.config --table, and put it into docs/settings.md"


def task_of(params: dict[str, Any]) -> dict[str, Any]:
    task: dict[str, Any] = params["tasks"]["translation"]
    return task


Change = Callable[[dict[str, Any]], object]
PARAMS = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
for _task in PARAMS["tasks"].values():
    _task["sweep"]["grid"] = [{"method": "bild"}]  # a check expands every grid
MISTAKES: list[tuple[Change, str]] = [
    (lambda params: params.update(actve=1), "unknown setting actve; did you mean active?"),
    (lambda params: params.update(zebra=1), "unknown setting zebra; remove it or correct its name"),
    (
        lambda params: task_of(params)["tokenizer"].update(vocabluary=9),
        "unknown setting tasks.translation.tokenizer.vocabluary; did you mean vocabulary?",
    ),
    (
        lambda params: task_of(params)["models"]["large"].update(head=9),
        "unknown setting tasks.translation.models.large.head; did you mean heads?",
    ),
    (lambda params: params["active"].update(other="x"), "'other' must be listed once under tasks and once under active"),
    (lambda params: params["inactive"].update(translation="x"), "'translation' must be listed once"),
    (lambda params: params["machine"].update(device="tpu"), "machine: device is 'tpu'; it must be one of auto, cpu, cuda"),
    (lambda params: task_of(params).update(metric="blue"), "tasks.translation.metric"),
    (
        lambda params: task_of(params)["align"].update(batch_size=0),
        "tasks.translation.align: batch_size is 0; it must be at least 1",
    ),
    (lambda params: task_of(params)["align"].update(steps="many"), "tasks.translation.align.steps"),
    (lambda params: task_of(params)["align"].update(learning_rate=float("nan")), "learning_rate is nan"),
    (lambda params: task_of(params)["align"].update(warmup_steps=10**6), "warmup_steps is 1000000; it must be less than steps"),
    (lambda params: task_of(params)["corpus"].update(source="files"), "source is files but there is no files section"),
    (
        lambda params: task_of(params)["corpus"].update(dataset="wmt14-en-de"),
        "tasks.translation.corpus: dataset is wmt14-en-de, but the corpus is generated; set source to files",
    ),
    (
        lambda params: params["tasks"]["multi30k"]["corpus"].update(dataset="multi30k"),
        "dataset is 'multi30k'; it must be one of none, iwslt17-de-en",
    ),
    (
        lambda params: (
            params["tasks"]["multi30k"]["corpus"].update(dataset="iwslt17-de-en"),
            params["tasks"]["multi30k"]["corpus"]["files"].update(limit={"test": 100}),
        ),
        "dataset is iwslt17-de-en, but files.limit cuts test",
    ),
    (
        lambda params: task_of(params)["sweep"].update(grid=[{"method": "bold", "values": {}}]),
        "sweep.grid.0: unknown method 'bold'; known are vanilla_large",
    ),
    (
        lambda params: task_of(params)["sweep"].update(grid=[{"method": "bild", "values": {"fallback_threshold": [0.5, 2]}}]),
        "sweep.grid.0: fallback_threshold is 2.0; it must be at most 1",
    ),
    (
        lambda params: task_of(params)["sweep"].update(grid=[{"method": "bild", "values": {"fallback": [0.5]}}]),
        "sweep.grid.0: unknown setting fallback; did you mean fallback_threshold?",
    ),
    (
        lambda params: task_of(params)["sweep"].update(grid=[{"method": "bild", "preset": "poetry"}]),
        "sweep.grid.0: bild has no preset 'poetry'; it has translation, summarization",
    ),
]


@pytest.mark.parametrize(("change", "words"), MISTAKES)
def test_a_mistake_is_named_in_one_line(change: Change, words: str, tmp_path: Path) -> None:
    params = copy.deepcopy(PARAMS)
    change(params)
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump(params), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_yaml_is_named(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    with pytest.raises(InputError, match=r"no .*params\.yaml here"):
        load(path)
    path.write_text("active: [")
    with pytest.raises(InputError, match="is not YAML"):
        load(path)
    path.write_text("")
    with pytest.raises(InputError, match="valid dictionary"):
        load(path)


def test_a_check_counts_the_points_of_each_grid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    params = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    task_of(params)["sweep"]["grid"] = [
        {"method": "bild", "preset": "v1"},
        {"method": "bild", "preset": "v1", "values": {"fallback_threshold": [0.8, 0.9]}},
    ]
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump(params), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["config", "--params", str(path)])
    main()
    assert "translation: 24 points" in capsys.readouterr().out, "20 of the preset and 4 at 0.9; those at 0.8 are there already"


def test_a_mistake_has_its_line(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    head = "active: {a: data}\ntasks:\n  a:\n    metric: bleu\n"
    for text, line in (
        ("    align:\n      steps: 5\n      step: 6\n", 7),
        ("    sweep: {grid: [{method: bild}, {method: 3}]}\n", 5),
        ("    sweep:\n      grid:\n        - method: bild\n        - metod: bild\n", 8),
        ("    models:\n      small: {}\n", None),
    ):
        path.write_text(head + text)
        if line is None:
            load(path)
            continue
        with pytest.raises(InputError, match=rf"params\.yaml, line {line}: "):
            load(path)


def test_text_of_an_active_task_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "params.yaml"
    tasks = {name: {"metric": "bleu"} for name in ("a", "b")}
    path.write_text(yaml.safe_dump({"active": {"a": str(tmp_path)}, "inactive": {"b": "nowhere"}, "tasks": tasks}))
    monkeypatch.setattr(sys, "argv", ["config", "--params", str(path)])
    main()
    path.write_text(yaml.safe_dump({"active": {"a": "nowhere"}, "inactive": {"b": "nowhere"}, "tasks": tasks}))
    with pytest.raises(InputError, match=r"active\.a: there is no nowhere; correct the path, or move a to inactive"):
        main()


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"seeds": [1, 1]}, r"tasks\.a\.seeds: \[1, 1\] must be different numbers of at least 0"),
        ({"seeds": [-1]}, r"tasks\.a\.seeds: \[-1\] must be"),
        ({"seeds": []}, "seeds"),
        ({"align": {"seed": 3}}, r"tasks\.a\.align\.seed: drafters are trained once for each of seeds; remove it"),
    ],
)
def test_seeds_that_cannot_be_compared_are_refused(tmp_path: Path, changed: dict[str, object], problem: str) -> None:
    file = tmp_path / "params.yaml"
    file.write_text(yaml.safe_dump({"active": {"a": "data"}, "tasks": {"a": {"metric": "bleu", **changed}}}))
    with pytest.raises(InputError, match=problem):
        load(file)


@pytest.mark.parametrize(
    ("methods", "problem"),
    [(["bidl"], "seed_methods names bidl, which is no method"), (["calm"], "seed_methods has no method of the grid")],
)
def test_methods_of_further_seeds_must_be_swept(tmp_path: Path, methods: list[str], problem: str) -> None:
    file = tmp_path / "params.yaml"
    sweep = {"grid": [{"method": "bild"}], "seed_methods": methods}
    task = {"metric": "bleu", "seeds": [1, 2], "sweep": sweep}
    file.write_text(yaml.safe_dump({"active": {"a": "data"}, "tasks": {"a": task}}))
    with pytest.raises(InputError, match=problem):
        load(file)
