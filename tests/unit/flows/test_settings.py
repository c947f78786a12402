"""The environment that Prefect finds, and the options of a flow run with their bounds."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest

from flows.settings import PipelineSettings, add_options, read_options, set_defaults
from tasks.errors import InputError


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_options(parser)
    return parser.parse_args(words)


def test_prefect_keeps_its_files_inside_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PREFECT_HOME", raising=False)
    set_defaults()
    assert os.environ["PREFECT_HOME"] == str(tmp_path / ".cache" / "prefect")
    assert Path(os.environ["PREFECT_HOME"]).is_dir()
    assert os.environ["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"


def test_settings_of_the_user_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PREFECT_HOME", "elsewhere")
    monkeypatch.setenv("DO_NOT_TRACK", "0")
    set_defaults()
    assert (os.environ["PREFECT_HOME"], os.environ["DO_NOT_TRACK"]) == ("elsewhere", "0")
    assert not (tmp_path / ".cache").exists()


def test_options_are_the_settings() -> None:
    assert read_options(parsed()) == PipelineSettings()
    options = parsed("--targets", "align", "report", "--workers", "2", "--retries", "0", "--timeout-minutes", "1.5")
    assert options.targets == ["align", "report"]
    assert read_options(options) == PipelineSettings(workers=2, retries=0, timeout_minutes=1.5)


@pytest.mark.parametrize("words", [("--workers", "0"), ("--retries", "-1"), ("--timeout-minutes", "0")])
def test_options_out_of_bounds_are_refused(words: tuple[str, str]) -> None:
    with pytest.raises(InputError, match=words[0].strip("-").replace("-", "_")):
        read_options(parsed(*words))
