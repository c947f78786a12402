"""The command on a pair of the user's own: texts from everywhere, streams, times, JSON and refusals."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import pytest

from tasks.decoding.registry import METHODS
from tasks.errors import stage
from tasks.generate import __main__ as command
from tests.calibration import SOURCES, saved


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The arguments of a large model that drafts for itself."""
    folder = tmp_path_factory.mktemp("pair") / "large"
    saved("t5", folder)
    return ["--large", str(folder), "--small", str(folder), "--max-tokens", "12"]


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit status, output and errors."""
    monkeypatch.setattr(sys, "argv", ["generate", *words])
    try:
        with stage():
            command.main()
    except SystemExit as end:
        return int(end.code or 0), *capsys.readouterr()
    return 0, *capsys.readouterr()


def test_json_says_all_of_a_text(pair: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--json", "--method", "speculative", "--set", "draft_length=4", *SOURCES[:2]]
    status, printed, said = run(monkeypatch, capsys, *pair, *words)
    lines = [json.loads(line) for line in printed.splitlines()]
    assert status == 0
    assert [line["source"] for line in lines] == SOURCES[:2]
    for line in lines:
        assert line["counts"]["tokens"] == len(line["tokens"]) == len(line["proposers"])
        assert line["settings"]["draft_length"] == 4
        assert line["acceptance_rate"] == 1
        assert line["same_as_vanilla"] is True
        assert line["speedup"] == pytest.approx(line["vanilla_latency_ms"] / line["latency_ms"])
    assert "speculative drafter=small draft_length=4 (as given); native" in said


@pytest.mark.parametrize("method", ["vanilla_large", "vanilla_small", "speculative", "bild", "sequence_cascade", "beam_large"])
def test_a_text_is_the_same_streamed_or_whole(
    method: str, pair: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A method of several passes is written whole."""
    assert method in METHODS
    words = [*pair, "--method", method, "--rounds", "0", SOURCES[0]]
    _, streamed, said = run(monkeypatch, capsys, *words)
    _, whole, _ = run(monkeypatch, capsys, *words, "--json")
    line = json.loads(whole)
    assert "latency_ms" not in line
    text, statistics = streamed.splitlines()
    assert text.translate(str.maketrans("", "", "[]{}")) == line["text"]
    assert statistics.strip().startswith(f"{line['counts']['tokens']} tokens")
    assert "[drafted] and kept" in said


def test_texts_come_from_a_file_and_from_standard_input(
    pair: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(SOURCES[:3]) + "\n", encoding="utf-8")
    _, from_file, _ = run(monkeypatch, capsys, *pair, "--json", "--rounds", "0", "--file", str(file))
    monkeypatch.setattr(sys, "stdin", io.StringIO(file.read_text(encoding="utf-8")))
    _, from_stdin, _ = run(monkeypatch, capsys, *pair, "--json", "--rounds", "0")
    assert from_file == from_stdin
    assert [json.loads(line)["source"] for line in from_file.splitlines()] == SOURCES[:3]


def test_a_text_that_is_read_in_part_has_a_warning(
    pair: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*pair, "--json", "--rounds", "0"]
    assert "warning" not in run(monkeypatch, capsys, *words, SOURCES[0])[2]
    _, output, said = run(monkeypatch, capsys, *words, " ".join(SOURCES * 20))
    assert re.search(
        r"^warning: the text has \d{3,} tokens; the models read the first \d+ \(text.max_source_tokens\)$", said, re.M
    )
    assert json.loads(output)["text"] is not None


def test_characters_that_the_tokenizer_lacks_have_a_warning(
    pair: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*pair, "--json", "--rounds", "0"]
    assert "unknown" not in run(monkeypatch, capsys, *words, SOURCES[0])[2]
    said = run(monkeypatch, capsys, *words, "日本語")[2]
    assert re.search(r"^warning: [1-3] of the text's \d tokens are unknown to the models$", said, re.M)


def test_vanillas_text_is_shown_where_it_differs(
    pair: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = ["--method", "vanilla_large", "--max-tokens", "12", "--rounds", "1"]
    lossy = ["--method", "beam_large", "--rounds", "1"]
    assert "  vanilla: " not in run(monkeypatch, capsys, *pair, *cut, SOURCES[0])[1]
    line = json.loads(run(monkeypatch, capsys, *pair, *lossy, "--json", SOURCES[0])[1])
    shown = run(monkeypatch, capsys, *pair, *lossy, SOURCES[0])[1]
    assert line["same_as_vanilla"] is (line["vanilla_text"] == line["text"]) is False
    assert shown.splitlines()[-1] == f"  vanilla: {line['vanilla_text']}"


def test_texts_are_checked_before_a_model_is_opened(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "error: the command line, text 2: it is empty" in run(monkeypatch, capsys, "--pair", "nowhere", "a", " ")[2]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--rounds", "-1", "a"], "error: --rounds is -1; it must be at least 0"),
        (["a", "--file", "b"], "error: texts stand on the command line and in --file; give one of the two"),
        (["a", " "], "error: the command line, text 2: it is empty; give each text on a line of its own"),
        (["--file", "nowhere.txt"], "error: nowhere.txt cannot be read (No such file or directory); name a text file"),
        (
            ["--task", "translation", "a"],
            "error: --task is translation, but --large names a pair of your own",
        ),
        (["--tune", "ms=2", "a"], "error: --tune is of a task, but --large names a pair of your own"),
        (
            ["--tune", "ms=2", "--method", "bild", "a"],
            "error: --tune ms=2 chooses the method, but --method is bild",
        ),
        (
            ["--method", "speculative", "--set", "drafter=bigram", "a"],
            "error: drafter is bigram, which reads",
        ),
        (["--chat-template", "a"], "has no chat template"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str], line: str, pair: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, said = run(monkeypatch, capsys, *pair, *words)
    assert status == 2
    [error] = [one for one in said.splitlines() if one.startswith("error: ")]
    assert line in error


def test_a_pair_needs_both_models_and_input_some_text(
    pair: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "error: --small is missing" in run(monkeypatch, capsys, *pair[:2], "a")[2]
    assert "error: --large is missing" in run(monkeypatch, capsys, *pair[2:], "a")[2]
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert "error: standard input holds no text" in run(monkeypatch, capsys, *pair)[2]
    assert "error: --chat-template is for a pair of your own" in run(monkeypatch, capsys, "--chat-template", "a")[2]
