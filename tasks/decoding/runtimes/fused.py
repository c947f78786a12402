"""The GPU runtime of T5, Llama and GPT-2 in PyTorch: few operations on static caches, recorded as CUDA graphs."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from tasks.decoding.decoder import (
    BrokenLogitsError,
    Capabilities,
    CheckedDraft,
    Continuation,
    EncoderOutput,
    GreedyAcceptance,
    Rows,
    Step,
    StopRule,
)
from tasks.decoding.runtimes.blueprint import Blueprint
from tasks.decoding.runtimes.cuda_graphs import GraphCache, GraphKey, GraphRecorder, rounded_positions
from tasks.decoding.runtimes.fused_cache import StaticKVCache, assign_slots
from tasks.decoding.runtimes.fused_draft_check import DraftChecker
from tasks.decoding.runtimes.fused_encoder import FusedEncoder, stage_rows
from tasks.decoding.runtimes.fused_greedy_loop import GreedyLoop
from tasks.decoding.runtimes.fused_stack import FusedStack, WrapBlock
from tasks.decoding.runtimes.fused_step import StepOutput, SyncPolicy
from tasks.decoding.runtimes.loaded_model import LoadedModel, token_guarantee
from tasks.decoding.runtimes.prompts import encode_prompts, skipped_columns

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_LONGEST = 16
"""New tokens of a row up to which a run is recorded as a graph; longer runs, such as prompts, keep a GPU busy anyway."""

Result = TypeVar("Result")


class FusedDecoder(LoadedModel):
    """A `Decoder` whose rows are slots of preallocated caches: a rewind sets a length, and dropping a row shortens a list.

    If runs are recorded, slots, new tokens and positions are rounded up, so that a few graphs serve all runs.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        blueprint: Blueprint,
        name: str,
        vocabulary: int | None = None,
        *,
        recorder: GraphRecorder | None = None,
        sync_policy: SyncPolicy | None = None,
    ) -> None:
        """Take a model, its blueprint, what records runs (none: nothing is recorded), and when the host reads tokens."""
        super().__init__(model, name, vocabulary)
        self.described = self.described.replace("reference", "fused")
        dtype = model.dtype
        self._stack = FusedStack(blueprint.decoder, dtype, self.vocabulary)
        self._encoder = None
        if blueprint.encoder is not None:
            self._encoder = FusedEncoder(FusedStack(blueprint.encoder, dtype, self.vocabulary), self.device, recorder)
        self._kv_cache = StaticKVCache(self._stack, self.device, dtype)
        self._graphs = GraphCache(recorder)
        self.sync_policy = SyncPolicy() if sync_policy is None else sync_policy
        self._greedy_loop, self._draft_checker = GreedyLoop(self), DraftChecker(self)
        self._known = int(blueprint.decoder.embedding.shape[0])
        self._width = 0
        self._slot_mapping: list[int] = []
        self._by_row: Tensor | None = None
        self._prompts: list[int] = []
        self._source_length = 0
        self._steps = 0

    @torch.inference_mode()
    def encode(self, sources: Rows) -> EncoderOutput:
        """Run the encoder; without one, keep the prompts."""
        self._require_known(sources)
        if self._encoder is None:
            return encode_prompts(sources, self.name, self.device)
        return self._encoder.encode(sources)

    @torch.inference_mode()
    def start(self, encoder_output: EncoderOutput) -> Rows:
        if encoder_output.prompts is None and self._encoder is None:
            raise ValueError(f"the {self.name} model is decoder-only; it cannot start from the output of an encoder")
        rows = encoder_output.hidden.shape[0]
        self.lengths = [0] * rows
        self._width = self._graphs.padded_rows(rows)
        self._set_slots(list(range(rows)))
        self._steps = 0
        self._fit(self._width, 1)
        if encoder_output.prompts is not None:
            self._prompts = [len(prompt) for prompt in encoder_output.prompts]
            return [list(prompt) for prompt in encoder_output.prompts]
        self._prompts = [1] * rows
        self._source_length = self._graphs.padded_positions(encoder_output.hidden.shape[1])
        hidden, mask = encoder_output.hidden.to(self.device, self.model.dtype), encoder_output.mask.to(self.device)
        if self._kv_cache.read(hidden, mask, rounded_positions(self._source_length)):
            self._graphs.forget()
        return [list(self.start_tokens) for _ in range(rows)]

    @torch.inference_mode()
    def forward(self, tokens: Rows) -> Step:
        self._require_known(tokens)
        counts = [len(row) for row in tokens]
        skipped = skipped_columns(self._prompts, self.lengths, counts)
        predicted = self.run(tokens, skipped)
        self.lengths = list(map(operator.add, self.lengths, counts))
        self._steps += 1
        best = predicted.best.tolist()
        counts = [max(0, count - skipped) for count in counts]
        chosen = [best[slot][:count] for slot, count in zip(self._slot_mapping, counts, strict=True)]
        self.require_sound(chosen)
        return Step(self._rows(predicted.logits), counts, self._rows(predicted.hidden), best=chosen)

    @torch.inference_mode()
    def continue_greedily(self, pending: list[int], budget: int, until: StopRule, *, with_logits: bool = True) -> Continuation:
        self._require_known([pending])
        [cached] = self.lengths
        self._fit(1, cached + len(pending) + budget - 1)
        found = self._greedy_loop.follow(pending, cached, budget, until, with_logits)
        self.lengths = [cached + len(pending) + len(found.tokens) - 1]
        self._steps += len(found.tokens)
        self.require_sound([found.tokens])
        return found

    @torch.inference_mode()
    def check_draft(self, pending: list[int], drafted: list[int], rule: GreedyAcceptance) -> CheckedDraft:
        self._require_known([pending, drafted])
        if not pending or max(drafted, default=0) >= self.vocabulary:
            raise ValueError("a draft needs at least one pending token, and drafted tokens within the vocabulary")
        [cached] = self.lengths
        after = cached + len(pending) + len(drafted)
        self._fit(1, after)
        checked = self._draft_checker.check_draft(pending, drafted, cached, rule)
        self.lengths = [after]
        self._steps += 1
        self.require_sound(checked.step.best or [])
        return checked

    @functools.cached_property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            continue_greedily=self.continue_greedily,
            check_draft=self.check_draft,
            transformers_model=self.model,
            runtime=self.runtime,
            tokens=token_guarantee(self.model.dtype),
        )

    def rewind(self, lengths: Sequence[int]) -> None:
        self.lengths = list(lengths)

    @torch.inference_mode()
    def reorder(self, rows: Sequence[int]) -> None:
        self.lengths = [self.lengths[row] for row in rows]
        self._prompts = [self._prompts[row] for row in rows]
        self._width = self._graphs.padded_rows(len(rows))
        longest = max(self.lengths)
        self._fit(self._width, longest)
        slots, moves = assign_slots([self._slot_mapping[row] for row in rows], self._width)
        self._kv_cache.move(moves, longest)
        self._set_slots(slots)

    def run(self, tokens: Rows, skipped: int = 0) -> StepOutput:
        """Feed each row its tokens and predict after all but the first `skipped` columns; the next run overwrites it."""
        most = max(map(len, tokens))
        after = max(map(operator.add, self.lengths, map(len, tokens)))
        # Padding on the right is cached as well, beyond what its row holds.
        filled = max(self.lengths) + most
        self._fit(self._width, after, filled)
        rows = [[0]] * self._width
        for slot, cached, new in zip(self._slot_mapping, self.lengths, tokens, strict=True):
            rows[slot] = [cached, *new]
        kv_length = self._graphs.padded_positions(filled)
        inputs = stage_rows(rows, self._width, most, self.device, self._graphs if most <= _LONGEST else None)
        if not self._graphs or most > _LONGEST:
            return self.predict_step(inputs, kv_length, skipped)
        key = (self._width, most, kv_length, self._source_length)
        return self._graphs.run(key, lambda: self.predict_step(inputs, kv_length)).after(skipped)

    def predict_step(self, inputs: Tensor, kv_length: int, skipped: int = 0) -> StepOutput:
        """Do the work of one step; `fused_step.StepRunner` describes the arguments."""
        positions = inputs[:, :1] + self._stack.columns[: inputs.shape[1] - 1]
        caches = self._kv_cache.view(positions, kv_length, self._source_length)
        hidden = self._stack.run(inputs[:, 1:], positions, self._stack.mask(positions, kv_length), caches)[:, skipped:]
        return StepOutput(hidden, *self._stack.predict(hidden))

    def run_recorded(
        self, key: GraphKey, position: int, work: Callable[[int], Result], changing: Sequence[Tensor] = ()
    ) -> Result:
        """Do `work(kv_length)` for a new token at `position`, from a recorded graph where runs are recorded."""
        kv_length = self._graphs.padded_positions(position + 1)
        return self._graphs.run((*key, kv_length, self._source_length), lambda: work(kv_length), changing)

    def forget(self, kind: str) -> None:
        """Drop the graphs recorded under keys that begin so."""
        self._graphs.forget(kind)

    def wrap_layers(self, wrap: WrapBlock | None) -> None:
        """Wrap the function that runs a decoder layer, as `torch.compile` does; none restores the function itself."""
        self._stack.wrap_block(wrap)
        self._graphs.forget()

    def require_sound(self, best: Rows) -> None:
        """Raise `BrokenLogitsError` where a -1 reports broken logits."""
        if any(-1 in row for row in best):
            self._kv_cache.clear()
            raise BrokenLogitsError.at(self.name, self._steps)

    def _rows(self, by_slot: Tensor) -> Tensor:
        """Return a copy in the order of the rows."""
        return by_slot[: len(self._slot_mapping)].clone() if self._by_row is None else by_slot.index_select(0, self._by_row)

    def _set_slots(self, slots: list[int]) -> None:
        self._slot_mapping = slots
        self._by_row = None if slots == list(range(len(slots))) else torch.tensor(slots, device=self.device)

    def _fit(self, width: int, positions: int, filled: int = 0) -> None:
        """Grow the caches where needed; raise `ValueError` where the model has fewer learned positions."""
        learned = self._stack.shape.learned_positions
        if learned is not None and positions > learned.shape[0]:
            raise ValueError(f"a text of {positions} tokens, but the model has {learned.shape[0]} positions")
        if self._kv_cache.fit(width, max(positions, filled)):
            self._graphs.forget()

    def _require_known(self, tokens: Rows) -> None:
        """Refuse an id that the model has no embedding for: on a GPU it would end the whole process."""
        for row in tokens:
            if row and not 0 <= min(row) <= max(row) < self._known:
                raise IndexError(f"the {self.name} model has {self._known} tokens, and was given {min(row)} to {max(row)}")
