"""Model cards are valid Markdown and YAML whatever names contain, and equal runs give equal cards."""

import dataclasses
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks.models.card import Card, TextFile, non_default, render_card
from tasks.models.checkpoints import initial_model
from tasks.models.extras import add_classifier, add_heads
from tasks.models.prompting import messages
from tasks.models.settings import ModelSettings, TextSettings
from tasks.training.settings import TrainingSettings

TINY = ModelSettings(d_model=16, d_ff=24, d_kv=8, heads=2, encoder_layers=1, decoder_layers=2)
NASTY = "``` `x` \n---\ntags: [] <b> {{ 1 + 1 }} | ü: #"


@pytest.fixture
def card(tmp_path: Path) -> Card:
    files = [tmp_path / name for name in ("train.jsonl", "validation.jsonl")]
    for file in files:
        file.write_text(f"{file.name}\n", encoding="utf-8")
    return Card(
        task="translation",
        name="small",
        stage="finetune",
        base=None,
        method="It learned.",
        settings={"training": non_default(TrainingSettings(steps=7, checkpoint_every=3))},
        text=TextSettings(max_source_tokens=11),
        texts=(TextFile("training", files[0], 5), TextFile("held-out", files[1], 3)),
        teachers=(),
        measured={"validation_loss": 1.23456, "quality": 33.3},
        steps=7,
        kept=4,
    )


def model_of(**changes: Any) -> Any:
    return initial_model(dataclasses.replace(TINY, **changes), 64, pad=0, end=1)


def front_of(text: str) -> dict[str, Any]:
    front: dict[str, Any] = yaml.safe_load(text.split("---\n")[1])
    return front


def test_a_card_describes_the_model_and_its_provenance(card: Card, tokenizer: Any, tmp_path: Path) -> None:
    text = render_card(card, model_of(), tokenizer)
    assert front_of(text) == {"library_name": "transformers", "tags": ["draftline", "translation", "small"]}
    assert "- validation loss: 1.2346 nats a token\n- quality: 33.3000 points\n" in text
    assert "- optimiser steps: 7; the weights are those after step 4\n" in text
    assert "max_length=11" in text
    digest = hashlib.sha256(b"train.jsonl\n").hexdigest()
    assert re.search(rf"- training text, 5 examples: `[^`]+/train\.jsonl`, SHA-256 `{digest}`\n", text)
    assert json.loads(text.split("```json\n")[1].split("```")[0]) == {"training": {"steps": 7}}
    assert re.search(r"torch \d.*, transformers \d.*, deepspeed \d", text)
    assert "heads" not in text and str(tmp_path) not in text
    model = model_of()
    add_heads(model, 3, seed=0)
    add_classifier(model)
    text = render_card(card, model, tokenizer)
    assert "`heads.safetensors` holds 3 heads" in text and "`exit_classifier.safetensors` holds a classifier" in text


def test_names_cannot_break_out_of_their_fields(card: Card, tokenizer: Any) -> None:
    plain = render_card(card, model_of(), tokenizer)
    nasty = dataclasses.replace(card, task=NASTY, base=NASTY, settings={"model": {"pretrained": NASTY}})
    text = render_card(nasty, model_of(), tokenizer)
    assert front_of(text) == {"library_name": "transformers", "tags": ["draftline", NASTY, "small"], "base_model": NASTY}
    body = text.split("\n---\n", 1)[1]
    assert json.loads(body.split("```json\n")[1].split("\n```\n")[0]) == {"model": {"pretrained": NASTY}}
    headings = [line for line in body.split("\n") if line.startswith("#")]
    expected = [line for line in plain.split("\n---\n", 1)[1].split("\n") if line.startswith("#")]
    # A fence longer than every run of backticks inside it.
    assert headings == ["# ```` ``` `x` --- tags: [] <b> {{ 1 + 1 }} | ü: # ````: small", *expected[1:]]


def test_a_local_folder_is_not_listed_as_base_model(card: Card, tokenizer: Any, tmp_path: Path) -> None:
    folders = [tmp_path / "models" / name for name in ("small", "large")]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(folder.name.encode())
    aligned = dataclasses.replace(card, name="aligned", base=str(folders[0]), teachers=(folders[1],))
    text = render_card(aligned, model_of(), tokenizer)
    assert "base_model" not in front_of(text)
    for what, name in (("initialised from", "small"), ("learned from", "large")):
        digest = hashlib.sha256(name.encode()).hexdigest()
        assert f"- {what} `{name}/model.safetensors`, SHA-256 `{digest}`\n" in text
    hub = render_card(dataclasses.replace(card, base="google/mt5-small"), model_of(), tokenizer)
    assert front_of(hub)["base_model"] == "google/mt5-small"


@pytest.mark.parametrize(
    ("architecture", "auto"),
    [("t5", "AutoModelForSeq2SeqLM"), ("llama", "AutoModelForCausalLM"), ("gpt2", "AutoModelForCausalLM")],
)
def test_the_card_shows_how_to_load_each_architecture(architecture: str, auto: str, card: Card, tokenizer: Any) -> None:
    text = render_card(card, model_of(architecture=architecture), tokenizer)
    snippets = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(snippets) == 2  # as a drafter too
    assert all(auto in snippet and compile(snippet, "card", "exec") for snippet in snippets)
    assert len(re.findall("```python", render_card(dataclasses.replace(card, name="large"), model_of(), tokenizer))) == 1


def test_the_card_of_a_chat_model_shows_its_prompt(card: Card, tokenizer: Any) -> None:
    """With texts that could end the code block or the string."""
    text = TextSettings(chat_template=True, instruction="Say ```it's```:\n{source}", system='A "judge"')
    shown = render_card(dataclasses.replace(card, name="large", text=text), model_of(architecture="llama"), tokenizer)
    [snippet] = re.findall(r"```python\n(.*?)```", shown, re.DOTALL)
    [line] = [line for line in snippet.splitlines() if line.startswith("messages = ")]
    assert eval(line.removeprefix("messages = "), {"source": "a text"}) == messages("a text", text)  # noqa: S307 (our own code)
    assert 'source = "A source text."\n' in snippet and "tokenizer.apply_chat_template(messages, add_generation" in snippet
