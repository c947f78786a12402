"""The table of methods is complete, and docs/methods.md shows it."""

import dataclasses
import json
from pathlib import Path

import pytest

from tasks.decoding.registry import METHODS
from tasks.strategies import drafters_table, main, table
from tests.commands import runner

ROOT = Path(__file__).parents[2]


def test_every_method_has_a_row_and_every_setting_is_shown() -> None:
    rows = {line.split("|")[1].strip().strip("`"): line for line in table().splitlines()[2:]}
    assert set(rows) == set(METHODS)
    for name, method in METHODS.items():
        assert all(f"`{field.name}`" in rows[name] for field in dataclasses.fields(method.settings))


def test_the_page_of_methods_shows_both_tables() -> None:
    page = (ROOT / "docs/methods.md").read_text(encoding="utf-8")
    head, rest = table().split("\n", 1)
    shown = page[page.index(head) :].split("\n\n")[0].splitlines()
    wrong = [line for line in shown[1:] if line not in rest.splitlines()]
    assert not wrong, "run: python -m tasks.strategies, and put both tables into docs/methods.md"
    assert drafters_table() in page


def test_json_for_programs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(runner(main, monkeypatch, capsys)("--json").printed)
    methods = {method["name"]: method for method in found}
    assert set(methods) == set(METHODS)
    assert methods["speculative"]["lossless"]
    assert not methods["bild"]["lossless"]
    assert methods["bild"]["settings"]["fallback_threshold"]["bounds"] == {"ge": 0, "le": 1}
    assert "chow" in methods["speculative_cascade"]["settings"]["rule"]["choices"]
