"""The runtime of FSMT, whose own forward pass does not hide later tokens from earlier ones once it keeps a cache."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from tasks.decoding.runtimes.reference import TransformersDecoder


class FsmtDecoder(TransformersDecoder):
    """A `Decoder` over an `FSMTForConditionalGeneration`, one row at a time.

    transformers runs FSMT with a cache one token a run, and leaves the causal mask out; a run over a draft needs it.
    """

    def _run(self, ids: Tensor, counts: list[int]) -> Any:
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
        return SimpleNamespace(logits=output.last_hidden_state)

    def _watch(self, states: list[Tensor]) -> Any:
        head = self.model.model.decoder.output_projection
        return head.register_forward_pre_hook(lambda _module, inputs: states.append(inputs[0]))
