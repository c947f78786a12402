"""Settings of experiments: read from options and grid files, checked, named, and written as DVC takes them."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows import experiment
from flows.experiment import check_settings, name_of, override, read_grid, read_option
from tasks.errors import InputError
from tests.commands import runner
from tests.toy_project import PARAMS

RATE, BETA = "tasks.toy.align.learning_rate", "tasks.toy.align.beta"


@pytest.mark.parametrize(
    ("text", "value"),
    [("a.b=0.3", 0.3), ("a.b=1e-3", 0.001), ("a.b=[1, 2e-1]", [1, 0.2]), ("a.b=yes it is", "yes it is"), ("a.b=c=d", "c=d")],
)
def test_an_option_is_a_name_and_a_value_of_yaml(text: str, value: object) -> None:
    assert read_option(text) == ("a.b", value)


@pytest.mark.parametrize("text", ["a.b", "=1", "a.b=[1"])
def test_another_option_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=f"--set {re.escape(text)}"):
        read_option(text)


def test_a_grid_has_every_combination_or_a_list(tmp_path: Path) -> None:
    file = tmp_path / "grid.yaml"
    file.write_text("a: [1, 2]\nb: x\nc: [[1e-1, 2]]\n", encoding="utf-8")
    assert read_grid(file) == [{"a": 1, "b": "x", "c": [0.1, 2]}, {"a": 2, "b": "x", "c": [0.1, 2]}]
    file.write_text("[{a: 1}, {b: 2}]", encoding="utf-8")
    assert read_grid(file) == [{"a": 1}, {"b": 2}]
    for wrong in ("a: []", "[]", "[1]", "text", "{"):
        file.write_text(wrong, encoding="utf-8")
        with pytest.raises(InputError, match=r"grid\.yaml"):
            read_grid(file)
    with pytest.raises(InputError, match="no grid file"):
        read_grid(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tasks.toy.align.bet": 0.5}, "bet"),
        ({"tasks.toy.aligned.beta": 0.5}, "aligned"),
        ({BETA: 7}, "beta is 7"),
        ({RATE: "fast"}, "learning_rate"),
        ({"tasks.toy.seeds.0": 3}, "set the whole value"),
    ],
)
def test_settings_that_the_file_refuses_are_named(settings: dict[str, Any], words: str) -> None:
    check_settings(PARAMS, {RATE: 0.5, BETA: 0.5, "tasks.toy.seeds": [1]})
    with pytest.raises(InputError, match=words):
        check_settings(PARAMS, settings)


def test_a_name_says_the_settings_in_any_order_and_is_allowed_by_git() -> None:
    assert name_of({BETA: 0.3, RATE: 1}) == name_of({RATE: 1, BETA: 0.3}) == "toy.align.beta=0.3,toy.align.learning_rate=1"
    names = [name_of({"a": value}) for value in ("x" * 90, "x" * 91, [1, 2], "a b", "a..b", "a~b", {"c": 1})]
    assert len(set(names)) == len(names)
    for name in names:
        subprocess.run(["git", "check-ref-format", f"refs/exps/aa/bb/{name}"], check=True)
        assert len(name) < 100


def test_dvc_reads_what_is_written(tmp_path: Path) -> None:
    from dvc.utils.hydra import apply_overrides

    grid = [{"method": "bild", "values": {"fallback_threshold": [0.1, 0.2]}, "note": 'a "b", {c}: d=e'}]
    settings = {RATE: 1e-05, BETA: None, "tasks.toy.sweep.grid": grid, "tasks.toy.metric": "rouge: L", "new.place": True}
    file = tmp_path / "params.yaml"
    file.write_text(PARAMS, encoding="utf-8")
    apply_overrides(file, [override(*one) for one in settings.items()])
    task = yaml.safe_load(file.read_text(encoding="utf-8"))["tasks"]["toy"]
    assert (float(task["align"]["learning_rate"]), task["align"]["beta"], task["metric"]) == (1e-05, None, "rouge: L")
    assert task["sweep"]["grid"] == grid


@pytest.mark.parametrize("words", [[], ["--jobs", "0"], ["--grid", "none.yaml"], ["--set", "a.b=1"]])
def test_a_wrong_command_is_refused_before_a_server_starts(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])
    monkeypatch.setattr(experiment, "prefect_server", None)
    assert runner(experiment.main, monkeypatch, capsys)(*words).status == 2
