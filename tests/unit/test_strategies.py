"""The table of methods is complete, and docs/methods.md shows it."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest

from tasks.decoding.settings import METHOD_SETTINGS
from tasks.strategies import drafters_table, main, table

ROOT = Path(__file__).parents[2]


def test_every_method_has_a_row_and_every_setting_is_shown() -> None:
    rows = {line.split("|")[1].strip().strip("`"): line for line in table().splitlines()[2:]}
    assert set(rows) == set(METHOD_SETTINGS)
    for name, kind in METHOD_SETTINGS.items():
        assert all(f"`{field.name}`" in rows[name] for field in dataclasses.fields(kind))


def test_the_page_of_methods_shows_both_tables() -> None:
    page = (ROOT / "docs/methods.md").read_text(encoding="utf-8")
    for shown in (table(), drafters_table()):
        assert shown in page, "run: python -m tasks.strategies, and put both tables into docs/methods.md"


def test_json_for_programs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["strategies", "--json"])
    main()
    methods = {method["name"]: method for method in json.loads(capsys.readouterr().out)}
    assert set(methods) == set(METHOD_SETTINGS)
    assert methods["speculative"]["lossless"]
    assert not methods["bild"]["lossless"]
    assert methods["bild"]["settings"]["fallback_threshold"]["bounds"] == {"ge": 0, "le": 1}
    assert "chow" in methods["speculative_cascade"]["settings"]["rule"]["choices"]
