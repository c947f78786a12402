"""What a decoding method is made of: its settings, the pair and the request that it runs on, and the decorator that registers
it.

A method is one function in a module of `tasks/decoding/methods/`, under `@method`; `registry` finds it there. This module and
those load no torch, so that `params.yaml` is checked in a moment: what a builder needs of the loop it imports when it is
called.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from tasks.errors import InputError
from tasks.settings import setting, settings

if TYPE_CHECKING:
    from tasks.decoding.decoder import Decoder, Rows
    from tasks.decoding.distributions import TokenSource
    from tasks.decoding.generation import Generation

T = TypeVar("T")
DRAFTERS = {
    "small": "the small model's own next tokens (Leviathan et al., 2023; Kim et al., 2023)",
    "unigram": "tokens by their frequency in the calibration set (Leviathan et al., 2023, section 3.6)",
    "bigram": "tokens by their frequency after the last one in the calibration set (Leviathan et al., 2023, section 3.6)",
    "copy": "what followed the last tokens earlier in source or text (Leviathan et al., 2023, section 3.6: prompt look-up)",
    "suffix": "what most often followed the last tokens, in calibration set or text (Oliaro et al., 2024: SuffixDecoding)",
    "random": "ordinary tokens, each as likely as another (Leviathan et al., 2023, section 3.6)",
    "early_layer": "the large model's own first layers (Kim et al., 2023, sections 4.4 and 7.2.1)",
    "heads": "heads trained on the large model's last state (Stern et al., 2018: blockwise parallel decoding)",
}
"""What each drafter proposes, and the paper; `loop.make_drafter` builds them."""
OF_LARGE = ("early_layer", "heads")
"""The drafters that run layers or heads of the large model."""
LOOK_UPS = ("unigram", "bigram", "copy", "suffix", "random")
"""The drafters that run no model, whose cost ratio c is taken as 0 (SD, section 3.6)."""
CALIBRATED = ("unigram", "bigram", "suffix")
"""The drafters that read the calibration set."""
COLDEST = 1e-38
"""The lowest temperature above greedy that float32 tells from 0."""


@settings
class SamplingSettings:
    """How tokens are chosen from a model's softmax: the transform from *scores* to *dist*."""

    temperature: float = setting("Softmax temperature; 0 is greedy.", default=0.0, ge=0, le=1000)
    top_k: int = setting("Keep the k most probable tokens; 0 keeps all.", default=0, ge=0)
    top_p: float = setting("Keep the smallest set of tokens with at least this probability.", default=1.0, ge=1e-6, le=1)

    def validate(self) -> None:
        if 0 < self.temperature < COLDEST:
            fix = "set it to 0, which is greedy"
            raise ValueError(f"temperature is {self.temperature}, which float32 does not tell from 0; {fix}")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


GREEDY = SamplingSettings()


@settings
class DraftingSettings:
    """The settings of every method that drafts."""

    drafter: str = setting(
        "What proposes tokens: the small model, n-gram tables of the calibration set, copies from the context, "
        "suffix trees of both, random tokens, the large model's own first layers, or heads trained on it.",
        default="small",
        choices=tuple(DRAFTERS),
    )


@dataclass(frozen=True)
class Pair:
    """A small model and the large one that it drafts for."""

    small: Decoder
    large: Decoder
    calibration: Rows = field(default_factory=list)
    """Target tokens of the calibration set, the end token last in each, which drafters without a model read."""
    shares_encoder: bool = False
    """Whether both models have the same encoder, which then runs once."""
    derived: dict[str, Any] = field(default_factory=dict, init=False, compare=False, repr=False)
    """What drafters made of the calibration set, by name, so that it is made once."""

    def derive(self, name: str, make: Callable[[], T]) -> T:
        """Return what `make` gives, made once for this pair under this name."""
        if name not in self.derived:
            self.derived[name] = make()
        found: T = self.derived[name]
        return found

    @property
    def described(self) -> str:
        """Runtime and number format of the large model, and of the small one where they are others."""
        small, large = (str(getattr(one, "described", type(one).__name__)) for one in (self.small, self.large))
        return large if small == large or type(self.small) is not type(self.large) else f"{large}; drafts {small}"


@dataclass(frozen=True)
class Request:
    """The parameters of a decoding run that are not settings of the method."""

    max_new_tokens: int
    sampling: SamplingSettings = GREEDY
    seed: int = 0
    draws: TokenSource | None = None
    """What tokens are drawn from; none: numbers that the seed keys."""
    drafter: SamplingSettings | None = None
    """How drafted tokens are chosen where that is otherwise; speculative sampling stays exact (SD, 2.2)."""

    @property
    def drafting(self) -> SamplingSettings:
        """How drafted tokens are chosen: greedily where all are."""
        return self.sampling if self.drafter is None or self.sampling.greedy else self.drafter

    @property
    def source(self) -> TokenSource:
        """The random numbers of this run."""
        from tasks.decoding.distributions import TokenSource

        return TokenSource(self.seed) if self.draws is None else self.draws

    def at(self, temperature: float) -> Request:
        """Return the same request at another temperature."""
        return dataclasses.replace(self, sampling=dataclasses.replace(self.sampling, temperature=temperature))


class DecodingMethod(Protocol):
    """A method ready to run: the speculative loop, a composition of several, or a beam search."""

    def run(self, sources: Rows, examples: Sequence[int], limit: int) -> list[Generation]:
        """Return one generation a source, each of at most `limit` tokens; `examples` key the random draws."""


Builder = Callable[[Pair, Any, Request], DecodingMethod]
"""(pair, the method's settings, request) to the method; raises `InputError` where these do not fit it."""


@dataclass(frozen=True)
class Preset:
    """A range of one method's settings; a paper often gives the ends alone, and `source` then says whose the steps are."""

    values: Mapping[str, Sequence[Any]]
    """Setting name to its values; a preset stands for every combination of them."""
    source: str


# Written out rather than computed, since 3 * 0.1 is not 0.3 and a point is identified by its settings.
SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
NATS = (0.0, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0)
"""Denser near 0, where the surprisals and entropies of most tokens lie."""
LONGEST = (10,)
"""At most 10 consecutive small tokens (BiLD, 7.1.2; SpecCascade, E.1)."""
BLOCK = (5,)
"""γ of all comparisons in SpecCascade's tables and main figures (E.1)."""


@dataclass(frozen=True)
class MethodSpec:
    """One method of the registry."""

    name: str
    settings: type
    paper: str
    """The paper, and the algorithm, section or equation in it."""
    build: Builder
    presets: Mapping[str, Preset]
    """Ranges by name; none where the papers give none."""
    lossless: bool = False
    """Whether its output is the large model's own: token for token when greedy, in distribution when sampling."""
    oracle: bool = False
    """Whether it runs both models at every step: it shows what a rule could do, and is never worth deploying."""
    greedy_only: bool = False
    """Whether it draws no tokens, and takes temperature 0 alone."""
    t5_only: bool = False
    """Whether it needs the layers of a T5 or mT5."""
    large_only: bool = False
    """Whether no small model takes part in it."""

    def make(self, settings: object, pair: Pair, request: Request) -> DecodingMethod:
        """Put the parts of the method together; raise `InputError` where the pair or the sampling does not fit it."""
        if self.greedy_only and not request.sampling.greedy:
            raise InputError(f"{self.name} draws no tokens, and the temperature is {request.sampling.temperature}; set it to 0")
        return self.build(pair, settings, request)

    @property
    def architectures(self) -> tuple[str, ...]:
        """The kinds of models that it takes."""
        return ("encoder-decoder",) if self.t5_only else ("encoder-decoder", "decoder-only")


REGISTERED: dict[str, MethodSpec] = {}
"""The methods whose modules were imported; `registry.METHODS` has all."""
_PRESETS: dict[Builder, dict[str, Preset]] = {}


def preset(name: str, source: str, **values: Sequence[Any]) -> Callable[[Builder], Builder]:
    """Give the method below a preset: a setting's values by its name, and the paper or whose choice they are."""

    def add(build: Builder) -> Builder:
        # Decorators apply from the bottom up; the presets keep the order in which they are read.
        _PRESETS[build] = {name: Preset(values, source), **_PRESETS.get(build, {})}
        return build

    return add


def method(name: str, settings: type, paper: str, **kind: bool) -> Callable[[Builder], Builder]:
    """Register the function below as the builder of the method `name`; `kind`: flags of `MethodSpec`, such as `lossless`."""

    def register(build: Builder) -> Builder:
        if name in REGISTERED:
            raise ValueError(f"there are two methods called {name}")
        REGISTERED[name] = MethodSpec(name, settings, paper, build, _PRESETS.get(build, {}), **kind)
        return build

    return register
