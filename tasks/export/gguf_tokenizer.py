"""Writes a tokenizer into a GGUF file, so that llama.cpp makes the same tokens of a text.

llama.cpp has the code of each kind of tokenizer, and the file names one: `t5` is SentencePiece's unigram model, `gpt2` is BPE
over bytes. The steps that split a text before BPE are code too, and have a name of their own. llama.cpp's converter finds that
name by the hash of an encoded text; here it is found by the steps in `tokenizer.json`.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Steps = list[dict[str, Any]]

_BYTES = {"type": "ByteLevel", "use_regex": True, "add_prefix_space": False}
_SPLITS: dict[str, Steps] = {"gpt-2": [_BYTES], "smollm": [{"type": "Digits", "individual_digits": True}, _BYTES]}
"""llama.cpp's names of the steps before BPE, with the keys of `tokenizer.json` that change tokens."""
_SPACES = {"type": "Metaspace", "prepend_scheme": "always", "replacement": "▁"}
_WORDS: list[Steps] = [[_SPACES], [{"type": "WhitespaceSplit"}, _SPACES]]
"""Steps before a unigram model that llama.cpp takes: a sign for a space before every word."""
_UNUSED_SCORE = -10000.0
_ADDED_SCORE = -1000.0
"""Scores that llama.cpp's converter gives to tokens without one."""


def add_tokenizer(writer: Any, folder: Path, tokenizer: PreTrainedTokenizerBase, rows: int) -> None:
    """Add a tokenizer to a `gguf.GGUFWriter`.

    Args:
        writer: Receives the keys.
        folder: The folder that the tokenizer was loaded from, for messages.
        tokenizer: The tokenizer of that folder.
        rows: Rows of the model's embedding. Those beyond the vocabulary become unused tokens.

    Raises:
        InputError: llama.cpp has no such tokenizer.
    """
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is None:
        raise InputError(f"the tokenizer of {folder} has no tokenizer.json, from which GGUF is written")
    found = json.loads(fast.to_str())
    model, added = found["model"], {one["id"]: one for one in found["added_tokens"]}
    if model["type"] not in ("Unigram", "BPE") or model.get("byte_fallback"):
        raise InputError(f"{folder} has a tokenizer ({model['type']}) that is neither a unigram model nor BPE over bytes")
    add = _add_unigram if model["type"] == "Unigram" else _add_byte_pairs
    tokens, scores = add(writer, folder, found)
    _add_tokens(writer, tokens, scores, added, rows, model.get("unk_id"))
    _add_special_tokens(writer, tokenizer)


def _steps(found: dict[str, Any] | None) -> Steps:
    if found is None:
        return []
    return list(found["pretokenizers"]) if found["type"] == "Sequence" else [found]


def _are(steps: Steps, expected: Steps) -> bool:
    """Whether steps have the expected types and settings; settings that are not expected do not count."""
    return len(steps) == len(expected) and all(
        all(step.get(key) == value for key, value in wanted.items()) for step, wanted in zip(steps, expected, strict=True)
    )


def _unknown(folder: Path, steps: Steps) -> InputError:
    names = ", ".join(step["type"] for step in steps) or "no step"
    return InputError(f"the tokenizer of {folder} splits text by {names}, with settings that have no name in GGUF here")


def _not_normalised(folder: Path, normalizer: dict[str, Any]) -> InputError:
    return InputError(f"the tokenizer of {folder} normalises text by {normalizer['type']}, for which GGUF has no key")


def _add_unigram(writer: Any, folder: Path, found: dict[str, Any]) -> tuple[dict[int, str], list[float]]:
    """Add the kind of a unigram model, and return its tokens and their scores."""
    normalizer, steps = found["normalizer"], _steps(found["pre_tokenizer"])
    if normalizer is not None and normalizer["type"] != "Precompiled":
        raise _not_normalised(folder, normalizer)
    if not any(_are(steps, expected) for expected in _WORDS):
        raise _unknown(folder, steps)
    writer.add_tokenizer_model("t5")
    writer.add_tokenizer_pre("default")
    writer.add_add_space_prefix(True)
    writer.add_remove_extra_whitespaces(True)
    if normalizer is not None:
        writer.add_precompiled_charsmap(base64.b64decode(normalizer["precompiled_charsmap"]))
    vocabulary = found["model"]["vocab"]
    return {index: text for index, (text, _) in enumerate(vocabulary)}, [score for _, score in vocabulary]


def _add_byte_pairs(writer: Any, folder: Path, found: dict[str, Any]) -> tuple[dict[int, str], None]:
    """Add the kind and the merges of BPE, and return its tokens, which have no scores."""
    model, steps = found["model"], _steps(found["pre_tokenizer"])
    name = next((name for name, expected in _SPLITS.items() if _are(steps, expected)), None)
    if name is None or model.get("ignore_merges"):
        raise _unknown(folder, steps)
    if found["normalizer"] is not None:
        raise _not_normalised(folder, found["normalizer"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(name)
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]])
    return {index: text for text, index in model["vocab"].items()}, None


def _add_tokens(
    writer: Any, tokens: dict[int, str], scores: list[float] | None, added: dict[int, Any], rows: int, unknown: int | None
) -> None:
    """Add the text, the kind and the score, if the model has scores, of every row of the embedding."""
    from gguf import TokenType

    texts = [added[index]["content"] if index in added else tokens.get(index, f"[PAD{index}]") for index in range(rows)]
    kinds = [TokenType.NORMAL if index in tokens else TokenType.UNUSED for index in range(rows)]
    for index, one in added.items():
        if index >= rows:
            continue  # a token that the model cannot read
        kinds[index] = TokenType.CONTROL if one["special"] else TokenType.USER_DEFINED
    if unknown is not None:
        kinds[unknown] = TokenType.UNKNOWN
    writer.add_token_list(texts)
    writer.add_token_types(kinds)
    if scores is not None:
        unscored = [_UNUSED_SCORE if kind == TokenType.UNUSED else _ADDED_SCORE for kind in kinds[len(scores) :]]
        writer.add_token_scores([*scores, *unscored][:rows])


def _add_special_tokens(writer: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    """Add special tokens, the chat template, and whether a text is encoded with a start or end token."""
    for name in ("bos", "eos", "unk", "pad"):
        index = getattr(tokenizer, f"{name}_token_id")
        if index is not None:
            getattr(writer, f"add_{name}_token_id")(index)
    encoded = tokenizer("a")["input_ids"]
    writer.add_add_bos_token(encoded[:1] == [tokenizer.bos_token_id])
    writer.add_add_eos_token(encoded[-1:] == [tokenizer.eos_token_id])
    if isinstance(tokenizer.chat_template, str):
        writer.add_chat_template(tokenizer.chat_template)
