"""Writes a tokenizer into a GGUF file, so that llama.cpp makes the same tokens of a text.

llama.cpp has the code of each kind of tokenizer, and the file names one: `t5` is SentencePiece's unigram model, `gpt2` is BPE
over bytes. The way a text is split before BPE is code too, and has a name of its own. llama.cpp's converter finds that name by the
hash of an encoded text; here it is found by the steps in `tokenizer.json`.
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
        tokenizer: Of that folder.
        rows: Rows of the model's embedding. Those beyond the vocabulary become unused tokens.

    Raises:
        InputError: llama.cpp has no such tokenizer.
    """
    found = _read(folder, tokenizer)
    model, steps = found["model"], _steps(found["pre_tokenizer"])
    kind = "an unknown kind" if model["type"] is None else model["type"]
    if model.get("byte_fallback") or kind not in ("Unigram", "BPE"):
        raise InputError(f"{folder} has a tokenizer of type {kind} that GGUF is not written for; take unigram or BPE over bytes")
    if kind == "Unigram":
        _add_unigram(writer, folder, found["normalizer"], steps)
        scored = {text: score for text, score in model["vocab"]}
        numbered = {index: text for index, (text, _) in enumerate(model["vocab"])}
        _add_tokens(writer, found, numbered, rows, model["unk_id"], scored)
    else:
        _add_byte_pairs(writer, folder, found, steps)
        _add_tokens(writer, found, {index: text for text, index in model["vocab"].items()}, rows, None, None)
    _add_special_tokens(writer, tokenizer)


def _read(folder: Path, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Return the content of the tokenizer's `tokenizer.json`."""
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is None:
        raise InputError(f"the tokenizer of {folder} has no tokenizer.json, from which GGUF is written")
    found: dict[str, Any] = json.loads(fast.to_str())
    return found


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
    names = ", ".join(step["type"] for step in steps) or "nothing"
    return InputError(f"the tokenizer of {folder} splits text by {names} with settings for which no name of llama.cpp is known here")


def _add_unigram(writer: Any, folder: Path, normalizer: dict[str, Any] | None, steps: Steps) -> None:
    if normalizer is not None and normalizer["type"] != "Precompiled":
        raise InputError(f"the tokenizer of {folder} normalises text by {normalizer['type']}, for which GGUF has no key")
    if not any(_are(steps, expected) for expected in _WORDS):
        raise _unknown(folder, steps)
    writer.add_tokenizer_model("t5")
    writer.add_tokenizer_pre("default")
    writer.add_add_space_prefix(True)
    writer.add_remove_extra_whitespaces(True)
    if normalizer is not None:
        writer.add_precompiled_charsmap(base64.b64decode(normalizer["precompiled_charsmap"]))


def _add_byte_pairs(writer: Any, folder: Path, found: dict[str, Any], steps: Steps) -> None:
    model = found["model"]
    name = next((name for name, expected in _SPLITS.items() if _are(steps, expected)), None)
    if name is None or model.get("ignore_merges"):
        raise _unknown(folder, steps)
    if found["normalizer"] is not None:
        raise InputError(f"the tokenizer of {folder} normalises text by {found['normalizer']['type']}, for which GGUF has no key")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(name)
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]])


def _add_tokens(
    writer: Any,
    found: dict[str, Any],
    vocabulary: dict[int, str],
    rows: int,
    unknown: int | None,
    scores: dict[str, float] | None,
) -> None:
    """Add text, kind and score of every row of the embedding."""
    from gguf import TokenType

    added = {one["id"]: one for one in found["added_tokens"]}
    texts, kinds, numbers = [], [], []
    for index in range(rows):
        one = added.get(index)
        text = one["content"] if one is not None else vocabulary.get(index)
        kind = TokenType.NORMAL
        if text is None:
            text, kind = f"[PAD{index}]", TokenType.UNUSED
        elif index == unknown:
            kind = TokenType.UNKNOWN
        elif one is not None:
            kind = TokenType.CONTROL if one["special"] else TokenType.USER_DEFINED
        texts.append(text)
        kinds.append(kind)
        numbers.append((scores or {}).get(text, _UNUSED_SCORE if kind == TokenType.UNUSED else _ADDED_SCORE))
    writer.add_token_list(texts)
    writer.add_token_types(kinds)
    if scores is not None:
        writer.add_token_scores(numbers)


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
