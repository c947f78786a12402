"""Predicts the large model's top tokens along the texts that a drafter will be trained on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from tasks.corpora.example import Example
from tasks.decoding.given_text import TopPredictions
from tasks.errors import InputError
from tasks.models.prompting import encode_sources
from tasks.models.settings import TextSettings
from tasks.models.tokenizers import encode
from tasks.training.data import TokenDataset
from tasks.training.predictions import target_log_probs

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_MOST_LOGITS = 2**26
"""Most logits of one run of the model: 256 MB in float32."""


@dataclass(frozen=True)
class WrittenText:
    """A text as the large model wrote it."""

    tokens: list[int]
    """The tokens that it wrote, the end token last."""
    top: TopPredictions | None
    """Its predictions at each of them; none where they were not recorded."""


class TopLogitsPredictor:
    """Gives the k most likely tokens of a model at each target position of texts as a drafter will read them.

    A text that the model wrote in these very tokens has its recorded predictions. One that the tokenizer splits otherwise is
    run through the `transformers` model again.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        text: TextSettings,
        vocabulary: int,
        kept: int,
        batch_size: int,
    ) -> None:
        """Take the model, its tokenizer and length limits, the number of ids it predicts over, k, and the largest batch.

        Raises:
            InputError: k exceeds the vocabulary.
        """
        if kept > vocabulary:
            raise InputError(f"calibrate.top_logits is {kept}, but the vocabulary has {vocabulary} tokens; lower it")
        self._model, self._tokenizer, self._text = model, tokenizer, text
        self.kept = kept
        self._vocabulary, self._batch_size = vocabulary, batch_size

    @torch.inference_mode()
    def along(self, examples: list[Example], written: Sequence[WrittenText] = ()) -> list[TopPredictions]:
        """Return the predictions along each example.

        Args:
            examples: The texts.
            written: Each of them as the model wrote it, where it did.
        """
        if not examples:
            return []
        texts = self.tokenised(examples)
        known = zip(written, texts.targets, strict=False)
        found = {index: one.top for index, (one, read) in enumerate(known) if one.top is not None and one.tokens == read}
        for indices in self._batches(texts, [index for index in range(len(texts)) if index not in found]):
            batch = texts.batch(indices).to(self._model.device)
            best, tokens = target_log_probs(self._model, batch, self._vocabulary).topk(self.kept)
            lengths = [len(texts.targets[index]) for index in indices]
            rows = (torch.split(numbers.cpu(), lengths) for numbers in (tokens, best))
            found.update(zip(indices, zip(*rows, strict=True), strict=True))
        return [found[index] for index in range(len(examples))]

    def tokenised(self, examples: list[Example]) -> TokenDataset:
        """Return the examples, tokenised exactly as `tasks.training.data.JsonlDataset` reads them from a file."""
        decoder_only = not self._model.config.is_encoder_decoder
        sources = encode_sources(self._tokenizer, [example.source for example in examples], self._text)
        targets = encode(self._tokenizer, [example.references[0] for example in examples], self._text.max_target_tokens)
        if decoder_only:
            targets = [row[1:] if row[0] == self._tokenizer.bos_token_id else row for row in targets]
        return TokenDataset(sources, targets, self._tokenizer.pad_token_id, decoder_only=decoder_only)

    def _batches(self, texts: TokenDataset, wanted: list[int]) -> Iterator[list[int]]:
        """Yield batches of texts of similar length, longest first, each as large as the memory limit allows."""
        lengths = [len(source) + len(target) for source, target in zip(texts.sources, texts.targets, strict=True)]
        order = sorted(wanted, key=lambda index: -lengths[index])
        while order:
            size = min(self._batch_size, max(1, _MOST_LOGITS // (lengths[order[0]] * self._vocabulary)))
            yield order[:size]
            order = order[size:]
