"""Broken logits stop the run with the model and the step named; masked logits do not."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tasks.decoding.decoder import BrokenLogitsError, require_finite
from tasks.decoding.method import Pair, Request, SamplingSettings
from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.methods.bild import BildSettings
from tasks.decoding.methods.speculative import SpeculativeSettings
from tasks.decoding.registry import decode
from tasks.decoding.runtimes.reference import TransformersDecoder
from tests.toys import END, Predict, Prefix, Toys, prefix_pair, says, toy_sources, toy_t5

TEXT = [2, 3, 4, 5, 6, 7]


def breaks(position: int, values: list[float]) -> Predict:
    """Predicts `TEXT`; at `position` the first logits are replaced by `values`."""
    sound = says(TEXT)

    def predict(source: Prefix, prefix: Prefix) -> Tensor:
        logits = sound(source, prefix).clone()
        if len(prefix) - 1 == position:
            logits[: len(values)] = torch.tensor(values)
        return logits

    return predict


BROKEN = {"NaN": [math.nan], "+infinity": [math.inf], "no finite logit": [-math.inf] * 8}


@pytest.mark.parametrize("values", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize(
    ("method", "settings", "small", "large", "model", "step"),
    [
        ("vanilla_large", VanillaSettings(), 9, 2, "large", 3),
        ("vanilla_small", VanillaSettings(), 4, 9, "small", 5),
        ("speculative", SpeculativeSettings(draft_length=2), 9, 4, "large", 2),
        ("speculative", SpeculativeSettings(draft_length=2), 4, 9, "small", 4),
        ("bild", BildSettings(max_draft=3), 9, 2, "large", 1),
        ("bild", BildSettings(max_draft=3), 0, 9, "small", 1),
    ],
)
def test_model_and_step_are_named(
    method: str, settings: Any, small: int, large: int, model: str, step: int, values: list[float]
) -> None:
    pair = prefix_pair(breaks(small, values), breaks(large, values))
    with pytest.raises(BrokenLogitsError, match=rf"the {model} model .* at step {step}$"):
        decode(method, settings, pair, [[5, END]], Request(10))


@pytest.mark.parametrize("sampling", [SamplingSettings(), SamplingSettings(temperature=1.0, top_k=3, top_p=0.9)])
@pytest.mark.parametrize("values", [[-math.inf], [-math.inf] * 3])
def test_a_mask_is_legal(values: list[float], sampling: SamplingSettings) -> None:
    """At position 2, where the text has token 4, some of the tokens before it are masked."""
    pair = prefix_pair(breaks(2, values), breaks(2, values))
    for method, settings in (("speculative", SpeculativeSettings(draft_length=3)), ("bild", BildSettings())):
        [generation] = decode(method, settings, pair, [[5, END]], Request(10, sampling))
        assert generation.tokens == [*TEXT, END]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_one_broken_row_is_enough(value: float) -> None:
    logits = torch.zeros(3, 2, 5)
    require_finite(logits, "large", 1)
    logits[2, 1, 4] = value
    with pytest.raises(BrokenLogitsError):
        require_finite(logits, "large", 1)


def test_broken_weights_are_noticed(toys: Toys) -> None:
    broken = toy_t5(3, 1, 1)
    with torch.no_grad():
        broken.lm_head.weight[7] = math.nan
    pair = Pair(TransformersDecoder(broken, "small"), toys.cached.large)
    with pytest.raises(BrokenLogitsError, match=r"the small model .* at step 1$"):
        decode("bild", BildSettings(), pair, toy_sources(2), Request(5))
