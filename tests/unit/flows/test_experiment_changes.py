"""Settings of experiments: options, grid files, the text of params.yaml with changes, names, the form of Prefect's page."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from prefect.utilities.schema_tools.validation import validate

from flows.experiments.changes import ParameterFile, name_of, read_form, read_grid, read_option
from flows.experiments.setting_names import form, setting_fields
from tasks import config
from tasks.errors import InputError
from tests.toy_project import PARAMS


@pytest.fixture(scope="module")
def file() -> ParameterFile:
    return ParameterFile(PARAMS)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a.b=0.3", 0.3),
        ("a.b=1e-3", 0.001),
        ("a.b=[1e-3, 2]", [0.001, 2]),
        ("a.b=true", True),
        ("a.b=x=y", "x=y"),
        ("a.b=", None),
        ("a.b='1e-3x'", "1e-3x"),
        ("a.b={name: bleu}", {"name": "bleu"}),
    ],
)
def test_an_option_is_a_name_and_a_value_in_yaml(text: str, value: object) -> None:
    assert read_option(text) == ("a.b", value)


@pytest.mark.parametrize("text", ["a.b", "=3", " =3", "a.b=[1"])
def test_another_option_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"^--set "):
        read_option(text)


def grid(folder: Path, text: str) -> list[dict[str, Any]]:
    (folder / "grid.yaml").write_text(text, encoding="utf-8")
    return read_grid(folder / "grid.yaml")


def test_a_map_of_lists_gives_every_combination(tmp_path: Path) -> None:
    found = grid(tmp_path, "a.b: [1, 1e-2]\nc: [[1, 2], x]\nd: fixed\n")
    assert found == [{"a.b": b, "c": c, "d": "fixed"} for b in (1, 0.01) for c in ([1, 2], "x")]


def test_a_list_of_maps_gives_just_these(tmp_path: Path) -> None:
    assert grid(tmp_path, "- {a: 1, b: [1]}\n- {b: 2}\n") == [{"a": 1, "b": [1]}, {"b": 2}]


@pytest.mark.parametrize("text", ["a: []", "[]", "{}", "3", "- 3", "- {}", "a: ["])
def test_a_grid_of_another_form_is_refused_by_name(text: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"grid\.yaml"):
        grid(tmp_path, text)
    with pytest.raises(InputError, match="no grid file"):
        read_grid(tmp_path / "missing.yaml")


def test_changes_are_written_into_the_text_and_comments_stay(file: ParameterFile) -> None:
    text = file.changed({"tasks.toy.align.beta": 0.3, "tasks.toy.seeds.1": 7, "machine.threads": 2})
    assert (
        text.startswith("active: {toy: raw.txt}  # a comment that stays\n") or "# a comment that stays" in text.splitlines()[0]
    )
    changed = yaml.safe_load(text)
    assert changed["tasks"]["toy"] == {"metric": "bleu", "seeds": [1, 7], "align": {"learning_rate": 0.01, "beta": 0.3}}
    assert changed["machine"] == {"threads": 2}
    # One file serves many experiments: a change must not stay in it.
    assert yaml.safe_load(file.changed({}))["tasks"]["toy"]["seeds"] == [1, 2]


def test_the_order_of_changes_makes_no_difference(file: ParameterFile) -> None:
    changes = {"tasks.toy.align.steps": 5, "tasks.toy.align.beta": 0.3}
    assert file.changed(changes) == file.changed(dict(reversed(changes.items())))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("tasks.toy.align.betta", 0.3, r"no setting 'tasks\.toy\.align\.betta'; did you mean tasks\.toy\.align\.beta\?"),
        ("tasks.tyo.align.beta", 0.3, r"did you mean tasks\.toy\.align\.beta\?"),
        ("tasks.toy.align.beta", 3, r"with tasks\.toy\.align\.beta=3: tasks\.toy\.align: beta is 3\.0; it must be less than 1"),
        ("tasks.toy.align.steps", "many", r"tasks\.toy\.align\.steps: Input should be a valid integer.*'many'"),
        ("tasks.toy.metric.name", "bleu", r"tasks\.toy\.metric is 'bleu' .* has nothing below it"),
        ("tasks.toy.seeds.2", 3, r"tasks\.toy\.seeds is a list of 2; name an item by its number, from 0"),
        ("tasks.toy.align", {"betta": 1}, r"unknown setting tasks\.toy\.align\.betta"),
    ],
)
def test_a_wrong_setting_is_named_with_the_fix(file: ParameterFile, name: str, value: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        file.changed({name: value})


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"tasks.toy.align.beta": 0.3}, "beta=0.3"),
        ({"a.align.beta": 0.3, "a.sweep.beta": 1}, "align.beta=0.3,sweep.beta=1"),
        ({"a.seeds": [1, 2], "a.trunk": "frozen"}, "seeds=1+2,trunk=frozen"),
        ({"a.hostfile": "../ho sts~^:?*[\\@{x.lock"}, "hostfile=-ho-sts-x"),
        ({"a.x": {"name": "bleu"}}, "x=-name-bleu"),
        ({"a": "x" * 300}, "a=" + "x" * 78),
    ],
)
def test_names_are_short_and_allowed_by_git(changes: dict[str, Any], name: str, tmp_path: Path) -> None:
    assert name_of(changes) == name
    subprocess.run(["git", "check-ref-format", f"refs/exps/ab/cd/{name}"], check=True)


def test_the_form_has_types_bounds_and_choices_and_no_other_name() -> None:
    schema = form(setting_fields(config.check(PARAMS, "params.yaml")))

    def is_valid(section: str, **values: object) -> bool:
        # What Prefect's server does before it accepts a run.
        return validate({"tasks": {"toy": {section: values}}}, cast(Any, schema)) == []

    assert is_valid("align", beta=0.3, loss="jensen_shannon")
    assert is_valid("models", small={"from_large": {"layers": [0, 5]}})
    assert is_valid("sweep", grid=[{"method": "bild"}])
    assert not is_valid("align", betta=0.3)
    assert not is_valid("align", beta=1)
    assert not is_valid("align", beta="0.3")
    assert not is_valid("align", loss="hinge")
    assert not is_valid("models", small={"from_large": {"layers": [-1]}})
    described = schema["properties"]["tasks"]["properties"]["toy"]["properties"]["align"]["properties"]["beta"]
    assert described["description"].startswith("jensen_shannon only")


def test_a_form_gives_the_names_that_options_give() -> None:
    text = PARAMS.replace("metric: bleu", "corpus: {source: files, files: {files: {train: a.csv}}}\n    metric: bleu")
    filled = {"tasks": {"toy": {"align": {"beta": 0.3}, "corpus": {"files": {"limit": {"train": 5}}}}}, "machine.threads": 2}
    assert read_form(text, filled) == {
        "tasks.toy.align.beta": 0.3,
        "tasks.toy.corpus.files.limit": {"train": 5},
        "machine.threads": 2,
    }
