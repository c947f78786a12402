"""Labels for a judge without annotation: which of the drafter's tokens cost quality (after AutoJudge, arXiv 2504.20039).

A token of the drafter's that is not the large model's likeliest is a mismatch. It is put in the place of the large model's
token, the large model continues behind it, and the whole text is scored against the corpus' references, as the sweep scores
outputs. The token is good if the text scores no worse than the large model's own text, up to a tolerance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from tasks.console import progress
from tasks.decoding.decoder import Decoder, Rows
from tasks.decoding.method import Pair, Request
from tasks.decoding.registry import decode
from tasks.decoding.settings import VanillaSettings
from tasks.evaluation.quality import sentence_scores
from tasks.training import distributed
from tasks.training.data import TokenDataset
from tasks.training.predictions import target_log_probs

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_BATCH = 64
"""Texts that are decoded side by side, at most."""
_MOST_LOGITS = 2**26
"""Logits of a run, at most, where one text has fewer."""


class Mismatch(NamedTuple):
    """A token that the drafter would put in the place of the large model's."""

    text: int
    """Index of the text."""
    position: int
    """Index of the token in the text, from 0."""
    token: int


class JudgedTokens(NamedTuple):
    """Mismatches of the drafter's, and whether each is good enough."""

    states: Tensor
    """The large model's last hidden state after each: (tokens, width)."""
    good: Tensor
    """bool (tokens,)"""


@dataclass(frozen=True)
class References:
    """What texts are scored against."""

    texts: Sequence[tuple[str, ...]]
    """The references of each source, at least one."""
    metric: str
    """The task's metric."""
    tolerance: float
    """Points that a text may lose by a good token."""


class MismatchLabeller:
    """Finds the mismatches of a drafter along the large model's own texts, and says which are good."""

    def __init__(
        self, drafter: PreTrainedModel, large: Decoder, vocabulary: int, limit: int, tokenizer: PreTrainedTokenizerBase
    ) -> None:
        """Take both models.

        Args:
            drafter: A model of `transformers`, in evaluation mode.
            large: The large model in a runtime.
            vocabulary: Number of ids that both predict over.
            limit: Most tokens of a text, the end token included.
            tokenizer: The tokenizer of both.
        """
        self._drafter, self._large, self._vocabulary = drafter, large, vocabulary
        self._limit, self._tokenizer = limit, tokenizer
        self._alone = Pair(large, large)
        self._size = max(1, min(_BATCH, _MOST_LOGITS // (limit * vocabulary)))

    def label(self, sources: Rows, references: References) -> JudgedTokens:
        """Label every mismatch along the large model's greedy text for each source: one continuation a mismatch."""
        states: list[Tensor] = []
        good: list[bool] = []
        batches = range(0, len(sources), self._size)
        for begin in progress(batches, desc="judge", unit="batch", mininterval=2.0, disable=not distributed.is_main()):
            here = slice(begin, begin + self._size)
            scored = References(references.texts[here], references.metric, references.tolerance)
            some, labels = self._label(sources[here], scored)
            states += some
            good += labels
        if not states:
            return JudgedTokens(torch.zeros(0, 0), torch.zeros(0, dtype=torch.bool))
        return JudgedTokens(torch.cat(states), torch.tensor(good))

    def _label(self, sources: Rows, references: References) -> tuple[list[Tensor], list[bool]]:
        texts = [one.tokens for one in decode("vanilla_large", VanillaSettings(), self._alone, sources, Request(self._limit))]
        own = self._scores(texts, references.texts, references.metric)
        found, states, good = self.mismatches(sources, texts), list[Tensor](), list[bool]()
        for begin in range(0, len(found), self._size):
            some = found[begin : begin + self._size]
            begun = [[*texts[one.text][: one.position], one.token] for one in some]
            changed, after = continued(self._large, [sources[one.text] for one in some], begun, self._limit)
            scores = self._scores(changed, [references.texts[one.text] for one in some], references.metric)
            states.append(after)
            good += [score >= own[one.text] - references.tolerance for one, score in zip(some, scores, strict=True)]
        return states, good

    @torch.no_grad()
    def mismatches(self, sources: Rows, texts: Rows) -> list[Mismatch]:
        """Return where the drafter's likeliest token behind a text's own tokens is another one than the text's."""
        encoder_decoder = self._drafter.config.is_encoder_decoder
        batch = TokenDataset(sources, texts, self._tokenizer.pad_token_id, decoder_only=not encoder_decoder)
        wanted = batch.batch(range(len(texts))).to(self._drafter.device)
        likeliest = iter(target_log_probs(self._drafter, wanted, self._vocabulary).argmax(-1).tolist())
        return [
            Mismatch(index, position, token)
            for index, text in enumerate(texts)
            for position, own in enumerate(text)
            if (token := next(likeliest)) != own
        ]

    def _scores(self, texts: Rows, references: Sequence[tuple[str, ...]], metric: str) -> list[float]:
        return sentence_scores(self._tokenizer.batch_decode(texts, skip_special_tokens=True), references, metric)


@torch.inference_mode()
def continued(decoder: Decoder, sources: Rows, begun: Rows, limit: int) -> tuple[Rows, Tensor]:
    """Continue texts greedily, each behind a beginning of at least one token.

    Args:
        decoder: The model that continues them.
        sources: The source of each.
        begun: The beginning of each; one that ends with an end token stays as it is.
        limit: Most tokens of a text, its beginning included.

    Returns:
        The whole texts, and the model's last hidden state after the beginning of each: (texts, width).
    """
    prompts, texts = decoder.start(decoder.encode(sources)), [list(tokens) for tokens in begun]
    step = decoder.forward([prompt + tokens for prompt, tokens in zip(prompts, begun, strict=True)])
    states = step.last_hidden([1] * len(texts))[:, 0].clone()
    while True:
        likeliest = step.last([1] * len(texts))[:, 0].argmax(-1).tolist()
        going = [text[-1] not in decoder.end_tokens and len(text) < limit for text in texts]
        for text, token, on in zip(texts, likeliest, going, strict=True):
            if on:
                text.append(token)
        if not any(going):
            return texts, states
        step = decoder.forward([text[-1:] if on else [] for text, on in zip(texts, going, strict=True)])
