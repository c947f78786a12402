"""The drafters: `make_drafter` builds the one that a method's settings name (`method.DRAFTERS`)."""

from __future__ import annotations

from collections.abc import Callable

from tasks.decoding.distributions import TokenSource
from tasks.decoding.drafters.base import Drafter, ModelDrafter
from tasks.decoding.drafters.layers import early_layer_drafter, heads_drafter
from tasks.decoding.drafters.look_ups import (
    BigramDrafter,
    CopyDrafter,
    RandomDrafter,
    SuffixDrafter,
    UnigramDrafter,
    outputs_tree_of,
    tables_of,
)
from tasks.decoding.drafters.retokenized import retokenized_drafter
from tasks.decoding.method import Pair, SamplingSettings
from tasks.errors import InputError

Build = Callable[[Pair, SamplingSettings, TokenSource], Drafter]

_BUILDERS: dict[str, Build] = {
    "small": lambda pair, sampling, source: ModelDrafter(pair.small, sampling, source, shares_encoder=pair.shares_encoder),
    "retokenized": lambda pair, sampling, source: retokenized_drafter(pair.small, pair.large, sampling),
    "unigram": lambda pair, sampling, source: UnigramDrafter(tables_of(pair), pair.large, sampling, source),
    "bigram": lambda pair, sampling, source: BigramDrafter(tables_of(pair), pair.large, sampling, source),
    "copy": lambda pair, sampling, source: CopyDrafter(pair.large, sampling),
    "suffix": lambda pair, sampling, source: SuffixDrafter(outputs_tree_of(pair), pair.large, sampling),
    "random": lambda pair, sampling, source: RandomDrafter(pair.large, sampling, source),
    "early_layer": lambda pair, sampling, source: early_layer_drafter(pair.large, sampling, source),
    "heads": lambda pair, sampling, source: heads_drafter(pair.large, sampling, source),
}


def make_drafter(name: str, pair: Pair, sampling: SamplingSettings, source: TokenSource) -> Drafter:
    """Return the drafter called `name`, built on the parts of `pair` that it needs.

    Raises:
        InputError: there is no such drafter, or the pair lacks what it needs.
    """
    if name not in _BUILDERS:
        raise InputError(f"there is no drafter {name!r}; name one of {', '.join(_BUILDERS)}")
    return _BUILDERS[name](pair, sampling, source)
