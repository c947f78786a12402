"""Assisted generation of `transformers`, with every call of the large model recorded.

The models are opened by `from_pretrained` alone, as a user of that library opens them. Whatever of a pair only this project
reads, such as a draft vocabulary, therefore has no effect here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tasks.decoding.generation import Generation
from tasks.decoding.pair_folder import DRAFTER, LARGE
from tasks.models.tokenizers import load_from
from tasks.verify.comparison import ACCEPTED_SHARE
from tasks.verify.counting import count_drafts

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel


class TransformersEngine:
    """A pair in `transformers`: float32 on the CPU, greedy, a constant number of drafted tokens."""

    name = "transformers"
    tolerance = 0.02
    """Greatest difference of the accepted share at which a certificate holds. Equal tokens give equal counts; the rest covers
    texts that split where two logits are equal but for rounding."""
    measure = ACCEPTED_SHARE
    drafts_on_prompt = True

    def __init__(self, folder: Path, draft_length: int) -> None:
        """Open the two models of a pair folder.

        Raises:
            InputError: there is no loadable model.
        """
        self._large, self._drafter = (_plain_model(folder / name) for name in (LARGE, DRAFTER))
        draft_constantly(self._drafter.generation_config, draft_length)

    @property
    def version(self) -> str:
        """The library's version."""
        import transformers

        return str(transformers.__version__)

    @torch.inference_mode()
    def decode(self, source: list[int], limit: int) -> Generation:
        """Decode one source; the counts follow the definitions of `tasks.decoding`, and no proposers are given.

        Args:
            source: Token ids.
            limit: Most new tokens, the end token included.
        """
        ids = torch.tensor([source])
        prompt = 1 if self._large.config.is_encoder_decoder else len(source)
        with _recorded(self._large) as calls:
            output = self._large.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                **assisting_masks(self._large),
                max_new_tokens=limit,
                do_sample=False,
                num_beams=1,
                pad_token_id=_pad(self._large),
                assistant_model=self._drafter,
            )
        tokens = output[0, prompt:].tolist()
        return Generation(tokens, "", count_drafts(calls, prompt, tokens))


def assisting_masks(large: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Return the arguments of `generate` without which assisted generation drafts worse than the drafter can.

    From the second draft on, the drafter of an encoder-decoder would read the whole text once more behind what its cache holds
    of it: `_prefill` of transformers 5.23 leaves out the cached part only where a mask is as long as the text.
    """
    return {"decoder_attention_mask": torch.ones(1, 1, dtype=torch.long)} if large.config.is_encoder_decoder else {}


def draft_constantly(settings: GenerationConfig, draft_length: int) -> None:
    """Make the drafter of this configuration draft `draft_length` tokens at a time, however unsure it is.

    `generate` reads these three values from the drafter's configuration and ignores them among its own arguments.
    """
    settings.num_assistant_tokens = draft_length
    settings.num_assistant_tokens_schedule = "constant"
    settings.assistant_confidence_threshold = 0.0


def _plain_model(folder: Path) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

    config = load_from(AutoConfig.from_pretrained, folder, "model")
    kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    return load_from(kind.from_pretrained, folder, "model", dtype=torch.float32, use_safetensors=True).eval()


def _pad(model: PreTrainedModel) -> int:
    """The padding token; of a model without one its end token, which is never read here, since no text is padded."""
    settings = model.generation_config
    ends = settings.eos_token_id
    own = settings.pad_token_id
    return int(own if own is not None else ends[0] if isinstance(ends, list) else ends)


@contextmanager
def _recorded(model: PreTrainedModel) -> Iterator[list[list[int]]]:
    """Give the token ids that each call of the model's decoder reads, as the calls happen."""
    calls: list[list[int]] = []
    name = "decoder_input_ids" if model.config.is_encoder_decoder else "input_ids"

    def note(_: object, __: object, arguments: dict[str, Any]) -> None:
        calls.append(arguments[name][0].tolist())

    hook = model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield calls
    finally:
        hook.remove()
