"""The acceptance rate α, which belongs to the large model and to what drafts for it, whatever the method."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from tasks.decoding.decoder import REFERENCE, Decoder, EncoderOutput, Rows, Step
from tasks.decoding.distributions import PredictionBlock, transform
from tasks.decoding.draft_rule import DraftRule
from tasks.decoding.loop import make_drafter
from tasks.decoding.method import Pair, Request
from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.registry import decode
from tasks.decoding.runtimes.choose import open_decoder
from tasks.errors import InputError
from tasks.evaluation.results.codec import joined
from tasks.evaluation.results.pair import AcceptanceRate
from tasks.evaluation.scoring.statistics import ratio_interval
from tasks.models.layers import decoder_layers, first_layers

_CELLS = 2**24
"""Probabilities of one model in memory at a time: 64 MiB as float32."""
_ONE = DraftRule(window=1)


@dataclass(frozen=True)
class Drafting:
    """What drafts, and how leniently it is accepted."""

    drafter: str = "small"
    """One of `decoding.method.DRAFTERS`."""
    lenience: float = 1.0
    """l of SD, A.5; 1 is speculative sampling."""


LargeTexts = list[tuple[list[int], list[list[int]]]]
"""What the large model writes, batch by batch: the numbers of the sources, and a text for each."""


@torch.inference_mode()
def write_texts(pair: Pair, sources: Rows, request: Request, batch: int, most_tokens: int = 10_000) -> LargeTexts:
    """Texts of the large model, on whose prefixes the acceptance of any drafter is measured.

    Args:
        pair: The large model is used alone.
        sources: Token ids of each source; they are taken in random order until there are enough tokens.
        request: How the large model generates; the seed of the order and of the draws; and the most tokens of a text, the end
            token included.
        batch: Sources in a batch.
        most_tokens: Most tokens in all; the last text is cut there.
    """
    order = random.Random(request.seed).sample(range(len(sources)), len(sources))  # noqa: S311 (an order, not a secret)
    found, left = LargeTexts(), most_tokens
    while left and order:
        chosen, order, texts = order[:batch], order[batch:], list[list[int]]()
        rows = [sources[index] for index in chosen]
        for one in decode("vanilla_large", VanillaSettings(), pair, rows, request, chosen):
            if left:
                texts.append(one.tokens[:left])
                left -= len(texts[-1])
        found.append((chosen[: len(texts)], texts))
    return found


@torch.inference_mode()
def measure_acceptance(
    wanted: Sequence[Drafting], pair: Pair, sources: Rows, request: Request, large_texts: LargeTexts, samples: int = 1000
) -> dict[Drafting, AcceptanceRate]:
    """α = E Σ min(p, q) over prefixes that the large model generates (SD, Corollary 3.6; Table 3 takes 10 000 tokens).

    p and q are the distributions that tokens are drawn from. Greedy, α is the share of positions at which both put the same
    token. With lenience l it is E Σ min(p / l, q) or, greedy, the share of positions where p gives q's top-1 token at least
    l times its highest probability (A.5). A position at which nothing is proposed counts as 0.

    Args:
        wanted: What drafts, and how leniently it is accepted.
        pair: The two models, and what the drafters need.
        sources: Token ids of each source.
        request: The sampling transform, which all predictions go through, and the seed of the bootstrap.
        large_texts: Texts of the large model with this request.
        samples: Bootstrap resamples of the examples, for the interval.

    Raises:
        ValueError: there is no source.
        InputError: the pair lacks what a drafter needs.
    """
    sums: dict[Drafting, list[float]] = {one: [] for one in wanted}
    lengths = [len(text) for _, texts in large_texts for text in texts]
    for chosen, texts in large_texts:
        given = _Texts(pair, [sources[index] for index in chosen], texts, chosen, request)
        for drafting, found in _agreements(given, wanted).items():
            sums[drafting] += found
    rates, tokens = dict[Drafting, AcceptanceRate](), sum(lengths)
    for drafting, kept in sums.items():
        interval = ratio_interval(kept, lengths, samples, request.seed)
        about = {"temperature": request.sampling.temperature, "rate": sum(kept) / tokens, "tokens": tokens}
        rates[drafting] = joined(AcceptanceRate, drafting, interval=interval, **about)
    return rates


@torch.inference_mode()
def agreeing_layers(large: Decoder, sources: Rows, large_texts: LargeTexts) -> list[int]:
    """How many tokens of the large model's greedy texts each decoder layer is the earliest to predict (BiLD-v1, section 2.1).

    A layer predicts by norm and head on its output, along the text as it stands; the last layer has predicted every token. No
    early exit that keeps the text needs fewer layers.

    Args:
        large: The large model.
        sources: Token ids of each source.
        large_texts: Its greedy texts.

    Returns:
        Counts by layer, the first one first.

    Raises:
        InputError: the layers of the model cannot be located.
    """
    model = large.capabilities.transformers_model
    if model is None:
        raise InputError(f"agreeing_layers needs the layers of a transformers model, which the {large.name} one is not")
    # Tokens that no layer so far predicts: bool (rows, positions) of each batch.
    written = [pad_sequence([torch.tensor(text) for text in texts], True, -1) for _, texts in large_texts]
    left, counts = [tokens >= 0 for tokens in written], list[int]()
    for count in range(1, len(decoder_layers(model))):
        early = open_decoder(first_layers(model, count), f"early layers of the {large.name}", large.vocabulary, REFERENCE)
        counts.append(0)
        for tokens, open_tokens, (chosen, texts) in zip(written, left, large_texts, strict=True):
            steps = _predictions(early, early.encode([sources[index] for index in chosen]), texts)
            agrees = open_tokens & (torch.cat([step.logits.argmax(-1).cpu() for step in steps], 1) == tokens)
            counts[-1] += int(agrees.sum())
            open_tokens &= ~agrees
    return [*counts, sum(int(tokens.sum()) for tokens in left)]


@dataclass(frozen=True)
class _Texts:
    """Texts of the large model, whose positions are predicted again."""

    pair: Pair
    sources: Rows
    texts: Rows
    examples: Sequence[int]
    request: Request


_Follow = Callable[[Step, int], Tensor]
"""From the large model's next run along given texts, and its first position, to q there: (rows, positions, vocabulary)."""


def _agreements(given: _Texts, wanted: Sequence[Drafting]) -> dict[Drafting, list[float]]:
    """How often each drafting is accepted, summed over the positions of each text."""
    pair = given.pair
    encoder_output = pair.large.encode(given.sources)
    drafters = {name: _predictions_of(name, given, encoder_output) for name in dict.fromkeys(one.drafter for one in wanted)}
    sums = {one: torch.zeros(len(given.texts), dtype=torch.float64) for one in wanted}
    begin = 0
    for large in _predictions(pair.large, encoder_output, given.texts):
        p = PredictionBlock(large.logits, given.request.sampling)
        real = torch.arange(large.logits.shape[1]) < torch.tensor(large.lengths)[:, None]
        for name, drafter in drafters.items():
            q = drafter(large, begin)
            for one in wanted:
                if one.drafter == name:
                    sums[one] += _accepted(p, q, one.lenience).cpu().masked_fill(~real, 0.0).sum(-1)
        begin += large.logits.shape[1]
    return {one: found.tolist() for one, found in sums.items()}


def _accepted(p: PredictionBlock, q: Tensor, lenience: float) -> Tensor:
    """The probability that what q drafts is accepted, float64 (rows, positions)."""
    if lenience == 1:
        kept = torch.minimum(p.dist, q)
    elif p.sampling.greedy:
        kept = q.masked_fill(p.scores < lenience * p.top[..., None], 0.0)
    else:
        kept = torch.minimum(p.dist / lenience, q)
    return kept.sum(-1, dtype=torch.float64)


def _predictions_of(name: str, given: _Texts, encoder_output: EncoderOutput) -> _Follow:
    """What the drafter called `name` predicts; the small model reads as many positions in a run as the large one."""
    pair, sampling = given.pair, given.request.drafting
    if name == "small":
        encoded = encoder_output if pair.shares_encoder else pair.small.encode(given.sources)
        steps = _predictions(pair.small, encoded, given.texts)
        return lambda _large, _begin: transform(next(steps).logits, sampling)
    drafter = make_drafter(name, pair, sampling, given.request.source)
    drafter.start(encoder_output, given.sources)
    prompts, rows = pair.large.start(encoder_output), len(given.texts)

    def prefixes(length: int) -> Rows:
        return [[*prompt, *text[:length]] for prompt, text in zip(prompts, given.texts, strict=True)]

    def follow(large: Step, begin: int) -> Tensor:
        found = torch.zeros_like(large.logits, dtype=torch.float32)
        for offset, position in enumerate(range(begin, begin + large.logits.shape[1])):
            # 1. Any other drafter drafts one token behind each prefix; rows for which nothing is proposed stay 0.
            budgets = [int(position < len(text)) for text in given.texts]
            draft = drafter.draft(prefixes(position), given.examples, budgets, _ONE)
            proposed = [row for row, tokens in enumerate(draft.tokens) if tokens]
            if proposed:
                found[proposed, offset] = draft.q.dist[proposed, 0].to(found)
            # 2. It sees the large model's prediction there before the next.
            here = slice(offset, offset + 1)
            hidden = None if large.hidden is None else large.hidden[:, here]
            drafter.observe(prefixes(position + 1), Step(large.logits[:, here], [1] * rows, hidden), [0] * rows)
        return found

    return follow


def _predictions(decoder: Decoder, encoder_output: EncoderOutput, texts: Rows) -> Iterator[Step]:
    """A model's predictions at each token of given texts, a few positions at a time."""
    starts = decoder.start(encoder_output)
    if max(map(len, starts)) > 1:
        # A run of its own, so that each position of the later runs predicts a token of a text.
        decoder.forward([start[:-1] for start in starts])
    fed = [[start[-1], *text[:-1]] for start, text in zip(starts, texts, strict=True)]
    size = max(1, _CELLS // (len(texts) * decoder.vocabulary))
    for begin in range(0, max(map(len, fed)), size):
        yield decoder.forward([row[begin : begin + size] for row in fed])
