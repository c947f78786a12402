"""The acceptance rate by hand, by enumeration and against whole runs without caches; positions of drafts by hand."""

import dataclasses

import pytest
import torch
from torch import Tensor

from tasks.decoding.decoder import REFERENCE, EncoderOutput, Rows, Runtime
from tasks.decoding.distributions import TokenSource, transform
from tasks.decoding.draft_rule import DraftRule
from tasks.decoding.loop import make_drafter
from tasks.decoding.method import Pair, Request, SamplingSettings
from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.methods.bild import BildSettings
from tasks.decoding.methods.speculative import LenientSettings, SpeculativeSettings
from tasks.decoding.registry import decode
from tasks.errors import InputError
from tasks.evaluation import acceptance
from tasks.evaluation.acceptance import Drafting, agreeing_layers, measure_acceptance, write_texts
from tasks.evaluation.report.summarize import acceptance_by_position
from tasks.evaluation.results.pair import AcceptanceRate
from tasks.evaluation.results.rows import DecodingCounts
from tasks.evaluation.sweep.grid import SweepPoint
from tasks.loaded_pair import draftings
from tests.architectures import models, over_runtimes, pair_of, predictions, whole_rows
from tests.toys import END, START, Predict, Prefix, PrefixDecoder, prefix_pair, random_table, says, toy_sources

GREEDY, SAMPLED = SamplingSettings(), SamplingSettings(temperature=1.0)
COOL = SamplingSettings(temperature=0.8, top_k=3)
"""Draws no padding, which FSMT would mask in a whole run."""
SIX = [2, 3, 4, 5, 6, 7]


def measured(
    pair: Pair, sources: Rows, sampling: SamplingSettings, *, limit: int = 10, batch: int = 4, most: int = 10_000
) -> AcceptanceRate:
    wanted, request = Drafting(), Request(limit, sampling, 3)
    found = measure_acceptance([wanted], pair, sources, request, write_texts(pair, sources, request, batch, most), samples=50)
    return found[wanted]


def fixed(*rows: dict[int, float]) -> Predict:
    """Gives the probabilities of each position in turn."""

    def predict(source: Prefix, prefix: Prefix) -> Tensor:
        given = torch.zeros(8)
        for token, probability in rows[len(prefix) - 1].items():
            given[token] = probability
        return given.log()

    return predict


def test_sampled_acceptance_is_the_overlap_of_two_distributions() -> None:
    """1/4 + 1/8 at the first token whatever is drawn, 1/2 at the second."""
    large = fixed({2: 1 / 2, 3: 1 / 4, 4: 1 / 4}, {END: 1.0})
    small = fixed({2: 1 / 4, 3: 1 / 8, 5: 5 / 8}, {END: 1 / 2, 7: 1 / 2})
    found = measured(prefix_pair(small, large), [[5, END]] * 9, SAMPLED)
    assert found.tokens == 18
    assert found.rate == pytest.approx(7 / 16)
    assert found.interval == pytest.approx((7 / 16, 7 / 16))
    # Of the small model's first distribution 2/7 on 2 and 5/7 on 5 are left; the large one's 3 and 4 are as likely.
    narrow = measured(prefix_pair(small, large), [[5, END]], SamplingSettings(temperature=1.0, top_k=2))
    assert narrow.rate == pytest.approx((2 / 7 + 1 / 2) / 2)


@over_runtimes("t5", "fsmt", "gpt2")
@pytest.mark.parametrize("sampling", [pytest.param(GREEDY, marks=pytest.mark.slow), COOL], ids=["greedy", "sampled"])
def test_caches_do_not_change_acceptance(name: str, runtime: Runtime, sampling: SamplingSettings) -> None:
    """Texts and prompts of unequal length in one batch, compared with one forward pass for each position."""
    pair, sources = pair_of(name, runtime), [*toy_sources(4, seed=1), [7]]
    whole = predictions(name)
    written = decode("vanilla_large", VanillaSettings(), pair, sources, Request(10, sampling, 3))
    # The FSMT model never ends a text.
    assert (len({len(one.tokens) for one in written}) == 1) == (name == "fsmt")
    shares = [
        float(torch.minimum(*(transform(model(tuple(source), prefix), sampling) for model in whole)).sum())
        for source, one in zip(sources, written, strict=True)
        for prefix in ((START, *one.tokens[:end]) for end in range(len(one.tokens)))
    ]
    assert 0.2 < sum(shares) / len(shares) < 0.99
    for batch in (1, 3):
        found = measured(pair, sources, sampling, batch=batch)
        assert found.tokens == len(shares)
        assert found.rate == pytest.approx(sum(shares) / len(shares), rel=1e-4)


@over_runtimes("t5", "gpt2", "gemma2")
def test_the_earliest_layer_that_agrees_is_read_from_whole_runs(name: str, runtime: Runtime) -> None:
    """Norm and head on the hidden states of one run over each whole text, without a cache."""
    pair, sources, (_, model) = pair_of(name, runtime), [*toy_sources(12, seed=1), [7]], models(name)
    texts = write_texts(pair, sources, Request(10, GREEDY, 3), batch=4)
    decoder, norm = {"t5": ("decoder", "final_layer_norm"), "gpt2": ("transformer", "ln_f"), "gemma2": ("model", "norm")}[name]
    expected = [0] * 3
    for source, text in ((sources[index], text) for chosen, own in texts for index, text in zip(chosen, own, strict=True)):
        given = {"input_ids": torch.tensor([source])}
        if name == "t5":
            given["decoder_input_ids"] = torch.tensor([[START, *text[:-1]]])
        else:
            given["input_ids"] = torch.tensor([[*source, *text[:-1]]])
        with torch.inference_mode():
            run = model(**given, output_hidden_states=True)
            states = run.decoder_hidden_states if name == "t5" else run.hidden_states
            # The last state is normed already; no head of these toys is tied, and none scales.
            heads = [model.lm_head(getattr(getattr(model, decoder), norm)(state)) for state in states[1:-1]] + [run.logits]
        agrees = torch.stack([logits[0, -len(text) :].argmax(-1) for logits in heads]) == torch.tensor(text)
        for position in range(len(text)):
            expected[int(agrees[:, position].long().argmax())] += 1
    assert min(expected) > 0
    assert agreeing_layers(pair.large, sources, texts) == expected


def test_a_model_without_layers_has_no_earliest_one() -> None:
    with pytest.raises(InputError, match="needs the layers of a transformers model"):
        agreeing_layers(prefix_pair(says(SIX), says(SIX)).large, [[7]], [])


def test_a_few_positions_at_a_time_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 24 tokens and 4 rows: two."""
    pair, sources = pair_of("t5"), toy_sources(6, seed=1)
    whole = measured(pair, sources, SAMPLED)
    monkeypatch.setattr(acceptance, "_CELLS", 250)
    assert measured(pair, sources, SAMPLED).rate == pytest.approx(whole.rate, rel=1e-5)


@pytest.mark.parametrize(("most", "read"), [(7, 7), (10, 10), (1000, 35)])
def test_it_stops_at_enough_tokens(most: int, read: int) -> None:
    """Texts of seven tokens, two in a batch; the models disagree only on the sixth token."""
    found = measured(prefix_pair(says([*SIX[:5], 2]), says(SIX)), [[5, END]] * 5, GREEDY, batch=2, most=most)
    whole, rest = divmod(read, 7)
    assert found.tokens == read
    assert found.rate == pytest.approx((6 * whole + min(rest, 5) + max(rest - 6, 0)) / read)


def test_the_interval_is_over_examples() -> None:
    """Texts that are all agreed on and texts of which nothing is: their tokens are far from independent."""

    def sometimes(source: Prefix, prefix: Prefix) -> Tensor:
        return says(SIX if source[0] % 2 else [7, *SIX])(source, prefix)

    found = measured(prefix_pair(sometimes, says(SIX)), [[index + 2, END] for index in range(40)], GREEDY)
    low, high = found.interval
    assert found.rate == 0.5
    # The standard error of a half by 40 draws is 0.079; by 280 it would be 0.03.
    assert 0.2 < high - low < 0.4


def test_a_shared_encoder_runs_once() -> None:
    class Headless(PrefixDecoder):
        def encode(self, sources: Rows) -> EncoderOutput:
            raise AssertionError("the small model has no encoder of its own")

    small, large = (random_table(name, agreement=0.7, sharpness=2.0) for name in ("small", "large"))
    shared = Pair(Headless(small, "small"), PrefixDecoder(large, "large"), shares_encoder=True)
    assert measured(shared, toy_sources(5), SAMPLED) == measured(prefix_pair(small, large), toy_sources(5), SAMPLED)


CALIBRATION = [[2, 3, 4, END], [2, 3, 5, 6, END], [3, 4, 5, 6, 3, END]]


def measured_of(pair: Pair, sources: Rows, sampling: SamplingSettings, *wanted: Drafting, batch: int = 4) -> list[float]:
    pair, request = dataclasses.replace(pair, calibration=CALIBRATION), Request(10, sampling, 3)
    found = measure_acceptance(wanted, pair, sources, request, write_texts(pair, sources, request, batch), samples=50)
    assert list(found) == list(wanted)
    return [one.rate for one in found.values()]


@pytest.mark.parametrize("sampling", [GREEDY, COOL], ids=["greedy", "sampled"])
def test_the_acceptance_of_a_drafter_is_its_overlap_with_the_large_model_at_every_prefix(sampling: SamplingSettings) -> None:
    """Each prefix drafted from anew, by one row at a time; the first layer has a cache in the measurement."""
    names = ("unigram", "bigram", "copy", "suffix", "random", "early_layer")
    pair = dataclasses.replace(pair_of("t5", REFERENCE), calibration=CALIBRATION)
    sources, large = [*toy_sources(4, seed=1), [7]], whole_rows(models("t5")[1])
    written = decode("vanilla_large", VanillaSettings(), pair, sources, Request(10, sampling, 3))
    expected, positions = dict.fromkeys(names, 0.0), sum(len(one.tokens) for one in written)
    for name in names:
        drafter = make_drafter(name, pair, sampling, TokenSource(3))
        for index, (source, one) in enumerate(zip(sources, written, strict=True)):
            for prefix in ([START, *one.tokens[:end]] for end in range(len(one.tokens))):
                drafter.start(pair.large.encode([source]), [source])
                draft = drafter.draft([prefix], [index], [1], DraftRule(window=1))
                if draft.tokens[0]:
                    p = transform(large(tuple(source), tuple(prefix)), sampling)
                    expected[name] += float(torch.minimum(p, draft.q.dist[0, 0]).sum()) / positions
    assert all(0 <= rate < 1 for rate in expected.values()) and sum(map(bool, expected.values())) >= 4
    for batch in (1, 3):
        found = measured_of(pair, sources, sampling, *map(Drafting, names), batch=batch)
        assert found == pytest.approx(list(expected.values()), rel=1e-4)


def test_lenience_accepts_more() -> None:
    """Σ min(p / l, q) over the first token and over the end, where p is certain."""
    large = fixed({2: 1 / 8, 3: 5 / 8, 4: 1 / 4}, {END: 1.0})
    small = fixed({2: 1 / 2, 3: 1 / 4, 5: 1 / 4}, {END: 3 / 5, 7: 2 / 5})
    pair, sources = prefix_pair(small, large), [[5, END]] * 3
    rates = measured_of(pair, sources, SAMPLED, *(Drafting("small", lenience) for lenience in (1.0, 0.5, 0.25)))
    assert rates == pytest.approx([(first + 3 / 5) / 2 for first in (1 / 8 + 1 / 4, 1 / 4 + 1 / 4, 1 / 2 + 1 / 4)])
    # Greedy, the argmax of q at the first position, 2, has a fifth of the probability of p's argmax.
    greedy = measured_of(pair, sources, GREEDY, *(Drafting("small", lenience) for lenience in (1.0, 0.21, 0.19)))
    assert greedy == [1 / 2, 1 / 2, 1.0]


def test_the_acceptance_of_all_that_a_grid_drafts_with_is_measured() -> None:
    grid = [
        SweepPoint("vanilla_large", VanillaSettings()),
        SweepPoint("speculative", SpeculativeSettings()),
        SweepPoint("bild", BildSettings(drafter="copy")),
        SweepPoint("speculative_lenient", LenientSettings(lenience=0.3)),
        SweepPoint("speculative_lenient", LenientSettings(lenience=0.3, drafter="bigram")),
    ]
    others = [Drafting("copy"), Drafting("small", 0.3), Drafting("bigram"), Drafting("bigram", 0.3)]
    assert draftings(grid) == [Drafting(), *others]


@pytest.mark.parametrize(
    ("kept", "positions"),
    [
        ({}, []),
        # Of ten first tokens 7 are accepted, of the six second ones after those 4, and all four third ones after those.
        ({"3/3": 4, "3/1": 2, "2/0": 3, "1/1": 1}, [7 / 10, 4 / 6, 1.0]),
        # No draft came as far as its third token.
        ({"4/1": 5}, [1.0, 0.0]),
        # Two digits: numbers, not letters, are compared.
        ({"10/10": 1, "9/2": 1}, [1.0, 1.0, 0.5] + [1.0] * 7),
    ],
    ids=["nothing drafted", "mixed", "never far", "two digits"],
)
def test_drafts_by_hand(kept: dict[str, int], positions: list[float]) -> None:
    assert acceptance_by_position(DecodingCounts(tokens=0, kept=kept)) == pytest.approx(positions)
