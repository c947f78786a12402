"""Requests and answers of `/v1/completions` as JSON, in the form that OpenAI's clients send and read."""

from __future__ import annotations

import time
import uuid
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from tasks.decoding.generation import Generation
from tasks.decoding.method import Request, SamplingSettings

_NEUTRAL: dict[str, tuple[object, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "logprobs": (None,),
    "suffix": (None, ""),
    "stop": (None, "", []),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": (None, {}),
}
"""Fields of the protocol that this server does not have, with the values that ask for nothing."""


class CompletionRequest(BaseModel):
    """The body of a request. Temperature 0, greedy, is the default: operating points are measured so."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    prompt: str | list[str]
    max_tokens: int | None = Field(None, ge=2)
    temperature: float = Field(0.0, ge=0.0, le=2.0)
    top_p: float = Field(1.0, gt=0.0, le=1.0)
    top_k: int = Field(0, ge=0)
    seed: int | None = None
    stream: bool = False
    user: str | None = None

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

    def unsupported(self) -> str | None:
        """Return the name of a field that asks for what the server does not have; None where there is none."""
        for name, value in (self.model_extra or {}).items():
            if name == "stream_options":
                continue
            if name not in _NEUTRAL or value not in _NEUTRAL[name]:
                return name
        return None

    def decoding(self, limit: int) -> Request:
        """Return length, sampling and seed; `limit` is the length without `max_tokens`."""
        sampling = SamplingSettings()
        if self.temperature > 0:
            sampling = SamplingSettings(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)
        return Request(limit if self.max_tokens is None else self.max_tokens, sampling, self.seed or 0)


def completion_id() -> str:
    """Return a new name for an answer."""
    return f"cmpl-{uuid.uuid4().hex}"


def choice(index: int, text: str, reason: str | None) -> dict[str, Any]:
    """Return one output, or a piece of one whose `reason` is None."""
    return {"index": index, "text": text, "logprobs": None, "finish_reason": reason}


def answer(name: str, model: str, choices: list[dict[str, Any]], **rest: object) -> dict[str, Any]:
    """Return the body of an answer or of one event of a stream."""
    return {"id": name, "object": "text_completion", "created": int(time.time()), "model": model, "choices": choices, **rest}


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    """Return the counts that the protocol asks for."""
    total = prompt_tokens + completion_tokens
    return {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": total}


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
