"""The command: verdicts with their exit status, and what it refuses in one line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tasks.decoding import load_pair
from tasks.decoding.generation import Generation, total
from tasks.errors import stage
from tasks.verify import __main__ as command
from tasks.verify.decoding import decode_here
from tasks.verify.transformers_engine import TransformersEngine
from tests.pair_folders import LETTERS, agreeing_pair


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return agreeing_pair(tmp_path_factory.mktemp("pair"), "t5")


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit status, output and errors."""
    monkeypatch.setattr(sys, "argv", ["verify", *words, "--engine", "transformers"])
    try:
        with stage():
            status = command.main()
    except SystemExit as end:
        return int(end.code or 0), *capsys.readouterr()
    return status, *capsys.readouterr()


def test_the_folders_examples_hold(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    status, printed, _ = run(monkeypatch, capsys, str(folder))
    assert status == 0
    assert f"{len(LETTERS)} texts, greedy, float32, 3 tokens drafted at a time" in printed
    assert "certificate: the pair has none for 3 drafted tokens" in printed
    assert "tokens: equal in every text" in printed
    assert printed.splitlines()[-1] == "holds: the accepted share differs by 0.0000 (at most 0.02)"


def test_a_certificate_of_these_texts_is_reproduced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = load_pair(agreeing_pair(tmp_path / "first"))
    counts = total(decode_here(pair, 2, pair.encode(LETTERS), 24))
    numbers = {name: getattr(counts, name) for name in ("drafted", "accepted", "large_calls", "tokens")}
    settings = {"draft_length": 2, "drafter": "small"}
    record = {"method": "speculative", "settings": settings, "split": "validation", "examples": len(LETTERS), **numbers}
    folder = agreeing_pair(tmp_path / "second", measured={"accepted": [record]})
    (tmp_path / "texts").write_text("\n".join(LETTERS) + "\n", encoding="utf-8")
    words = [str(folder), "--draft-length", "2", "--file", str(tmp_path / "texts"), "--json"]
    status, printed, _ = run(monkeypatch, capsys, *words)
    found = json.loads(printed)
    assert (status, found["holds"], found["reproduced"], found["certificate"]) == (0, True, True, record)
    assert found["draftline"] == found["transformers"]
    assert found["draftline"]["drafted"] == counts.drafted


class OtherDrafter(TransformersEngine):
    """Drafts one token more than asked."""

    def __init__(self, folder: Path, draft_length: int) -> None:
        super().__init__(folder, draft_length + 1)


class OtherText(TransformersEngine):
    """Writes another third token."""

    def decode(self, source: list[int], limit: int) -> Generation:
        found = super().decode(source, limit)
        found.tokens[2] = 3 if found.tokens[2] != 3 else 4
        return found


@pytest.mark.parametrize(
    ("engine", "reason"),
    [(OtherDrafter, "the accepted share differs by 0."), (OtherText, "10 texts differ by more than rounding")],
)
def test_an_engine_that_accepts_or_writes_otherwise_fails(
    engine: type, reason: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(command.ENGINES, "transformers", engine)
    status, printed, _ = run(monkeypatch, capsys, str(folder))
    assert status == 1
    assert printed.splitlines()[-1].startswith(f"does not hold: {reason}")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b"", "texts holds no text; write one a line"),
        (b"ab\n\ncd\n", "texts, line 2: it is empty; write one text a line"),
        (b"\xff\n", "texts is not UTF-8 (byte 1); save it as UTF-8"),
        (None, "texts cannot be read (No such file or directory); name a text file"),
    ],
)
def test_a_file_without_texts_is_one_line(
    text: bytes | None,
    line: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if text is not None:
        (tmp_path / "texts").write_bytes(text)
    status, _, said = run(monkeypatch, capsys, str(folder), "--file", str(tmp_path / "texts"))
    assert status == 2
    assert line in said.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["nowhere"], "nowhere/pair.json cannot be read"),
        (["PAIR", "--draft-length", "0"], "speculative: draft_length is 0; it must be at least 1"),
        (["PAIR", "--draft-length", "65"], "speculative: draft_length is 65; it must be at most 64"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str], line: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, said = run(monkeypatch, capsys, *(str(folder) if word == "PAIR" else word for word in words))
    assert status == 2
    assert line in said.splitlines()[-1]


def test_a_folder_without_examples_needs_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = agreeing_pair(tmp_path)
    (folder / "examples.json").unlink()
    status, _, said = run(monkeypatch, capsys, str(folder))
    assert status == 2
    assert "has no examples; name a file of texts with --file" in said.splitlines()[-1]
