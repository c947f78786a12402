"""Toy models for the tests of decoding: tiny T5s, random tables, and a decoder that has no cache."""

import functools
import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tasks.decoding.decoder import Capabilities, EncoderOutput, Rows, Step, require_finite
from tasks.decoding.method import Pair

START, END = 0, 1
VOCABULARY = 24

Prefix = tuple[int, ...]
Predict = Callable[[Prefix, Prefix], Tensor]
"""(source, target prefix, start token included) to the logits of the next token, (vocabulary,)."""


def toy_t5(seed: int, encoder_layers: int, decoder_layers: int, feed_forward: str = "relu") -> Any:
    """An untrained T5 that behaves like a trained one: varied text that ends, likely and unlikely tokens.

    All toys share embeddings and head, which favour two successors of each token; which of the two comes next is left to
    the random layers. So a shallow and a deep toy agree on many tokens, as a drafter and its large model do, not on all.
    """
    from transformers import T5Config, T5ForConditionalGeneration

    shape = {"d_model": 32, "d_ff": 24, "d_kv": 8, "num_heads": 2, "feed_forward_proj": feed_forward}
    depth = {"num_layers": encoder_layers, "num_decoder_layers": decoder_layers}
    tokens = {"vocab_size": VOCABULARY, "pad_token_id": START, "eos_token_id": END, "decoder_start_token_id": START}
    config = T5Config(**shape, **depth, **tokens, tie_word_embeddings=False)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = T5ForConditionalGeneration(config).eval()
        torch.manual_seed(1)
        embeddings = torch.nn.init.orthogonal_(torch.empty(VOCABULARY, 32))
        head = torch.zeros(VOCABULARY, 32)
        for order in (1 + torch.randperm(VOCABULARY - 1) for _ in range(2)):
            head[order.roll(1)] += embeddings[order]
        model.shared.weight.copy_(7 * embeddings)
        model.lm_head.weight = torch.nn.Parameter(1.5 * head)
    return model


def toy_sources(count: int, seed: int = 0) -> Rows:
    """Random sources of 2 to 10 tokens, the end token last."""
    rng = random.Random(seed)
    return [[rng.randrange(2, VOCABULARY) for _ in range(rng.randint(1, 9))] + [END] for _ in range(count)]


@functools.cache
def random_table(name: str, *, agreement: float, sharpness: float, vocabulary: int = 8, end: float = 0.0) -> Predict:
    """Random logits for each prefix, drawn once for all tests; a part `agreement` is common to all tables of one vocabulary.

    `end` is added to the logit of the end token.
    """

    @functools.cache
    def predict(source: Prefix, prefix: Prefix) -> Tensor:
        shared, own = (_noise(f"{key} {source} {prefix}", vocabulary) for key in ("shared", name))
        logits = sharpness * (agreement * shared + (1 - agreement) * own)
        logits[END] += end
        return logits

    return predict


def _noise(key: str, size: int) -> Tensor:
    seed = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big")
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(size)).float()


def says(text: Sequence[int], unsure: Sequence[int] = (), vocabulary: int = 8) -> Predict:
    """Predicts this text, then the end token: almost surely, and with probability 0.19 at the positions in `unsure`."""

    def predict(source: Prefix, prefix: Prefix) -> Tensor:
        position = len(prefix) - 1
        logits = torch.zeros(vocabulary)
        logits[text[position] if position < len(text) else END] = 0.5 if position in unsure else 20.0
        return logits

    return predict


class PrefixDecoder:
    """A `Decoder` without a cache: it stores the tokens and predicts each row from its whole prefix.

    It refuses what a cache could not do: rewinding forward, continuing with other rows than it was started with, and
    run with nothing new in any row.
    """

    end_token = END
    end_tokens = frozenset((END,))
    capabilities = Capabilities()

    def __init__(self, predict: Predict, name: str = "toy") -> None:
        self.predict = predict
        self.name = name
        self.rows: Rows = []
        self.lengths: list[int] = []
        self.runs: list[list[int]] = []
        """The number of new tokens of each row, run by run."""
        self._sources: Rows = []

    @property
    def vocabulary(self) -> int:
        return len(self.predict((END,), (START,)))

    @property
    def specials(self) -> frozenset[int]:
        return frozenset((START, END))

    def encode(self, sources: Rows) -> EncoderOutput:
        width = max(map(len, sources))
        ids = torch.tensor([source + [START] * (width - len(source)) for source in sources])
        mask = torch.tensor([[1] * len(source) + [0] * (width - len(source)) for source in sources])
        return EncoderOutput(ids[..., None], mask)

    def start(self, encoder_output: EncoderOutput) -> Rows:
        counts = encoder_output.mask.sum(1).tolist()
        self._sources = [row[:count, 0].tolist() for row, count in zip(encoder_output.hidden, counts, strict=True)]
        self.runs = []
        self._set_rows([[] for _ in self._sources])
        return [[START] for _ in self._sources]

    def forward(self, tokens: Rows) -> Step:
        counts = [len(row) for row in tokens]
        most = max(counts)
        assert most > 0
        predicted = []
        for source, row, new in zip(self._sources, self.rows, tokens, strict=True):
            text = (*row, *new)
            positions = range(len(row) + 1, len(text) + 1)
            predicted.append([self.predict(tuple(source), text[:position]) for position in positions])
        padding = torch.zeros_like(next(row[0] for row in predicted if row))
        logits = torch.stack([torch.stack(row + [padding] * (most - len(row))) for row in predicted])
        self.runs.append(counts)
        require_finite(logits, self.name, len(self.runs))
        self._set_rows([row + new for row, new in zip(self.rows, tokens, strict=True)])
        return Step(logits, counts)

    def rewind(self, lengths: Sequence[int]) -> None:
        assert all(0 <= kept <= cached for kept, cached in zip(lengths, self.lengths, strict=True))
        self._set_rows([row[:kept] for row, kept in zip(self.rows, lengths, strict=True)])

    def reorder(self, rows: Sequence[int]) -> None:
        self._sources = [self._sources[row] for row in rows]
        self._set_rows([list(self.rows[row]) for row in rows])

    def _set_rows(self, rows: Rows) -> None:
        self.rows = rows
        self.lengths = [len(row) for row in rows]


def prefix_pair(small: Predict, large: Predict) -> Pair:
    """Two decoders without a cache."""
    return Pair(PrefixDecoder(small, "small"), PrefixDecoder(large, "large"))


@dataclass(frozen=True)
class Toys:
    """A shallow and a deep T5, as decoders with a cache and without."""

    small: Any
    large: Any
    cached: Pair
    predicts: tuple[Predict, Predict]
    """Small and large model, predicting from the whole prefix."""

    @property
    def free(self) -> Pair:
        return prefix_pair(*self.predicts)


def kept_weights(decoder: Any) -> dict[int, int]:
    """Bytes of all tensors that a native decoder keeps packed, by their address: both stacks may hold one embedding."""
    stacks = [decoder._packed, *([] if decoder._encoder is None else [decoder._encoder.packed])]
    return {one.data_ptr(): one.nbytes for stack in stacks for one in stack._kept if isinstance(one, torch.Tensor)}
