"""A pair on its way to another engine, by the commands that a user gives: exported, opened there, and checked."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tasks import verify
from tasks.decoding import load_pair
from tasks.decoding.inference import VANILLA
from tasks.decoding.method import Request
from tests.commands import runner
from tests.pair_folders import LETTERS, agreeing_pair, code_of

ROOT = Path(__file__).parents[2]


def test_no_weights_are_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    folder = agreeing_pair(tmp_path)
    (folder / "large" / "model.safetensors").unlink()
    checked = runner(verify.main, monkeypatch, capsys)(folder, "--engine", "transformers")
    assert checked.status == 2
    assert checked.said.splitlines()[-1].startswith(f"error: {folder}: large/model.safetensors is missing; make the folder")


def run(*words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], cwd=cwd, capture_output=True, text=True)


LLAMA_CPP = """
import json, sys
for text in json.loads(sys.argv[1]):
    ids = tokenizer(text)["input_ids"]
    answer = server.handle_completions({"prompt": ids, "temperature": 0, "max_tokens": 24})
    counts = answer["timings"]["draft_n"], answer["timings"]["draft_n_accepted"]
    print("found", json.dumps([answer["choices"][0]["text"].strip(), *counts]))
"""
"""Decodes texts with the server that the code of a README opened, and prints how many tokens it drafted and accepted."""


@pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="needs xllamacpp")
@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_llama_cpp_writes_the_same_texts_and_accepts_the_same_drafts(architecture: str, tmp_path: Path) -> None:
    """Its first call reads the prompt without a draft: the large model writes the first token alone, and drafting follows."""
    folder = agreeing_pair(tmp_path, architecture)
    exported = run("-m", "tasks.export", str(folder), "--to", "gguf", str(tmp_path / "out"))
    assert exported.returncode == 0, exported.stderr
    opened = run("-c", code_of(tmp_path / "out") + LLAMA_CPP, json.dumps(LETTERS), cwd=tmp_path / "out")
    first, *found = opened.stdout.splitlines()
    pair = load_pair(folder)
    texts = [one.text.strip() for one in pair.generate(LETTERS, method="vanilla_large")]
    method, counts = pair.method(pair.point("speculative", {"draft_length": 3}), Request(24)), []
    for source in pair.encode(LETTERS):
        [first_token] = pair.method(VANILLA, Request(24)).run([source], [0], 1)
        [rest] = method.run([[*source, *first_token.tokens]], [0], 23)
        counts.append(rest.counts)
    assert first.strip() == texts[0], opened.stderr
    assert [json.loads(line.removeprefix("found ")) for line in found] == [
        [text, one.drafted, one.accepted] for text, one in zip(texts, counts, strict=True)
    ]
