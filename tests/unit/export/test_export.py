"""Exported pairs, opened as their own README says, and what is refused."""

import contextlib
import dataclasses
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest

from tasks.decoding import load_pair
from tasks.decoding.pair_folder import engine_draft_length, read_manifest, write_pair_folder
from tasks.decoding.registry import configure_method
from tasks.export import __main__ as command
from tasks.files import SUMS
from tasks.models.extras import FILES
from tasks.models.pruned_head import FILE as DRAFT_TOKENS
from tasks.models.tokenizers import load_tokenizer
from tasks.verify import TransformersEngine
from tests.commands import runner
from tests.pair_folders import LETTERS, agreeing_pair, code_of

CHAT = "{% for message in messages %}{{ message['content'] }} {% endfor %}{% if add_generation_prompt %}a {% endif %}"


Export = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: agreeing_pair(tmp_path_factory.mktemp(name), name) for name in ("t5", "llama", "gpt2")}


@pytest.fixture
def export(
    pairs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Export:
    """Exports a pair, by name or folder, for an engine to `out`; gives exit status and the last line that was written."""
    run = runner(command.main, monkeypatch, capsys)

    def export(pair: str | Path, form: str, out: Path = tmp_path / "out", *options: str) -> tuple[int, str]:
        status, printed, said = run(pairs.get(str(pair), pair), "--to", form, out, *options)
        return status, (said if status else printed).splitlines()[-1]

    return export


def shown(out: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, list[int]]:
    """What the Python of the README prints when it is run in its folder, and the token ids that it makes of the text."""
    monkeypatch.chdir(out)
    printed, names = io.StringIO(), dict[str, Any]()
    with contextlib.redirect_stdout(printed):
        exec(compile(code_of(out), "README.md", "exec"), names)  # noqa: S102 (the code is this project's own)
    return printed.getvalue().strip(), names["ids"]


def with_manifest(folder: Path, pair: Path, **changed: Any) -> Path:
    """A copy of a pair with another manifest."""
    manifest = dataclasses.replace(read_manifest(pair), **changed)
    return write_pair_folder(folder / "other", manifest, pair / "large", pair / "drafter", LETTERS)


@pytest.mark.parametrize(
    ("name", "form"), [("t5", "transformers"), ("llama", "transformers"), ("t5", "ctranslate2"), ("gpt2", "ctranslate2")]
)
def test_the_call_in_the_readme_writes_the_large_models_text(
    export: Export, name: str, form: str, pairs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, line = export(name, form)
    assert (status, line.startswith(f"{tmp_path / 'out'}: for {form}; not carried over: ")) == (0, True)
    pair = load_pair(pairs[name])
    [expected] = pair.generate(LETTERS[0], method="vanilla_large")
    assert len(expected.text) > 2
    assert shown(tmp_path / "out", monkeypatch) == (expected.text.strip(), *pair.encode([LETTERS[0]]))


def test_the_drafter_for_transformers_drafts_as_the_certificate_says(
    export: Export, pairs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder holds the settings, so the engine is opened with others and must not need its own."""
    out = tmp_path / "out"
    lost = ["measurements and certificate, which stay in pair.json"]  # the pair is lossless
    said = {"folder": str(out), "engine": "transformers", "not_carried_over": lost}
    assert json.loads(export("t5", "transformers", out, "--json")[1]) == said
    monkeypatch.setattr("tasks.verify.draft_constantly", lambda drafter, draft_length: None)
    pair, engine = load_pair(pairs["t5"]), TransformersEngine(tmp_path / "out", 0)
    sources, limit = pair.encode(LETTERS), pair.manifest.text.max_target_tokens
    for source, text in zip(sources, LETTERS, strict=True):
        [expected] = pair.generate(text, settings=None)
        found = engine.decode(source, limit)
        assert (found.tokens, dict(found.counts.kept)) == (expected.tokens, dict(expected.counts.kept))


def test_ctranslate2_has_the_real_vocabulary(export: Export, tmp_path: Path) -> None:
    export("t5", "ctranslate2")
    for model in ("large", "drafter"):
        vocabulary = json.loads((tmp_path / "out" / model / "shared_vocabulary.json").read_text(encoding="utf-8"))
        assert vocabulary[:5] == ["<pad>", "</s>", "<unk>", "▁", "a"]
    assert not list((tmp_path / "out" / "tokenizer").glob("*.safetensors"))


def test_vllm_is_told_of_the_drafter_in_the_documented_keys(export: Export, tmp_path: Path) -> None:
    status, _ = export("llama", "vllm")
    found = json.loads((tmp_path / "out" / "speculative_config.json").read_text(encoding="utf-8"))
    assert status == 0
    assert found == {"method": "draft_model", "model": "drafter", "num_speculative_tokens": 3}
    for model in ("large", "drafter"):
        config = json.loads((tmp_path / "out" / model / "config.json").read_text(encoding="utf-8"))
        assert config["architectures"] == ["LlamaForCausalLM"]
    assert "was not run in vLLM" in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert code_of(tmp_path / "out")


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_gguf_holds_both_models_and_drafts_at_the_certified_length(export: Export, name: str, tmp_path: Path) -> None:
    status, _ = export(name, "gguf")
    assert status == 0
    names = ["README.md", SUMS, "drafter.gguf", "large.gguf", "tokenizer"]
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == names
    assert load_tokenizer(tmp_path / "out" / "tokenizer")("ab cd")["input_ids"][-1] == 1
    for model in ("large", "drafter"):
        fields = gguf.GGUFReader(tmp_path / "out" / f"{model}.gguf").fields
        assert [fields[f"general.{key}"].contents() for key in ("architecture", "name")] == [name, f"toy {model}"]
    assert "draft.n_max, draft.n_min, draft.p_min = 3, 0, 0.0\n" in code_of(tmp_path / "out")
    assert not list((tmp_path / "out").rglob("*.safetensors"))


def test_gguf_needs_its_package(export: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "gguf" else name)
    status, said = export("llama", "gguf")
    assert (status, "pip install 'draftline[gguf]'" in said, list(tmp_path.iterdir())) == (2, True, [])


@pytest.mark.parametrize(
    ("name", "form", "line"),
    [
        ("t5", "vllm", "vLLM runs no encoder-decoder such as t5; export to transformers or ctranslate2 instead"),
        ("t5", "gguf", "llama.cpp drafts for no encoder-decoder such as t5; export to transformers or ctranslate2 instead"),
        ("llama", "ctranslate2", "CTranslate2 runs Llama models only where heads times their size is the width"),
    ],
)
def test_what_no_engine_runs_is_one_line_and_no_folder(export: Export, name: str, form: str, line: str, tmp_path: Path) -> None:
    status, said = export(name, form)
    assert status == 2
    assert line in said
    assert list(tmp_path.iterdir()) == []


def test_what_is_left_behind_is_said_and_not_copied(export: Export, pairs: dict[str, Path], tmp_path: Path) -> None:
    folder = with_manifest(tmp_path, pairs["t5"], point=configure_method("bild", {"fallback_threshold": 0.7}))
    (folder / "drafter" / DRAFT_TOKENS).touch()
    (folder / "large" / FILES[0]).touch()
    _, line = export(folder, "transformers")
    page = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    for clause in ("the operating point (bild ", "fallback_threshold=0.7", "the draft vocabulary", "draft heads"):
        assert clause in line
        assert clause in page
    assert f"draft {engine_draft_length(read_manifest(folder))} tokens at a time" in page
    assert not (tmp_path / "out" / "drafter" / DRAFT_TOKENS).exists()
    assert not (tmp_path / "out" / "large" / FILES[0]).exists()


def test_a_chat_pair_is_prompted_as_it_was_trained(
    export: Export, pairs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = read_manifest(pairs["llama"])
    text = dataclasses.replace(
        manifest.text, chat_template=True, instruction="ab {source} cd", system="bad", max_source_tokens=40
    )
    folder = with_manifest(tmp_path, pairs["llama"], text=text)
    for model in ("large", "drafter"):
        (folder / model / "chat_template.jinja").write_text(CHAT, encoding="utf-8")
    _, line = export(folder, "transformers")
    assert "the instruction and system message around a source, which README.md shows" in line
    pair = load_pair(folder)
    [expected] = pair.generate(LETTERS[0], method="vanilla_large")
    assert shown(tmp_path / "out", monkeypatch) == (expected.text.strip(), *pair.encode([LETTERS[0]]))


def test_bad_folders_are_one_line(export: Export, pairs: dict[str, Path], tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    broken = with_manifest(tmp_path, pairs["t5"])
    (broken / "large" / "config.json").write_text("{", encoding="utf-8")
    for pair, out, line in (
        (tmp_path / "nowhere", tmp_path / "out", "nowhere/pair.json cannot be read"),
        (pairs["t5"], there, "there exists; name a new folder, or remove it"),
        (pairs["t5"], tmp_path / "a" / "b", "is no folder; make it, or name another"),
        (broken, tmp_path / "out", "large/config.json is not as it was written; make the folder anew"),
    ):
        status, said = export(pair, "transformers", out)
        assert status == 2
        assert line in said
