"""Builds the drafter that a method's settings name."""

from __future__ import annotations

from collections.abc import Callable

from tasks.decoding.drafters.base import ModelDrafter
from tasks.decoding.drafters.copying import CopyDrafter
from tasks.decoding.drafters.early_layer import early_layer_drafter
from tasks.decoding.drafters.heads import heads_drafter
from tasks.decoding.drafters.random_tokens import RandomDrafter
from tasks.decoding.drafters.retokenized import retokenized_drafter
from tasks.decoding.drafters.suffixes import SuffixDrafter
from tasks.decoding.drafters.tables import BigramDrafter, UnigramDrafter
from tasks.decoding.drafting import Drafter
from tasks.decoding.method import Pair
from tasks.decoding.randomness import TokenSource
from tasks.decoding.settings import SamplingSettings
from tasks.errors import InputError

Build = Callable[[Pair, SamplingSettings, TokenSource], Drafter]

_BUILDERS: dict[str, Build] = {
    "small": lambda pair, sampling, source: ModelDrafter(pair.small, sampling, source, shares_encoder=pair.shares_encoder),
    "retokenized": lambda pair, sampling, source: retokenized_drafter(pair.small, pair.large, sampling),
    "unigram": lambda pair, sampling, source: UnigramDrafter(pair.tables, pair.large, sampling, source),
    "bigram": lambda pair, sampling, source: BigramDrafter(pair.tables, pair.large, sampling, source),
    "copy": lambda pair, sampling, source: CopyDrafter(pair.large, sampling),
    "suffix": lambda pair, sampling, source: SuffixDrafter(pair.outputs_tree, pair.large, sampling),
    "random": lambda pair, sampling, source: RandomDrafter(pair.large, sampling, source),
    "early_layer": lambda pair, sampling, source: early_layer_drafter(pair.large, sampling, source),
    "heads": lambda pair, sampling, source: heads_drafter(pair.large, sampling, source),
}


def make_drafter(name: str, pair: Pair, sampling: SamplingSettings, source: TokenSource) -> Drafter:
    """Return the drafter called `name` (one of `settings.DRAFTERS`), built on the parts of `pair` that it needs.

    Raises:
        InputError: there is no such drafter, or the pair lacks what it needs.
    """
    if name not in _BUILDERS:
        raise InputError(f"there is no drafter {name!r}; name one of {', '.join(_BUILDERS)}")
    return _BUILDERS[name](pair, sampling, source)
