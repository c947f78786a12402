"""The protocol of OpenAI's clients: what requests hold, the tokens that a pair reads of them, and the form of answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from tasks.decoding.generation import UNFINISHED, Generation
from tasks.decoding.inference import DecodingPair
from tasks.decoding.method import COLDEST, SamplingSettings
from tasks.decoding.method import Request as DecodingRequest
from tasks.errors import InputError
from tasks.models.prompting import SourceEncoder


class RefusedError(Exception):
    """A request that is answered with 4xx."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        """Take the status, one line for the client, and the field that it is about."""
        super().__init__(message)
        self.status, self.param = status, param


_CHARACTERS = 64
"""Of a prompt for each token that the pair reads: more than any text has."""


def encode_prompts(pair: DecodingPair, prompts: list[str]) -> list[list[int]]:
    """Return the token ids of each prompt.

    Raises:
        RefusedError: one does not fit into `max_source_tokens`; offline it would be cut.
    """
    text = pair.manifest.text
    # Before it is cut into tokens, during which the server answers nobody.
    most = _CHARACTERS * text.max_source_tokens
    if (longest := max(map(len, prompts))) > most:
        raise RefusedError(400, f"a prompt has {longest} characters; at most {most}", "prompt")
    encoder = SourceEncoder(pair.tokenizer, text)
    rows = encoder(prompts)
    for prompt, row in zip(prompts, rows, strict=True):
        if encoder.cut or len(row) == text.max_source_tokens:
            tokens = encoder.whole_length(prompt)
            if tokens > text.max_source_tokens:
                template = " with its chat template" if text.chat_template else ""
                said = f"a prompt has {tokens} tokens{template}; the pair reads at most {text.max_source_tokens}"
                raise RefusedError(400, said, "prompt")
    return rows


def encode_chat(pair: DecodingPair, messages: list[Message]) -> list[list[int]]:
    """Return the token ids of a conversation, as its only row.

    A pair with a chat template reads all messages by it. Another one reads one text, that of the user's only message.

    Raises:
        RefusedError: it does not fit into `max_source_tokens`, or a pair without a template is sent more than one message.
    """
    text = pair.manifest.text
    if not text.chat_template:
        if [message.role for message in messages] != ["user"]:
            said = "this pair reads one text and has no chat template; send one message of the user"
            raise RefusedError(400, said, "messages")
        return encode_prompts(pair, [messages[0].content])
    if (characters := sum(len(message.content) for message in messages)) > _CHARACTERS * text.max_source_tokens:
        raise RefusedError(400, f"the messages have {characters} characters; at most {_CHARACTERS * text.max_source_tokens}")
    try:
        row = SourceEncoder(pair.tokenizer, text).conversation([message.model_dump() for message in messages])
    except InputError as error:
        raise RefusedError(400, str(error), "messages") from None
    if len(row) > text.max_source_tokens:
        said = f"the messages have {len(row)} tokens with the chat template; the pair reads at most {text.max_source_tokens}"
        raise RefusedError(400, said, "messages")
    return [row]


def cut(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """Return a text up to the stop that is whole first, as where it comes in pieces, and whether there is one."""
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    return (text[: min(ends)[1]], True) if ends else (text, False)


class NewText:
    """Gives the text of tokens piece by piece, whole characters only; joined, the pieces are the text up to a stop."""

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: Sequence[str] = ()) -> None:
        """Take what makes a text of tokens, and what ends it."""
        self._decode, self._stops = decode, stops
        self._given = ""
        self.stopped = False
        """Whether a stop has ended the text."""

    def of(self, tokens: Sequence[int]) -> str:
        """Return what these tokens, the first ones of the text, add to what was given."""
        text, self.stopped = cut(self._decode(tokens), self._stops)
        if not self.stopped:
            # The end of a text may be the beginning of a stop.
            begun = [size for stop in self._stops for size in range(1, len(stop)) if text.endswith(stop[:size])]
            text = text[: len(text) - max(begun, default=0)]
        # A later token may still change the end of a text, as the second half of a character does.
        if text.endswith(UNFINISHED) or not text.startswith(self._given):
            return ""
        return self._new(text)

    def rest(self, tokens: Sequence[int]) -> str:
        """Return what is left of the whole text."""
        text, self.stopped = cut(self._decode(tokens), self._stops)
        return self._new(text)

    def _new(self, text: str) -> str:
        piece, self._given = text[len(self._given) :], text
        return piece


_NEUTRAL: dict[str, tuple[object, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "logprobs": (None,),
    "suffix": (None, ""),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": (None, {}),
}
"""Fields of the protocol that this server does not have, with the values that ask for nothing."""


class Asked(BaseModel):
    """What both kinds of requests hold. Temperature 0, greedy, is the default: operating points are measured so."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    max_tokens: int | None = Field(None, ge=2)
    temperature: float = Field(0.0, ge=0.0, le=2.0)
    top_p: float = Field(1.0, ge=1e-6, le=1.0)
    top_k: int = Field(0, ge=0, le=1 << 30)
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool = False
    user: str | None = None

    @property
    def stops(self) -> list[str]:
        """What ends a text and is left out of it."""
        found = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return [text for text in found if text]

    def unsupported(self) -> str | None:
        """Return the name of a field that asks for what the server does not have; None where there is none."""
        asked = [(name, value) for name, value in (self.model_extra or {}).items() if name != "stream_options"]
        return next((name for name, value in asked if value not in _NEUTRAL.get(name, ())), None)

    def decoding(self, limit: int) -> DecodingRequest:
        """Return length, sampling and seed; `limit` is the length without `max_tokens`."""
        sampling = SamplingSettings()
        if self.temperature >= COLDEST:
            sampling = SamplingSettings(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)
        return DecodingRequest(limit if self.max_tokens is None else self.max_tokens, sampling, self.seed or 0)


class CompletionRequest(Asked):
    """The body of a request to `/v1/completions`."""

    prompt: str | list[str]

    @field_validator("prompt")
    @classmethod
    def _no_empty_text(cls, prompt: str | list[str]) -> str | list[str]:
        texts = [prompt] if isinstance(prompt, str) else prompt
        if not texts:
            raise ValueError("there is no text; give one, or a list of some")
        if not all(text.strip() for text in texts):
            raise ValueError("a text is empty; give each prompt some text")
        return prompt

    @property
    def prompts(self) -> list[str]:
        """The texts, one or several."""
        return [self.prompt] if isinstance(self.prompt, str) else self.prompt

    def rows(self, pair: DecodingPair) -> list[list[int]]:
        """Return the token ids of each text; raise as `encode_prompts`."""
        return encode_prompts(pair, self.prompts)


class Message(BaseModel):
    """A message of a chat."""

    role: Literal["system", "user", "assistant"]
    content: str = Field(min_length=1)


class ChatRequest(Asked):
    """The body of a request to `/v1/chat/completions`."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=2)

    @model_validator(mode="after")
    def _newer_name(self) -> Self:
        self.max_tokens = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        return self

    @property
    def prompts(self) -> list[str]:
        """The text of the last message: a chat is one text for the limits."""
        return [self.messages[-1].content]

    def rows(self, pair: DecodingPair) -> list[list[int]]:
        """Return the token ids of the conversation; raise as `encode_chat`."""
        return encode_chat(pair, self.messages)


@dataclass(frozen=True)
class Form:
    """How requests of one route are read and answered."""

    request: type[CompletionRequest | ChatRequest]
    prefix: str
    """Of the number of an answer."""
    whole: str
    piece: str
    """The kind of object that an answer is, and an event of a stream."""

    def choice(self, index: int, text: str, reason: str | None, *, streamed: bool) -> dict[str, Any]:
        """Return one output, or a piece of one whose `reason` is None."""
        said: dict[str, Any] = {"text": text}
        if self.request is ChatRequest:
            said = {"delta" if streamed else "message": {"role": "assistant", "content": text}}
        return {"index": index, **said, "logprobs": None, "finish_reason": reason}


COMPLETION = Form(CompletionRequest, "cmpl-", "text_completion", "text_completion")
CHAT = Form(ChatRequest, "chatcmpl-", "chat.completion", "chat.completion.chunk")


def answer(name: str, kind: str, model: str, choices: list[dict[str, Any]], **rest: object) -> dict[str, Any]:
    """Return the body of an answer or of one event of a stream."""
    return {"id": name, "object": kind, "created": int(time.time()), "model": model, "choices": choices, **rest}


def decoding_facts(generation: Generation, method: str) -> dict[str, Any]:
    """Return how a text was decoded: the method that ran, which drafting may have been left out of, and its counts."""
    counts = generation.counts
    return {
        "method": method,
        "large_calls": counts.large_calls,
        "drafted": counts.drafted,
        "accepted": counts.accepted,
        "proposers": generation.proposers,
    }


def error_body(message: str, kind: str, param: str | None = None) -> dict[str, Any]:
    """Return the body of an error."""
    return {"error": {"message": message, "type": kind, "param": param, "code": None}}
