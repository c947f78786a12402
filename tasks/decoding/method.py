"""The types of the method registry: the pair of models, the request, a runnable method and its specification."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tasks.decoding.decoder import Decoder, Rows
from tasks.decoding.drafters.suffixes import SuffixNode, outputs_tree
from tasks.decoding.drafters.tables import NgramTables, count_ngrams
from tasks.decoding.generation import Generation
from tasks.decoding.randomness import TokenSource
from tasks.decoding.settings import SamplingSettings


@dataclass(frozen=True)
class Pair:
    """A small model and the large one that it drafts for."""

    small: Decoder
    large: Decoder
    calibration: Rows = dataclasses.field(default_factory=list)
    """Target tokens of the calibration set, the end token last in each, which drafters without a model read."""
    shares_encoder: bool = False
    """Whether both models have the same encoder, which then runs once."""
    cost_ratios: dict[str, float] = dataclasses.field(default_factory=dict, compare=False)
    """Time of one run of a drafter, by name, over one of the large model, where that was measured (SD, Definition 3.7)."""

    @functools.cached_property
    def tables(self) -> NgramTables:
        """The tables, counted on first use; raises `InputError` where there is no calibration set."""
        return count_ngrams(self.calibration, self.large.vocabulary, self.large.specials)

    @functools.cached_property
    def outputs_tree(self) -> SuffixNode:
        """The suffix tree over the calibration set's texts; raises `InputError` as `tables` does."""
        return outputs_tree(self.calibration, self.large.vocabulary, self.large.specials, self.large.end_tokens)


@dataclass(frozen=True)
class Request:
    """The parameters of a decoding run that are not settings of the method."""

    max_new_tokens: int
    sampling: SamplingSettings = dataclasses.field(default_factory=SamplingSettings)
    seed: int = 0

    def at(self, temperature: float) -> Request:
        """The same request at another temperature."""
        return dataclasses.replace(self, sampling=dataclasses.replace(self.sampling, temperature=temperature))


class DecodingMethod(Protocol):
    """A method ready to run: the speculative loop, a composition of several, or a beam search."""

    def run(self, sources: Rows, examples: Sequence[int], limit: int) -> list[Generation]:
        """Return one generation a source, each of at most `limit` tokens; `examples` key the random draws."""
        ...


MethodBuilder = Callable[[Pair, Any, SamplingSettings, TokenSource], DecodingMethod]


@dataclass(frozen=True)
class MethodSpec:
    """One method of the registry."""

    name: str
    paper: str
    """The paper, and the algorithm, section or equation in it."""
    lossless: bool
    """Whether its output is the large model's own: token for token when greedy, in distribution when sampling."""
    build: MethodBuilder
    """Raises `InputError` where the pair or the way of sampling does not fit the method."""
    architectures: tuple[str, ...] = ("encoder-decoder", "decoder-only")
    """The kinds of models that it takes."""
