"""Chat prompts: the tokens of `apply_chat_template`, cut at the end of the source and nowhere else."""

from pathlib import Path
from typing import Any

import pytest

from tasks.alignment.labelling import TopLogitsPredictor
from tasks.corpora.example import Example, write_jsonl
from tasks.errors import InputError
from tasks.evaluation.sweep.replay import Split
from tasks.models.prompting import SourceEncoder, encode, encode_sources, messages
from tasks.models.settings import TextSettings
from tasks.models.tokenizers import load_tokenizer
from tasks.training.data import JsonlDataset
from tests.gguf_files import END, TEMPLATE, llama, write_gguf
from tests.ticking import sweep_settings

LONG = "the other the\nend"


@pytest.fixture
def tokenizer(tmp_path: Path) -> Any:
    return load_tokenizer(write_gguf(tmp_path / "tiny.gguf"))


def text(**changes: Any) -> TextSettings:
    values: dict[str, Any] = {"max_source_tokens": 200, "chat_template": True, "instruction": "Sum up:\n\n{source}\nNow."}
    return TextSettings(**(values | changes))


def test_a_prompt_is_what_transformers_makes(tokenizer: Any) -> None:
    asked = text(system="Be brief.")
    for source in (LONG, "", "{source} {{ x }}", "ä"):
        chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"Sum up:\n\n{source}\nNow."}]
        expected = tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
        assert encode_sources(tokenizer, [source], asked) == [expected]
        assert expected[-1] != END
    assert [one["role"] for one in messages("x", text())] == ["user"]


def test_without_a_template_it_is_the_text_and_the_end_token(tokenizer: Any) -> None:
    plain = TextSettings(max_source_tokens=5)
    assert encode_sources(tokenizer, [LONG, "a"], plain) == encode(tokenizer, [LONG, "a"], 5)
    assert encode_sources(tokenizer, ["a"], plain)[0][-1] == END
    assert encode_sources(tokenizer, [], text()) == []


def test_a_long_source_loses_its_own_end_and_is_counted(tokenizer: Any) -> None:
    whole, fixed = (len(encode_sources(tokenizer, [source], text())[0]) for source in (LONG, ""))
    for limit in range(fixed + 1, whole + 1):
        encoder = SourceEncoder(tokenizer, text(max_source_tokens=limit))
        [row, short] = encoder([LONG, "e"])
        assert limit - 2 <= len(row) <= limit and len(short) == fixed + 1
        written = tokenizer.decode(row)
        assert written.startswith("<|im_start|>user\nSum up:\n\n")
        assert written.endswith("\nNow.<|im_end|>\n<|im_start|>assistant\n")
        kept = written.removeprefix("<|im_start|>user\nSum up:\n\n").removesuffix("\nNow.<|im_end|>\n<|im_start|>assistant\n")
        assert LONG.startswith(kept)
        assert encoder.cut == (limit < whole)
        # One more character would not have fitted.
        if limit < whole:
            assert len(encode_sources(tokenizer, [LONG[: len(kept) + 1]], text())[0]) > limit


@pytest.mark.parametrize(
    ("template", "changes", "words"),
    [
        (None, {}, r"text\.chat_template is true, but the tokenizer at .* has no chat template; name a chat model's tokenizer"),
        ("{{raise_exception('No system here.')}}", {"system": "x"}, r"does not take the messages: No system here; change text"),
        ("{% if %}", {}, r"does not take the messages: .*; change text\.system"),
        (TEMPLATE, {"max_source_tokens": 20}, "max_source_tokens is 20, but the chat prompt alone, without its source, has"),
    ],
)
def test_impossible_prompts_are_one_line(template: str | None, changes: dict[str, Any], words: str, tokenizer: Any) -> None:
    tokenizer.chat_template = template
    with pytest.raises(InputError, match=words):
        SourceEncoder(tokenizer, text(**changes))


@pytest.mark.parametrize("call", ["cycler.__init__.__globals__.os.mkdir", "messages.append.__class__", "''.__class__.__mro__"])
def test_a_template_runs_no_code(call: str, tokenizer: Any, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    tokenizer.chat_template = f"{{{{ {call}({str(mark)!r}) }}}}"
    with pytest.raises(InputError, match=r"does not take the messages: access to attribute '__\w+__' .* is unsafe"):
        SourceEncoder(tokenizer, text())
    assert not mark.exists()


def test_every_stage_reads_the_same_tokens(tokenizer: Any, tmp_path: Path) -> None:
    examples = [Example(f"{LONG} {number}", (f"the {number}",)) for number in range(4)]
    write_jsonl(examples, tmp_path / "train.jsonl")
    asked = text(max_source_tokens=50)
    expected = encode_sources(tokenizer, [one.source for one in examples], asked)
    trained = JsonlDataset(tmp_path / "train.jsonl", tokenizer, asked, decoder_only=True)
    assert (trained.sources, trained.cut) == (expected, 0)
    assert trained.targets == [[*tokenizer(f"the {number}")["input_ids"], END] for number in range(4)]
    assert TopLogitsPredictor(llama(), tokenizer, asked, 99, 2, 4).tokenised(examples).sources == expected
    assert Split("test", examples, tokenizer, asked, sweep_settings()).sources == expected
    assert JsonlDataset(tmp_path / "train.jsonl", tokenizer, text(max_source_tokens=40), decoder_only=True).cut == 4


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"instruction": "Sum up."}, r"instruction has \{source\} 0 times; it must have it once"),
        ({"chat_template": False}, r"instruction is set, but chat_template is false; set it to true, or remove instruction"),
        ({"chat_template": False, "instruction": "{source}", "system": "x"}, "system is set, but chat_template is false"),
    ],
)
def test_settings_that_do_not_fit_together(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        text(**values)
