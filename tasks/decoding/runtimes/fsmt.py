"""The runtime of FSMT, whose own forward pass does not hide later tokens from earlier ones once it keeps a cache."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from tasks.decoding.runtimes.cached import ModelRun
from tasks.decoding.runtimes.reference import TransformersDecoder


class FsmtDecoder(TransformersDecoder):
    """A `Decoder` over an `FSMTForConditionalGeneration`, one row at a time.

    With a cache, transformers runs FSMT one token at a time without the causal mask; a run over a draft needs the mask.
    """

    def _run(self, ids: Tensor, counts: list[int]) -> ModelRun:
        new = ids.shape[1]
        later = torch.full((new, self._width + new), -torch.inf, device=self.device, dtype=self.model.dtype)
        output = self.model.model.decoder(
            ids,
            self._encoder_output.hidden,
            self._encoder_output.mask,
            decoder_padding_mask=None,
            decoder_causal_mask=later.triu(self._width + 1),
            past_key_values=self._cache,
            use_cache=True,
        )
        # FSMT's decoder has the head inside.
        return ModelRun(output.last_hidden_state)

    def _watch(self, states: list[Tensor]) -> RemovableHandle:
        head = self.model.model.decoder.output_projection
        handle: RemovableHandle = head.register_forward_pre_hook(lambda _module, inputs: states.append(inputs[0]))
        return handle
