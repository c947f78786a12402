"""The reference runtime of encoder-decoders: a `transformers` model, its own forward pass and cache."""

from __future__ import annotations

import torch
from torch import Tensor

from tasks.decoding.decoder import EncoderOutput, Rows
from tasks.decoding.runtimes.cached import CachedDecoder, CacheLayer, ModelRun, select_rows


class TransformersDecoder(CachedDecoder):
    """A `Decoder` over an `AutoModelForSeq2SeqLM`.

    T5's relative position bias depends only on the distance between two tokens of a row, which padding on the left does not
    change. A model with absolute positions runs one row at a time (`choose.open_decoder` wraps it in `PerRowDecoder`).
    """

    @torch.inference_mode()
    def encode(self, sources: Rows) -> EncoderOutput:
        widest = max(map(len, sources))
        ids = torch.tensor([source + [self.pad_token] * (widest - len(source)) for source in sources], device=self.device)
        mask = torch.tensor([[1] * len(source) + [0] * (widest - len(source)) for source in sources], device=self.device)
        return EncoderOutput(self.model.get_encoder()(input_ids=ids, attention_mask=mask).last_hidden_state, mask)

    def start(self, encoder_output: EncoderOutput) -> Rows:
        from transformers import DynamicCache, EncoderDecoderCache

        self._encoder_output = encoder_output
        self._cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        self._width = 0
        self._steps = 0
        self.lengths = [0] * encoder_output.hidden.shape[0]
        return [list(self.start_tokens) for _ in self.lengths]

    def _run(self, ids: Tensor, counts: list[int]) -> ModelRun:
        output = self.model(
            encoder_outputs=(self._encoder_output.hidden,),
            attention_mask=self._encoder_output.mask,
            decoder_input_ids=ids,
            decoder_attention_mask=self._mask(ids.shape[1]),
            past_key_values=self._cache,
            use_cache=True,
        )
        return ModelRun(output.logits)

    def _growing_layers(self) -> list[CacheLayer]:
        layers: list[CacheLayer] = self._cache.self_attention_cache.layers
        return layers

    def _select(self, index: Tensor) -> None:
        super()._select(index)
        select_rows(self._cache.cross_attention_cache.layers, index)
        self._encoder_output = EncoderOutput(self._encoder_output.hidden[index], self._encoder_output.mask[index])
