"""params.yaml as a schema: what it accepts, and how a mistake is named."""

import copy
import dataclasses
import json
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks.config import check, drafters_table, load, main, methods_table, presets_table, table
from tasks.decoding.registry import METHODS
from tasks.errors import InputError
from tasks.evaluation.settings import GridSettings
from tasks.evaluation.sweep.grid import expand_entry
from tests.commands import runner

ROOT = Path(__file__).parents[2]
Change = Callable[[dict[str, Any]], object]


def written(folder: Path, params: dict[str, Any]) -> Path:
    path = folder / "params.yaml"
    path.write_text(yaml.safe_dump(params), encoding="utf-8")
    return path


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
    params = load(written(tmp_path, {"active": active, "tasks": tasks}))
    assert {name: params.experiment(name).dataset for name in active} == {"hub": "xsum", "copy": "none", "said": "xsum"}


def test_the_documented_settings_are_those_of_the_schema() -> None:
    """A method that is not documented yet may lack its section."""
    page = (ROOT / "docs/settings.md").read_text(encoding="utf-8")
    for section in table().split("\n| **"):
        name = section.partition("**")[0]
        if f"| **{name}**" in page or not name.startswith("grid values of"):
            assert section in page, "run: python -m tasks.config --table, and put it into docs/settings.md"


def test_the_table_counts_the_points_of_every_preset() -> None:
    rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in presets_table().splitlines()[2:]]
    counts = {(method, name): int(count) for method, name, count, _, _ in rows}
    assert counts == {
        (method, name): len(list(expand_entry(GridSettings(method=method, preset=name))))
        for method, spec in METHODS.items()
        for name in spec.presets
    }


def test_every_method_has_a_row_and_every_setting_is_shown() -> None:
    rows = {line.split("|")[1].strip().strip("`"): line for line in methods_table().splitlines()[2:]}
    assert set(rows) == set(METHODS)
    for name, method in METHODS.items():
        assert all(f"`{field.name}`" in rows[name] for field in dataclasses.fields(method.settings))


def test_the_page_of_methods_shows_both_tables() -> None:
    page = (ROOT / "docs/methods.md").read_text(encoding="utf-8")
    head, rest = methods_table().split("\n", 1)
    shown = page[page.index(head) :].split("\n\n")[0].splitlines()
    wrong = [line for line in shown[1:] if line not in rest.splitlines()]
    assert not wrong, "run: python -m tasks.config --methods, and put both tables into docs/methods.md"
    assert drafters_table() in page


def task_with(*sections: str, task: str = "translation", **changes: Any) -> Change:
    """Change settings of a task, or of a section of it."""

    def change(params: dict[str, Any]) -> None:
        found = params["tasks"][task]
        for name in sections:
            found = found[name]
        found.update(changes)

    return change


def grid(**entry: Any) -> Change:
    return task_with("sweep", grid=[{"method": "bild", **entry}])


PARAMS = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
for _task in PARAMS["tasks"].values():
    _task["sweep"]["grid"] = [{"method": "bild"}]  # a check expands every grid
MISTAKES: list[tuple[Change, str]] = [
    (lambda params: params.update(actve=1), "unknown setting actve; did you mean active?"),
    (lambda params: params.update(zebra=1), "unknown setting zebra; remove it or correct its name"),
    (task_with("tokenizer", vocabluary=9), "unknown setting tasks.translation.tokenizer.vocabluary; did you mean vocabulary?"),
    (task_with("models", "large", head=9), "unknown setting tasks.translation.models.large.head; did you mean heads?"),
    (
        lambda params: params["active"].update(other="x"),
        "'other' is under active or inactive, but not under tasks; add it there, or",
    ),
    (lambda params: params["inactive"].update(translation="x"), "'translation' is both under active and inactive; remove one"),
    (
        lambda params: params["inactive"].pop("multi30k"),
        "'multi30k' is under tasks, but neither under active nor inactive; add it to one",
    ),
    (lambda params: params.update(tasks={}), "tasks: it is empty; give at least one"),
    (lambda params: params.pop("tasks"), "tasks: it is missing; add it"),
    (task_with(seeds=[]), "tasks.translation.seeds: it is empty; give at least one"),
    (task_with(seeds=3), "tasks.translation.seeds: it must be a list, not 3"),
    (task_with("align", learning_rate="2e-2"), "align.learning_rate: it must be a number, not '2e-2'; write 2.0e-2"),
    (task_with("align", learning_rate="1.5E3"), "it must be a number, not '1.5E3'; write 1.5e+3"),
    (task_with("align", steps="x" * 500), f"align.steps: it must be a whole number, not '{'x' * 59}"),
    (task_with("align", optimizer="x" * 500), f"align: optimizer is '{'x' * 59}; it must be one of ada"),
    (task_with("corpus", "files", task="multi30k", files={"train": 3}), "files.files.train: it must be text, not 3"),
    (lambda params: params["machine"].update(device="tpu"), "machine: device is 'tpu'; it must be one of auto, cpu, cuda"),
    (task_with(metric="blue"), "tasks.translation.metric"),
    (task_with("align", batch_size=0), "tasks.translation.align: batch_size is 0; it must be at least 1"),
    (task_with("align", steps="many"), "tasks.translation.align.steps"),
    (task_with("align", steps=True), "tasks.translation.align.steps: it must be a whole number, not True"),
    (task_with("align", learning_rate=True), "align.learning_rate: it must be a number, not True"),
    (task_with("align", steps=10**10), "align: steps is 10000000000; it must be at most 1000000000"),
    (task_with("calibrate", samples=10**9), "calibrate: samples is 1000000000; it must be at most 100"),
    (task_with("sweep", sampling={"temperature": 4e38}), "sampling: temperature is 4e+38; it must be at most 1000"),
    (task_with("align", learning_rate=math.nan), "align: learning_rate is nan; it must be more than 0"),
    (task_with("sweep", "sampling", temperature=1e-46), "is 1e-46, which float32 does not tell from 0; set it to 0"),
    (task_with("sweep", temperatures=[1e-46]), "temperature is 1e-46, which float32 does not tell from 0; set it to 0"),
    (task_with("sweep", "sampling", temperature=math.inf), "temperature is inf; it must be at most 1000"),
    (task_with(seeds=[1, 2**64]), "tasks.translation.seeds: [1, 18446744073709551616] must be different numbers from 0 to"),
    (task_with("align", warmup_steps=10**6), "warmup_steps is 1000000; it must be less than steps"),
    (task_with("corpus", source="files"), "source is files but there is no files section"),
    (task_with("corpus", dataset="wmt14-en-de"), "translation.corpus: dataset is wmt14-en-de, but the corpus is generated"),
    (task_with("corpus", task="multi30k", dataset="multi30k"), "dataset is 'multi30k'; it must be one of none, iwslt17-de-en"),
    (
        lambda params: [
            task_with("corpus", task="multi30k", dataset="iwslt17-de-en")(params),
            task_with("corpus", "files", task="multi30k", limit={"test": 100})(params),
        ],
        "dataset is iwslt17-de-en, but files.limit cuts test",
    ),
    (grid(method="bold", values={}), "sweep.grid.0: unknown method 'bold'; known are vanilla_large"),
    (grid(values={"fallback_threshold": [0.5, 2]}), "sweep.grid.0: fallback_threshold is 2.0; it must be at most 1"),
    (grid(values={"max_draft": [True]}), "sweep.grid.0: max_draft: it must be a whole number, not True"),
    (grid(values={"fallback": [0.5]}), "sweep.grid.0: unknown setting fallback; did you mean fallback_threshold?"),
    (grid(values={"fallback_threshold": []}), "sweep.grid.0: fallback_threshold has no values"),
    (grid(preset="poetry"), "sweep.grid.0: bild has no preset 'poetry'; it has translation, summarization, early_exit, v1"),
    (grid(method="beam_large", preset="paper"), "sweep.grid.0: beam_large has no preset 'paper'; it has none: give values"),
]


@pytest.mark.parametrize(("change", "words"), MISTAKES)
def test_a_mistake_is_named_in_one_line(change: Change, words: str, tmp_path: Path) -> None:
    params = copy.deepcopy(PARAMS)
    change(params)
    path = written(tmp_path, params)
    with pytest.raises(InputError) as caught:
        load(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", ["a;b", "$(touch x)", "a b", "../x", "a/b", "-x", ".x", "", "a\nb", "a.b", "x" * 65, "ä"])
def test_a_name_that_a_shell_or_a_path_would_read_is_refused(name: str) -> None:
    """DVC puts it into commands."""
    params = {"active": {name: "corpus"}, "tasks": {name: PARAMS["tasks"]["translation"]}}
    with pytest.raises(InputError, match=rf"{re.escape(f'{name!r:.60}')} is no name of a task; write a letter or digit"):
        check(yaml.safe_dump(params), "params.yaml")


def test_a_file_that_is_no_yaml_is_named(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    with pytest.raises(InputError, match=r"no .*params\.yaml here"):
        load(path)
    path.write_text("active: [")
    with pytest.raises(InputError, match="is not YAML"):
        load(path)
    for odd in ("2026-01-01: 3", "active: &again [*again]"):
        path.write_text(odd)
        with pytest.raises(InputError, match="holds more than names, values and lists of them"):
            load(path)
    path.write_text("")
    with pytest.raises(InputError, match="line 1: it must be names with values, not nothing"):
        load(path)


def test_a_check_counts_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    params = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    params["tasks"]["translation"]["sweep"]["grid"] = [
        {"method": "bild", "preset": "v1"},
        {"method": "bild", "preset": "v1", "values": {"fallback_threshold": [0.8, 0.9]}},
    ]
    run, file = runner(main, monkeypatch, capsys), written(tmp_path, params)
    points = "translation: 24 points"
    assert points in run("--params", file).printed, "20 of the preset and 4 at 0.9; those at 0.8 are there already"
    said = json.loads(run("--params", file, "--json").printed)
    assert (said["active"], said["grid_points"]["translation"]) == (["translation"], 24)


def test_a_mistake_has_its_line(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    head = "active: {a: data}\ntasks:\n  a:\n    metric: bleu\n"
    for text, line in (
        ("    align:\n      steps: 5\n      step: 6\n", 7),
        ("    sweep: {grid: [{method: bild}, {method: 3}]}\n", 5),
        ("    sweep:\n      grid:\n        - method: bild\n        - metod: bild\n", 8),
        ("    models:\n      large: {}\n", None),
        ("    models:\n      large: {}\n      large: {seed: 1}\n", 7),
        ("    text: {}\n  a:\n    metric: bleu\n", 6),
    ):
        path.write_text(head + text)
        if line is None:
            load(path)
            continue
        with pytest.raises(InputError, match=rf"params\.yaml, line {line}: "):
            load(path)


def test_text_of_an_active_task_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    params: dict[str, Any] = {"inactive": {"b": "nowhere"}, "tasks": {name: {"metric": "bleu"} for name in ("a", "b")}}
    path = written(tmp_path, {**params, "active": {"a": str(tmp_path)}})
    monkeypatch.setattr(sys, "argv", ["config", "--params", str(path)])
    main()
    written(tmp_path, {**params, "active": {"a": "nowhere"}})
    with pytest.raises(InputError, match=r"active\.a: there is no nowhere; correct the path, or move a to inactive"):
        main()


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"seeds": [1, 1]}, r"tasks\.a\.seeds: \[1, 1\] must be different numbers from 0 to \d+"),
        ({"seeds": [-1]}, r"tasks\.a\.seeds: \[-1\] must be"),
        ({"seeds": []}, "seeds"),
        ({"align": {"seed": 3}}, r"tasks\.a\.align\.seed: drafters are trained once for each of seeds; remove it"),
        ({"sweep": {"seed_methods": ["bidl"]}}, "seed_methods names bidl, which is no method"),
        ({"sweep": {"seed_methods": ["calm"]}}, "seed_methods has no method of the grid"),
    ],
)
def test_seeds_that_cannot_be_compared_are_refused(tmp_path: Path, changed: dict[str, Any], problem: str) -> None:
    """Also methods of further seeds that are not swept."""
    sweep = {"grid": [{"method": "bild"}], **changed.get("sweep", {})}
    task = {"metric": "bleu", "seeds": [1, 2], **changed, "sweep": sweep}
    with pytest.raises(InputError, match=problem):
        load(written(tmp_path, {"active": {"a": "data"}, "tasks": {"a": task}}))


@pytest.mark.parametrize("url", ["https://me:PLANTED@x/y", "s3://x/y?access_token=PLANTED", "http://host/?api-key=PLANTED"])
def test_a_secret_in_a_url_is_refused_with_its_line_and_not_shown(url: str, tmp_path: Path) -> None:
    file = tmp_path / "params.yaml"
    file.write_text(f"active:\n  translation: {url}\n")
    with pytest.raises(InputError, match=r"params.yaml, line 2: a URL holds .* variable or by a credential") as caught:
        load(file)
    assert "PLANTED" not in str(caught.value)
