"""The text of a small model with another tokenizer as drafter (Timor et al., 2025, arXiv 2502.05202: SLEM)."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.decoding.decoder import Decoder, EncoderOutput, Rows
from tasks.decoding.drafters.deterministic import DeterministicDrafter
from tasks.decoding.settings import SamplingSettings
from tasks.decoding.translation import TranslatedDecoder
from tasks.errors import InputError


class RetokenizedDrafter(DeterministicDrafter):
    """Lets the small model write in its own tokens, all of them, and tokenises their text as the large model does.

    String-level exact match: what the large model writes is kept as long as it is the proposed tokens, which is to accept a
    proposed x with probability p(x). Readings taken: the small model takes its likeliest tokens also when sampling, since the
    proposal has no probability that could make up for a draw; and it writes as many of its tokens as may be drafted, of whose
    text as many of the large model's are proposed.
    """

    def __init__(self, small: TranslatedDecoder, target: Decoder, sampling: SamplingSettings) -> None:
        super().__init__(target, sampling)
        self.small = small

    def start(self, encoder_output: EncoderOutput, sources: Rows) -> None:
        super().start(encoder_output, sources)
        self.small.start(self.small.encode(sources))

    def proposals(self, tokens: Rows, examples: Sequence[int], budgets: Sequence[int]) -> tuple[Rows, list[int]]:
        written = self._write(tokens, budgets)
        drafted: Rows = []
        for text, new, budget in zip(tokens, written, budgets, strict=True):
            found = self.small.translation.retokenize(text, new)[:budget] if new else []
            ends = (place for place, token in enumerate(found) if token in self.end_tokens)
            drafted.append(found[: next(ends, len(found)) + 1])
        return drafted, [len(new) for new in written]

    def _write(self, tokens: Rows, budgets: Sequence[int]) -> Rows:
        """Return what the small model writes behind each row, in its own tokens, and leave its cache without that."""
        small, inner = self.small, self.small.inner
        written: Rows = [[] for _ in tokens]
        going = [budget > 0 for budget in budgets]
        fed = [text[cached:] if on else [] for text, cached, on in zip(tokens, small.lengths, going, strict=True)]
        step = small.feed(fed).step if any(going) else None
        while step is not None and any(going):
            likeliest = step.last([1] * len(tokens))[:, 0].argmax(-1).tolist()
            for row, token in enumerate(likeliest):
                if going[row]:
                    written[row].append(token)
                    going[row] = token not in inner.end_tokens and len(written[row]) < budgets[row]
            if any(going):
                step = inner.forward([new[-1:] if on else [] for new, on in zip(written, going, strict=True)])
        small.rewind(small.lengths)
        return written

    def reorder(self, rows: Sequence[int]) -> None:
        self.small.reorder(rows)


def retokenized_drafter(small: Decoder, large: Decoder, sampling: SamplingSettings) -> RetokenizedDrafter:
    """Return the drafter of a small model with a tokenizer of its own.

    Raises:
        InputError: both models have one tokenizer.
    """
    if not isinstance(small, TranslatedDecoder):
        raise InputError(
            "the drafter retokenized is for a small model with a tokenizer of its own, but both models have one; take the "
            "drafter small"
        )
    return RetokenizedDrafter(small, large, sampling)
