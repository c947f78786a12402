"""The small model with the large model's states: it reads, beside each token, the last state before it (EAGLE).

The input at token t is E(t) + W norm(h), with h the large model's last state at the token before t, from which t was predicted
(Li et al., 2024, section 3.1; `models.extras.FeatureProjection`). Behind the last token that the large model has read there is
no such state: a drafted token reads the drafter's own last state in place of it. What stays of a draft is read again with the
large model's states, in the first run of the next draft.

The large model reads the prompt in a run of its own, before anything is drafted; other drafters let it read the prompt and the
first draft in one. Counts leave this run out.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from tasks.decoding.decoder import Decoder, EncoderOutput, Rows, Step
from tasks.decoding.distributions import TokenSource
from tasks.decoding.drafters.base import StepwiseDrafter
from tasks.decoding.method import SamplingSettings
from tasks.errors import InputError


class FeaturesDrafter(StepwiseDrafter):
    """Drafts with the small model, on the large model's states and then on its own."""

    decoder = None
    """None: what runs a model's drafts by itself (the compiled loop, replay) has no states."""

    def __init__(self, small: Decoder, target: Decoder, sampling: SamplingSettings, source: TokenSource) -> None:
        """Take the small model, and the large one that it drafts for.

        Raises:
            ValueError: the small model reads no states.
            InputError: the large model's runtime shows none.
        """
        super().__init__(small.end_token, sampling, source)
        run, read = small.capabilities.forward_with_features, target.capabilities.read_states
        if run is None:
            raise ValueError(f"the {small.name} model reads no states")
        if read is None:
            said = f"the {small.name} model reads states of the {target.name} model, which its runtime does not show"
            raise InputError(f"{said}; set machine.runtime to native or reference")
        self.end_tokens = small.end_tokens
        self._small, self._target, self._run, self._read = small, target, run, read
        self._features: list[Tensor] = []
        """By row, the states before each token that the small model has not read: (tokens, large width)."""
        self._known: list[int] = []
        """By row, tokens before which the large model's states are known; the small model has read no others for good."""

    @torch.inference_mode()
    def start(self, encoder_output: EncoderOutput, sources: Rows) -> None:
        prompts = self._target.start(encoder_output)
        states, self._known = self._read(prompts), [len(prompt) for prompt in prompts]
        # A cache holds all tokens but the last, which the first check reads again.
        self._target.rewind([length - 1 for length in self._known])
        # No state comes before a prompt's first token, and the last token's comes before what is drafted now.
        self._features = [functional.pad(one[:-1], (0, 0, 1, 0)) for one in states]
        self._small.start(self._small.encode(sources))

    @torch.inference_mode()
    def next_logits(self, tokens: Rows, drafted: Rows, going: Sequence[bool]) -> Tensor:
        # 1. Each row that is still drafting is fed what the cache lacks: at first all that stayed, then a token at a time.
        cached = self._small.lengths
        pending = [
            (row + new)[length:] if active else []
            for row, new, length, active in zip(tokens, drafted, cached, going, strict=True)
        ]
        fed = [states[: len(new)] for states, new in zip(self._features, pending, strict=True)]
        step = self._run(pending, fed)
        if step.hidden is None:
            raise RuntimeError(f"the {self._small.name} model's runtime gives no hidden states, which the next token reads")
        # 2. Its own last state is what comes before the token that is drafted now: (1, width).
        for row, new in enumerate(pending):
            if new:
                self._features[row] = step.hidden[row, step.lengths[row] - 1 : step.lengths[row]]
        return step.last([1] * len(tokens))

    @torch.inference_mode()
    def observe(self, tokens: Rows, step: Step, positions: Sequence[int]) -> None:
        if step.hidden is None:
            raise RuntimeError(f"the {self._target.name} model's runtime gives no hidden states, which the drafter reads")
        cached = self._small.lengths
        for index, (row, position) in enumerate(zip(tokens, positions, strict=True)):
            # 1. Where the small model has drafted, it has read all that was known; else that is still to be read.
            unread = self._features[index][: max(0, self._known[index] - cached[index])]
            # 2. The states before the new tokens; the run's column `end - 1` predicted the last of them.
            end, new = min(position + 1, step.lengths[index]), len(row) - self._known[index]
            self._features[index] = torch.cat([unread, step.hidden[index, end - new : end].to(unread)])
            self._known[index] = len(row)
        # 3. What it read with states of its own is forgotten.
        before = [known - len(states) for known, states in zip(self._known, self._features, strict=True)]
        self._small.rewind([min(length, kept) for length, kept in zip(cached, before, strict=True)])

    def reorder(self, rows: Sequence[int]) -> None:
        self._small.reorder(rows)
        self._features = [self._features[row] for row in rows]
        self._known = [self._known[row] for row in rows]
