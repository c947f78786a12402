"""Measures the quality of a model in training: the task's metric on its greedy outputs for held-out sources.

Outputs come from transformers' `generate`, so that a change of `tasks.decoding` does not require training again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from tasks.corpora.example import Example
from tasks.evaluation.quality import check_outputs, value_of
from tasks.evaluation.results.pair import OutputCheck
from tasks.models.prompting import encode_sources
from tasks.models.settings import TextSettings
from tasks.training.data import pad_rows

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_BATCH = 64


class HeldOutQuality:
    """An `Evaluator` of `quality`: the metric of greedy outputs against all references, in points from 0 to 100."""

    def __init__(
        self, examples: Sequence[Example], tokenizer: PreTrainedTokenizerBase, text: TextSettings, metric: str
    ) -> None:
        """Tokenise the held-out text.

        Args:
            examples: Sources with at least one reference each.
            tokenizer: The model's tokenizer.
            text: Length limits of sources and outputs.
            metric: One of `tasks.evaluation.metrics.METRICS`.
        """
        self._tokenizer, self._limit, self._metric = tokenizer, text.max_target_tokens, metric
        sources = encode_sources(tokenizer, [example.source for example in examples], text)
        # Texts of similar length are decoded together, to save padding.
        order = sorted(range(len(sources)), key=lambda index: len(sources[index]))
        self._sources = [sources[index] for index in order]
        self._examples = [examples[index] for index in order]

    def __call__(self, model: PreTrainedModel) -> dict[str, float]:
        """Return `{"quality": …}` of a model, which is left in evaluation mode."""
        references = [example.references for example in self._examples]
        return {"quality": value_of(self._outputs(model), references, self._metric)}

    def check(self, model: PreTrainedModel) -> OutputCheck:
        """Return how the model's outputs compare with outputs that need no model; it is left in evaluation mode."""
        return check_outputs(self._outputs(model), self._examples, self._metric)

    def _outputs(self, model: PreTrainedModel) -> list[str]:
        model.eval()
        outputs: list[str] = []
        for begin in range(0, len(self._sources), _BATCH):
            outputs += self._written(model, self._sources[begin : begin + _BATCH])
        return outputs

    def _written(self, model: PreTrainedModel, sources: list[list[int]]) -> list[str]:
        """Return the greedy output for each source."""
        pad = self._tokenizer.pad_token_id
        # Decoder-only models continue the row, so padding goes on the left; encoders ignore it.
        mask = pad_rows([[1] * len(row) for row in sources], 0).flip(1)
        ids = pad_rows([row[::-1] for row in sources], pad).flip(1)
        tokens = model.generate(
            input_ids=ids.to(model.device),
            attention_mask=mask.to(model.device),
            do_sample=False,
            num_beams=1,
            max_new_tokens=self._limit,
            pad_token_id=pad,
        )
        written: torch.Tensor = tokens if model.config.is_encoder_decoder else tokens[:, ids.shape[1] :]
        texts: list[str] = self._tokenizer.batch_decode(written, skip_special_tokens=True)
        return texts
