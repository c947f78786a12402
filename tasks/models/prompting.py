"""Turns texts into what a model reads: a text with an end token, or a chat prompt.

Training, calibration, the sweep and every measurement encode sources here, so that a model reads the same tokens everywhere.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from tasks.errors import InputError
from tasks.models.settings import SOURCE, TextSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedTokenizerBase


class SourceEncoder:
    """Encodes sources for a model by the text settings of its task.

    With `text.chat_template` a source becomes a user's message, followed by the beginning of the model's answer. The tokens are
    those of `apply_chat_template(…, add_generation_prompt=True)`. A long source is cut at its own end, never at the prompt's.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, text: TextSettings) -> None:
        """Check that the tokenizer has a template that takes the messages, if one is asked for.

        Raises:
            InputError: it has none, the template refuses the messages, or they leave no room for a source.
        """
        self.cut = 0
        """Sources so far whose end did not fit into a chat prompt."""
        self._tokenizer, self._text = tokenizer, text
        if text.chat_template:
            self._check()

    def __call__(self, sources: list[str]) -> list[list[int]]:
        """Return the token ids of each source, at most `max_source_tokens`."""
        limit = self._text.max_source_tokens
        if not self._text.chat_template:
            return encode(self._tokenizer, sources, limit)
        rows = self._prompts(sources)
        for index, row in enumerate(rows):
            if len(row) > limit:
                self.cut += 1
                rows[index] = self._shortened(sources[index])
        return rows

    def whole_length(self, source: str) -> int:
        """Return how many tokens a source has with its prompt; the model reads at most `max_source_tokens` of them."""
        if self._text.chat_template:
            return len(self._prompts([source])[0])
        return len(self._tokenizer(source, verbose=False)["input_ids"])

    def conversation(self, messages: list[dict[str, str]]) -> list[int]:
        """Return the token ids of a conversation, each message with `role` and `content`, however long.

        Raises:
            InputError: the chat template does not take these messages.
        """
        from jinja2 import TemplateError

        try:
            written = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except TemplateError as error:
            raise InputError(f"the chat template does not take these messages: {_reason(error)}") from None
        row: list[int] = self._tokenizer(written, add_special_tokens=False, verbose=False)["input_ids"]
        return row

    def _prompts(self, sources: list[str]) -> list[list[int]]:
        """Return whole prompts, however long."""
        if not sources:
            return []
        conversations = [messages(source, self._text) for source in sources]
        written = self._tokenizer.apply_chat_template(conversations, tokenize=False, add_generation_prompt=True)
        # The template writes the start token itself.
        rows: list[list[int]] = self._tokenizer(written, add_special_tokens=False, verbose=False)["input_ids"]
        return rows

    def _shortened(self, source: str) -> list[int]:
        """Return the prompt of the longest beginning of a source that fits.

        The beginning is sought in characters: tokens at its end may differ from those of the whole text.
        """

        def without(characters: int) -> list[int]:
            return self._prompts([source[: len(source) - characters]])[0]

        fewest = -self._text.max_source_tokens
        return without(bisect_left(range(len(source)), fewest, lo=1, key=lambda characters: -len(without(characters))))

    def _check(self) -> None:
        from jinja2 import TemplateError

        name, limit = self._tokenizer.name_or_path, self._text.max_source_tokens
        if not self._tokenizer.chat_template:
            fix = "name a chat model's tokenizer with tokenizer.pretrained, or set text.chat_template to false"
            raise InputError(f"text.chat_template is true, but the tokenizer at {name} has no chat template; {fix}")
        try:
            [empty] = self._prompts([""])
        except TemplateError as error:
            said = f"the chat template of the tokenizer at {name} does not take the messages: {_reason(error)}"
            raise InputError(f"{said}; change text.system or text.instruction") from None
        if len(empty) >= limit:
            raise InputError(
                f"text.max_source_tokens is {limit}, but the chat prompt alone, without its source, has {len(empty)}; raise it"
            )


def _reason(error: Exception) -> str:
    return str(error).strip().split("\n")[0].rstrip(".")


def common_prefix(one: Sequence[object], other: Sequence[object]) -> int:
    """Return the length of the common beginning of two texts or lists of tokens."""
    shorter = min(len(one), len(other))
    return next((index for index in range(shorter) if one[index] != other[index]), shorter)


def encode(tokenizer: PreTrainedTokenizerBase, texts: list[str], limit: int) -> list[list[int]]:
    """Return the token ids of each text, ending with the end token, truncated to `limit` tokens in all.

    Tokenizers of decoder-only models add no end token by themselves; there it separates the source from the target.
    """
    end = tokenizer.eos_token_id
    rows: list[list[int]] = tokenizer(texts, max_length=limit, truncation=True)["input_ids"]
    return [row if row and row[-1] == end else [*row[: limit - 1], end] for row in rows]


def encode_sources(tokenizer: PreTrainedTokenizerBase, sources: list[str], text: TextSettings) -> list[list[int]]:
    """Return the token ids of each source as `SourceEncoder` encodes it; raise `InputError` as it does."""
    return SourceEncoder(tokenizer, text)(sources)


def messages(source: str, text: TextSettings) -> list[dict[str, str]]:
    """Return the conversation that asks a chat model for the output of a source."""
    asked = {"role": "user", "content": text.instruction.replace(SOURCE, source)}
    return [asked] if text.system is None else [{"role": "system", "content": text.system}, asked]
