"""The PyTorch runtime of T5, Llama and GPT-2, made for GPUs: few operations on caches that stay in place, recorded once."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from tasks.decoding.decoder import (
    BrokenLogitsError,
    CheckedDraft,
    Continuation,
    EncoderOutput,
    GreedyAcceptance,
    Rows,
    Step,
    StopRule,
)
from tasks.decoding.runtimes.blueprint import Blueprint
from tasks.decoding.runtimes.cuda_graphs import GraphCache, GraphRecorder
from tasks.decoding.runtimes.fused_cache import StaticKVCache, assign_slots, rounded, rounded_positions
from tasks.decoding.runtimes.fused_draft_check import DraftChecker
from tasks.decoding.runtimes.fused_greedy_loop import GreedyLoop
from tasks.decoding.runtimes.fused_stack import FusedStack
from tasks.decoding.runtimes.fused_step import StepOutput, SyncPolicy
from tasks.decoding.runtimes.loaded_model import LoadedModel
from tasks.decoding.runtimes.prompts import encode_prompts, skipped_columns

_LONGEST = 16
"""New tokens of a row up to which a run is recorded; longer ones, such as prompts, keep a GPU busy without that."""
_LARGEST_SOURCES = 4096
"""Positions up to which a run of the encoder is recorded."""

Done = TypeVar("Done")


class FusedDecoder(LoadedModel):
    """A `Decoder` whose rows lie in slots of preallocated caches: a rewind is a number, a dropped row a shorter list.

    Where runs are recorded, slots, new tokens and the positions read are rounded up, so that few recordings serve all.
    """

    def __init__(
        self,
        model: Any,
        blueprint: Blueprint,
        name: str,
        vocabulary: int | None = None,
        *,
        recorder: GraphRecorder | None = None,
        sync_policy: SyncPolicy | None = None,
    ) -> None:
        """Takes a model, its blueprint, what records runs (none: nothing is recorded) and how `extend` looks at tokens."""
        super().__init__(model, name, vocabulary)
        self.described = self.described.replace("reference", "fused")
        dtype = model.dtype
        self._stack = FusedStack(blueprint.decoder, dtype, self.vocabulary)
        self._encoder = None if blueprint.encoder is None else FusedStack(blueprint.encoder, dtype, self.vocabulary)
        self._room = StaticKVCache(self._stack, self.device, dtype)
        self._runs, self._encodings = GraphCache(recorder), GraphCache(recorder)
        self.sync_policy = SyncPolicy() if sync_policy is None else sync_policy
        self._chain, self._judge = GreedyLoop(self), DraftChecker(self)
        self._known = int(blueprint.decoder.embedding.shape[0])
        self._width = 0
        self._slots: list[int] = []
        self._by_row: Tensor | None = None
        self._prompts: list[int] = []
        self._source_reach = 0
        self._steps = 0

    @torch.inference_mode()
    def encode(self, sources: Rows) -> EncoderOutput:
        """Runs the encoder; without one, keeps the prompts."""
        self._require_known(sources)
        if self._encoder is None:
            return encode_prompts(sources, self.name, self.device)
        longest = max(map(len, sources))
        if self._encoder.fit(rounded_positions(longest)):
            self._encodings.forget()
        hidden = self._run_encoder(self._encoder, [[len(source), *source] for source in sources], longest)
        mask = [[1] * len(source) + [0] * (longest - len(source)) for source in sources]
        return EncoderOutput(hidden, torch.tensor(mask, device=self.device))

    @torch.inference_mode()
    def start(self, encoder_output: EncoderOutput) -> Rows:
        if encoder_output.prompts is None and self._encoder is None:
            raise ValueError(f"the {self.name} model is decoder-only; it cannot start from what an encoder gave")
        rows = encoder_output.hidden.shape[0]
        self.lengths = [0] * rows
        self._width = self._whole(rows)
        self._place(list(range(rows)))
        self._steps = 0
        self._fit(self._width, 1)
        if encoder_output.prompts is not None:
            self._prompts = [len(prompt) for prompt in encoder_output.prompts]
            return [list(prompt) for prompt in encoder_output.prompts]
        self._prompts = [1] * rows
        self._source_reach = self._reach(encoder_output.hidden.shape[1])
        hidden, mask = encoder_output.hidden.to(self.device, self.model.dtype), encoder_output.mask.to(self.device)
        if self._room.read(hidden, mask, rounded_positions(self._source_reach)):
            self._runs.forget()
        return [list(self.start_tokens) for _ in range(rows)]

    @torch.inference_mode()
    def forward(self, tokens: Rows) -> Step:
        self._require_known(tokens)
        counts = [len(row) for row in tokens]
        unread = skipped_columns(self._prompts, self.lengths, counts)
        predicted = self.run(tokens, unread)
        self.lengths = list(map(operator.add, self.lengths, counts))
        self._steps += 1
        best = predicted.best.tolist()
        counts = [max(0, count - unread) for count in counts]
        chosen = [best[slot][:count] for slot, count in zip(self._slots, counts, strict=True)]
        self.require_sound(chosen)
        return Step(self._rows(predicted.logits), counts, self._rows(predicted.hidden), best=chosen)

    @torch.inference_mode()
    def continue_greedily(self, pending: list[int], budget: int, until: StopRule, *, with_logits: bool = True) -> Continuation:
        self._require_known([pending])
        [cached] = self.lengths
        self._fit(1, cached + len(pending) + budget - 1)
        found = self._chain.follow(pending, cached, budget, until, with_logits)
        self.lengths = [cached + len(pending) + len(found.tokens) - 1]
        self._steps += len(found.tokens)
        self.require_sound([found.tokens])
        return found

    @torch.inference_mode()
    def check_draft(self, pending: list[int], drafted: list[int], keep: GreedyAcceptance) -> CheckedDraft:
        self._require_known([pending, drafted])
        if not pending or max(drafted, default=0) >= self.vocabulary:
            raise ValueError("a draft follows at least one token, and is of tokens that are predicted")
        [cached] = self.lengths
        after = cached + len(pending) + len(drafted)
        self._fit(1, after)
        checked = self._judge.check_draft(pending, drafted, cached, keep)
        self.lengths = [after]
        self._steps += 1
        self.require_sound(checked.step.best or [])
        return checked

    def rewind(self, lengths: Sequence[int]) -> None:
        self.lengths = list(lengths)

    @torch.inference_mode()
    def reorder(self, rows: Sequence[int]) -> None:
        self.lengths = [self.lengths[row] for row in rows]
        self._prompts = [self._prompts[row] for row in rows]
        self._width = self._whole(len(rows))
        longest = max(self.lengths)
        self._fit(self._width, longest)
        slots, moves = assign_slots([self._slots[row] for row in rows], self._width)
        self._room.move(moves, longest)
        self._place(slots)

    def run(self, tokens: Rows, unread: int = 0) -> StepOutput:
        """Feeds each row its tokens and predicts after all but the first `unread` columns; the next run overwrites it."""
        most = max(map(len, tokens))
        after = max(map(operator.add, self.lengths, map(len, tokens)))
        # Padding on the right is cached as well, beyond what its row holds.
        filled = max(self.lengths) + most
        self._fit(self._width, after, filled)
        rows = [[0]] * self._width
        for slot, cached, new in zip(self._slots, self.lengths, tokens, strict=True):
            rows[slot] = [cached, *new]
        reach = self._reach(filled)
        inputs = self._inputs(rows, self._width, most, self._runs if most <= _LONGEST else None)
        if not self._runs or most > _LONGEST:
            return self.predicted(inputs, reach, unread)
        key = (self._width, most, reach, self._source_reach)
        return self._runs.do(key, lambda: self.predicted(inputs, reach)).after(unread)

    def predicted(self, inputs: Tensor, reach: int, unread: int = 0) -> StepOutput:
        """The work itself; `inputs`: (slots, 1 + new tokens), int64, each row's cached length, then its tokens."""
        positions = inputs[:, :1] + self._stack.columns[: inputs.shape[1] - 1]
        caches = self._room.caches(positions, reach, self._source_reach)
        hidden = self._stack.run(inputs[:, 1:], positions, self._stack.mask(positions, reach), caches)[:, unread:]
        return StepOutput(hidden, *self._stack.predict(hidden))

    def recorded(
        self, key: tuple[Any, ...], position: int, work: Callable[[int], Done], changing: Sequence[Tensor] = ()
    ) -> Done:
        """Does work that reads as many positions as one of that number must, recorded where runs are."""
        reach = self._reach(position + 1)
        return self._runs.do((*key, reach, self._source_reach), lambda: work(reach), changing)

    def forget(self, kind: str) -> None:
        """Drops what was recorded under keys that begin so."""
        self._runs.forget(kind)

    def wrap_layers(self, wrap: Callable[[Any], Any] | None) -> None:
        """Runs the decoder's layers by what `wrap` makes of their function, such as `torch.compile`; none: as they are."""
        self._stack.wrap_block(wrap)
        self._runs.forget()

    def require_sound(self, best: Rows) -> None:
        """Raises `BrokenLogitsError` where a -1 says that logits were broken."""
        if any(-1 in row for row in best):
            self._room.clear()
            raise BrokenLogitsError.at(self.name, self._steps)

    def _run_encoder(self, encoder: FusedStack, rows: Rows, longest: int) -> Tensor:
        width, reach = self._whole(len(rows)), self._reach(longest)
        if not self._runs or width * reach > _LARGEST_SOURCES:
            return self._encoded(encoder, self._inputs(rows, len(rows), longest))
        inputs = self._inputs(rows, width, reach, self._encodings)
        hidden = self._encodings.do((width, reach), lambda: self._encoded(encoder, inputs))
        return hidden[: len(rows), :longest].clone()

    def _encoded(self, encoder: FusedStack, inputs: Tensor) -> Tensor:
        """(rows, positions, width); `inputs` as in `predicted`, with the sources' own lengths."""
        ids = inputs[:, 1:]
        columns = encoder.columns[: ids.shape[1]]
        mask = encoder.mask(columns.expand_as(ids), len(columns))
        padding = (columns >= inputs[:, :1])[:, None, None]
        return encoder.run(ids, columns, mask.masked_fill(padding, torch.finfo(mask.dtype).min))

    def _inputs(self, rows: Rows, width: int, most: int, recordings: GraphCache | None = None) -> Tensor:
        """Rows of a length and tokens, padded to (width, 1 + most), on the device: where those recordings read them, if any."""
        padded = [row + [0] * (1 + most - len(row)) for row in rows] + [[0] * (1 + most)] * (width - len(rows))
        here = torch.tensor(padded)
        return recordings.placed(here, self.device) if recordings else here.to(self.device)

    def _rows(self, by_slot: Tensor) -> Tensor:
        """A copy, by row."""
        return by_slot[: len(self._slots)].clone() if self._by_row is None else by_slot.index_select(0, self._by_row)

    def _place(self, slots: list[int]) -> None:
        self._slots = slots
        self._by_row = None if slots == list(range(len(slots))) else torch.tensor(slots, device=self.device)

    def _fit(self, width: int, positions: int, filled: int = 0) -> None:
        """Makes room; raises `ValueError` where the model has fewer learned positions."""
        learned = self._stack.shape.learned_positions
        if learned is not None and positions > learned.shape[0]:
            raise ValueError(f"a text of {positions} tokens, but the model has {learned.shape[0]} positions")
        if self._room.fit(width, max(positions, filled)):
            self._runs.forget()

    def _whole(self, rows: int) -> int:
        return rows if not self._runs else rounded(rows)

    def _reach(self, positions: int) -> int:
        return positions if not self._runs else rounded_positions(positions)

    def _require_known(self, tokens: Rows) -> None:
        """An id that the model has no embedding for ends a GPU's whole process; it must not get there."""
        for row in tokens:
            if row and not 0 <= min(row) <= max(row) < self._known:
                raise IndexError(f"the {self.name} model has {self._known} tokens, and was given {min(row)} to {max(row)}")
