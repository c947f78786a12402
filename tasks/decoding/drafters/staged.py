"""Staged speculation: the small model's draft is itself drafted and verified (Spector and Ré, arXiv 2308.04623)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tasks.decoding.decoder import Decoder, EncoderOutput, Rows
from tasks.decoding.distributions import PredictionBlock
from tasks.decoding.drafters.base import GuidedModelDrafter
from tasks.decoding.drafters.deterministic import RowwiseDrafter
from tasks.decoding.drafting import Draft, DraftBuilder, empty_predictions
from tasks.decoding.randomness import TokenSource
from tasks.decoding.settings import SamplingSettings
from tasks.decoding.turn import DraftRule


class StagedDrafter(GuidedModelDrafter):
    """Drafts what the small model alone would draft, token for token and with the same q, in fewer of its runs.

    A drafter without a model proposes tokens, the small model predicts behind all of them in one run, and takes its own next
    token at each position, the likeliest or the one that it draws, up to the first that was not proposed. With the small
    model's own random numbers a proposed x is kept with probability q(x), as speculative sampling would keep it, and the
    draft is the very one that the small model would draw. Readings taken: the paper proposes from an N-gram model, which here
    is `proposer`; and its drafts are trees, here they are chains.
    """

    def __init__(
        self,
        proposer: RowwiseDrafter,
        decoder: Decoder,
        sampling: SamplingSettings,
        source: TokenSource,
        *,
        shares_encoder: bool = False,
    ) -> None:
        super().__init__(decoder, sampling, source, shares_encoder=shares_encoder)
        self.proposer = proposer

    def start(self, encoder_output: EncoderOutput, sources: Rows) -> None:
        super().start(encoder_output, sources)
        self.proposer.start(encoder_output, sources)

    def draft(self, tokens: Rows, examples: Sequence[int], budgets: Sequence[int], rule: DraftRule) -> Draft:
        builders = [DraftBuilder(budget, rule, self.end_tokens) for budget in budgets]
        drafted, runs = [builder.tokens for builder in builders], [0] * len(tokens)
        found: list[list[Tensor]] = [[] for _ in tokens]
        while any(builder.going for builder in builders):
            going = [row for row, builder in enumerate(builders) if builder.going]
            known = [len(new) for new in drafted]
            proposed: Rows = [[] for _ in tokens]
            for row in going:
                runs[row] += 1
                # The run also predicts behind the last proposed token.
                if (left := budgets[row] - known[row] - 1) > 0:
                    proposed[row] = self.proposer.propose(row, tokens[row] + drafted[row], examples[row], left)
            logits = self._run(tokens, drafted, proposed, going)
            for offset in range(logits.shape[1]):
                block = PredictionBlock(logits[:, offset : offset + 1], self.sampling)
                checked = [row for row in going if _reaches(builders[row], known[row], proposed[row], offset)]
                if not checked:
                    break
                confidence = self._confidence(block, rule)
                for row, token in zip(checked, self._choose(block, checked, tokens, drafted, examples), strict=True):
                    builders[row].add(token, confidence[row])
                    found[row].append(logits[row, offset])
            self._forget(tokens, drafted)
        return Draft(drafted, self._q(found, drafted), [builder.fallback for builder in builders], runs)

    def _run(self, tokens: Rows, drafted: Rows, proposed: Rows, going: Sequence[int]) -> Tensor:
        """Predict behind each draft and each of its proposed tokens: (rows, longest proposal + 1, vocabulary)."""
        decoder, active = self.small.decoder, set(going)
        pending = [
            (text + new + more)[cached:] if row in active else []
            for row, (text, new, more, cached) in enumerate(zip(tokens, drafted, proposed, decoder.lengths, strict=True))
        ]
        return decoder.forward(pending).last([len(more) + 1 for more in proposed])

    def _forget(self, tokens: Rows, drafted: Rows) -> None:
        """Cut the cache behind the draft: all its tokens but the last one were fed, or proposed and kept."""
        decoder = self.small.decoder
        ends = [len(text) + len(new) - 1 for text, new in zip(tokens, drafted, strict=True)]
        decoder.rewind([min(cached, end) for cached, end in zip(decoder.lengths, ends, strict=True)])

    def _q(self, found: Sequence[Sequence[Tensor]], drafted: Rows) -> PredictionBlock:
        if not any(drafted):
            return empty_predictions(len(drafted))
        some = next(row[0] for row in found if row)
        nothing = some.new_zeros(0, len(some))
        rows = [torch.stack(list(row[: len(new)])) if new else nothing for row, new in zip(found, drafted, strict=True)]
        return PredictionBlock(torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), self.sampling)

    def reorder(self, rows: Sequence[int]) -> None:
        super().reorder(rows)
        self.proposer.reorder(rows)


def _reaches(builder: DraftBuilder, known: int, proposed: list[int], offset: int) -> bool:
    """Return whether a draft takes the prediction at this offset of a run: all tokens before it were proposed and chosen."""
    return builder.going and offset <= len(proposed) and builder.tokens[known:] == proposed[:offset]
