"""The GPU runtime in PyTorch: few operations on static caches, recorded as CUDA graphs.

From top to bottom: the decoder, its encoder, its continuation, and its check of drafts. The last two run whole on the
device, and the host fetches a few numbers.
"""

from __future__ import annotations

import functools
import math
import operator
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from tasks.decoding.decoder import Capabilities, CheckedDraft, Continuation, Draws, EncoderOutput, GreedyAcceptance, Rows, Step
from tasks.decoding.distributions import entropy, invert, probability, transform
from tasks.decoding.draft_rule import DraftBuilder, DraftRule
from tasks.decoding.method import GREEDY, SamplingSettings
from tasks.decoding.runtimes.blueprint import Blueprint
from tasks.decoding.runtimes.cuda_graphs import GraphCache, GraphKey, GraphRecorder, fetch, rounded, rounded_positions
from tasks.decoding.runtimes.fused_stack import FusedStack, StaticKVCache, assign_slots
from tasks.decoding.runtimes.loaded_model import SlotDecoder, encode_prompts, skipped_columns

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_LONGEST = 16
"""New or drafted tokens of a row up to which a run is recorded as a graph; longer runs keep a GPU busy anyway."""
_LARGEST_SOURCES = 4096
"""Positions of all sources together up to which a run of the encoder is recorded."""
_UNIT = 64
"""Buffers of a continuation hold a power of two times this many steps."""

Result = TypeVar("Result")
_Reads = tuple[bool, bool]
"""Whether the rule reads softmaxes, and whether it reads entropies."""


@dataclass(frozen=True)
class StepOutput:
    """The result of one run, by slot: (slots, new tokens, …)."""

    hidden: Tensor
    logits: Tensor
    best: Tensor
    """The argmax; -1 where logits are broken."""

    def after(self, column: int) -> StepOutput:
        """Return the output from that new token on."""
        return StepOutput(self.hidden[:, column:], self.logits[:, column:], self.best[:, column:])


@dataclass(frozen=True)
class SyncPolicy:
    """When the host reads the tokens of a continuation to decide whether it has ended."""

    steps_per_sync: int = 1
    """Steps between two reads."""
    syncs_in_flight: int = 0
    """Reads that may be pending while further steps run: the device never waits, and may run that many steps in vain."""


EACH_STEP, ONE_AHEAD, WHOLE_DRAFT = SyncPolicy(), SyncPolicy(syncs_in_flight=1), SyncPolicy(steps_per_sync=_UNIT)
_Checked = tuple[StepOutput, Tensor]
"""The predictions after the token before a draft and after each drafted one; and, int64 (drafted + 2,), the argmax at each of
those positions, then the number of accepted tokens."""


class FusedDecoder(SlotDecoder):
    """A `Decoder` in PyTorch.

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
        super().__init__(model, blueprint, name, vocabulary)
        self.described = self.described.replace("reference", "fused")
        dtype = model.dtype
        self._stack = FusedStack(blueprint.decoder, dtype, self.vocabulary)
        self._encoder = None
        if blueprint.encoder is not None:
            self._encoder = FusedEncoder(FusedStack(blueprint.encoder, dtype, self.vocabulary), self.device, recorder)
        self._kv_cache = StaticKVCache(self._stack, self.device, dtype)
        self.graphs = GraphCache(recorder)
        self.sync_policy = SyncPolicy() if sync_policy is None else sync_policy
        self._token_loop, self._draft_checker = TokenLoop(self), DraftChecker(self)
        self._width = 0
        self._slot_mapping: list[int] = []
        self._by_row: Tensor | None = None
        self._source_length = 0

    @torch.inference_mode()
    def encode(self, sources: Rows) -> EncoderOutput:
        """Run the encoder; without one, keep the prompts."""
        self.require_known(sources)
        if self._encoder is None:
            return encode_prompts(sources, self.name, self.device)
        self.require_positions(max(map(len, sources)))
        return self._encoder.encode(sources)

    @torch.inference_mode()
    def start(self, encoder_output: EncoderOutput) -> Rows:
        rows, positions, _ = encoder_output.hidden.shape
        first = self.start_rows(encoder_output)
        self._width = self.graphs.padded_rows(rows)
        self._set_slots(list(range(rows)))
        self._fit(self._width, 1)
        if encoder_output.prompts is None:
            self._source_length = self.graphs.padded_positions(positions)
            hidden, mask = encoder_output.hidden.to(self.device, self.model.dtype), encoder_output.mask.to(self.device)
            if self._kv_cache.read(hidden, mask, rounded_positions(self._source_length)):
                self.graphs.forget()
        return first

    @torch.inference_mode()
    def forward(self, tokens: Rows) -> Step:
        self.require_rows(tokens)
        counts = [len(row) for row in tokens]
        skipped = skipped_columns(self._prompts, self.lengths, counts)
        predicted = self.run(tokens, skipped)  # by slot
        self.lengths = list(map(operator.add, self.lengths, counts))
        self._steps += 1
        best = predicted.best.tolist()
        counts = [max(0, count - skipped) for count in counts]
        chosen = [best[slot][:count] for slot, count in zip(self._slot_mapping, counts, strict=True)]
        self.require_sound(chosen)
        return Step(self._rows(predicted.logits), counts, self._rows(predicted.hidden), argmax=chosen)

    continue_greedily = torch.inference_mode()(SlotDecoder.continue_greedily)
    check_draft = torch.inference_mode()(SlotDecoder.check_draft)

    def _continue(self, pending: list[int], budget: int, until: DraftRule, with_logits: bool) -> Continuation:
        return self._token_loop.follow(pending, self.lengths[0], budget, until, with_logits)

    def _check(self, pending: list[int], drafted: list[int], rule: GreedyAcceptance) -> CheckedDraft:
        return self._draft_checker.check_draft(pending, drafted, self.lengths[0], rule)

    @torch.inference_mode()
    def continue_sampled(self, pending: list[int], draws: Draws, until: DraftRule, *, with_logits: bool = True) -> Continuation:
        """Do what `decoder.SampledContinuation` describes."""
        budget, follow = len(draws.uniforms), self._token_loop.follow
        return self.continued(pending, budget, lambda: follow(pending, self.lengths[0], budget, until, with_logits, draws))

    @torch.inference_mode()
    def decide_draft(self, pending: list[int], drafted: list[int], decide: Callable[[Tensor], Tensor]) -> CheckedDraft:
        """Do what `decoder.DraftDecision` describes."""
        return self.checked(pending, drafted, lambda: self._decide(pending, drafted, decide))

    def _decide(self, pending: list[int], drafted: list[int], decide: Callable[[Tensor], Tensor]) -> CheckedDraft:
        output = self.run([pending + drafted], len(pending) - 1)
        # Copied, since the next run overwrites it.
        logits, hidden = output.logits.clone(), output.hidden.clone()
        *best, accepted, next_token = fetch(torch.cat([output.best[0], decide(logits)]))().tolist()
        return CheckedDraft(Step(logits, [len(best)], hidden, argmax=[best]), accepted, next_token)

    @functools.cached_property
    def capabilities(self) -> Capabilities:
        return replace(
            super().capabilities,
            continue_greedily=self.continue_greedily,
            check_draft=self.check_draft,
            continue_sampled=self.continue_sampled,
            decide_draft=self.decide_draft,
        )

    @torch.inference_mode()
    def reorder(self, rows: Sequence[int]) -> None:
        self.lengths = [self.lengths[row] for row in rows]
        self._prompts = [self._prompts[row] for row in rows]
        self._width = self.graphs.padded_rows(len(rows))
        longest = max(self.lengths)
        self._fit(self._width, longest)
        # Only rows that occur twice, or lie in slots that are given up, are copied.
        slots, moves = assign_slots([self._slot_mapping[row] for row in rows], self._width)
        self._kv_cache.move(moves, longest)
        self._set_slots(slots)

    def run(self, tokens: Rows, skipped: int = 0) -> StepOutput:
        """Feed each row its tokens and predict after all but the first `skipped` columns; the next run overwrites it."""
        # 1. Make room for the new tokens of all rows, which run side by side as (slots, most new tokens).
        most = max(map(len, tokens))
        after = max(map(operator.add, self.lengths, map(len, tokens)))
        # Padding on the right is cached as well, beyond what its row holds.
        filled = max(self.lengths) + most
        self._fit(self._width, after, filled)
        # 2. Put each row into its slot: its cached length, then its tokens.
        rows = [[0]] * self._width
        for slot, cached, new in zip(self._slot_mapping, self.lengths, tokens, strict=True):
            rows[slot] = [cached, *new]
        kv_length = self.graphs.padded_positions(filled)
        inputs = stage_rows(rows, self._width, most, self.device, self.graphs if most <= _LONGEST else None)
        # 3. Run, from a recorded graph where there is one for these sizes.
        if not self.graphs or most > _LONGEST:
            return self.predict_step(inputs, kv_length, skipped)
        key = (self._width, most, kv_length, self._source_length)
        return self.graphs.run(key, lambda: self.predict_step(inputs, kv_length)).after(skipped)

    def predict_step(self, inputs: Tensor, kv_length: int, skipped: int = 0) -> StepOutput:
        """Do the work of one step without recording it.

        Args:
            inputs: (slots, 1 + new tokens), int64: each row's cached length, then its tokens.
            kv_length: Positions that attention reads.
            skipped: Leading columns that are not predicted after.
        """
        positions = inputs[:, :1] + self._stack.columns[: inputs.shape[1] - 1]  # (slots, new)
        caches = self._kv_cache.view(positions, kv_length, self._source_length)
        hidden = self._stack.run(inputs[:, 1:], positions, self._stack.mask(positions, kv_length), caches)[:, skipped:]
        return StepOutput(hidden, *self._stack.predict(hidden))

    def run_recorded(
        self, key: GraphKey, position: int, work: Callable[[int], Result], changing: Sequence[Tensor] = ()
    ) -> Result:
        """Do `work(kv_length)` for a new token at `position`, from a recorded graph where runs are recorded."""
        kv_length = self.graphs.padded_positions(position + 1)
        return self.graphs.run((*key, kv_length, self._source_length), lambda: work(kv_length), changing)

    def require_sound(self, best: Rows) -> None:
        """Raise `BrokenLogitsError` where a -1 reports broken logits."""
        if any(-1 in row for row in best):
            self._kv_cache.clear()
        super().require_sound(best)

    def _rows(self, by_slot: Tensor) -> Tensor:
        """Return a copy in the order of the rows."""
        return by_slot[: len(self._slot_mapping)].clone() if self._by_row is None else by_slot.index_select(0, self._by_row)

    def _set_slots(self, slots: list[int]) -> None:
        self._slot_mapping = slots
        self._by_row = None if slots == list(range(len(slots))) else torch.tensor(slots).to(self.device, non_blocking=True)

    def _fit(self, width: int, positions: int, filled: int = 0) -> None:
        """Grow the caches where needed; raise `ValueError` where the model has fewer learned positions."""
        self.require_positions(positions)
        if self._kv_cache.fit(width, max(positions, filled)):
            self.graphs.forget()


class FusedEncoder:
    """Encodes sources side by side."""

    def __init__(self, stack: FusedStack, device: torch.device, recorder: GraphRecorder | None) -> None:
        """Take the encoder's stack, its device, and what records runs (none: nothing is recorded)."""
        self._stack = stack
        self._device = device
        self._graphs = GraphCache(recorder)

    def encode(self, sources: Rows) -> EncoderOutput:
        """Encode sources of known token ids, right-padded."""
        longest = max(map(len, sources))
        if self._stack.fit(rounded_positions(longest)):
            self._graphs.forget()
        hidden = self._run([[len(source), *source] for source in sources], longest)
        mask = [[1] * len(source) + [0] * (longest - len(source)) for source in sources]
        return EncoderOutput(hidden, torch.tensor(mask).to(self._device, non_blocking=True))

    def _run(self, rows: Rows, longest: int) -> Tensor:
        width, positions = self._graphs.padded_rows(len(rows)), self._graphs.padded_positions(longest)
        if not self._graphs or width * positions > _LARGEST_SOURCES:
            return self._encoded(stage_rows(rows, len(rows), longest, self._device))
        inputs = stage_rows(rows, width, positions, self._device, self._graphs)
        hidden = self._graphs.run((width, positions), lambda: self._encoded(inputs))
        return hidden[: len(rows), :longest].clone()

    def _encoded(self, inputs: Tensor) -> Tensor:
        """Return hidden states (rows, positions, width) of `inputs`: each row's length, then its padded ids."""
        ids = inputs[:, 1:]
        columns = self._stack.columns[: ids.shape[1]]  # (positions,)
        positions = columns.expand_as(ids)
        mask = self._stack.mask(positions, len(columns))
        padding = (columns >= inputs[:, :1])[:, None, None]  # (rows, 1, 1, positions)
        return self._stack.run(ids, positions, mask.masked_fill(padding, torch.finfo(mask.dtype).min))


def stage_rows(rows: Rows, width: int, most: int, device: torch.device, graphs: GraphCache | None = None) -> Tensor:
    """Pad rows of a length and tokens to (width, 1 + most), and copy them to the device: to where graphs read them, if any."""
    padded = [row + [0] * (1 + most - len(row)) for row in rows] + [[0] * (1 + most)] * (width - len(rows))
    here = torch.tensor(padded)
    return graphs.stage(here, device) if graphs else here.to(device, non_blocking=True)


class TokenLoop:
    """The state of a continuation of one row, all of it on the device."""

    def __init__(self, decoder: FusedDecoder) -> None:
        self._decoder = decoder
        self._inputs = torch.zeros(1, 2, dtype=torch.long, device=decoder.device)
        """Cached length and next token."""
        self._step = torch.zeros(1, dtype=torch.long, device=decoder.device)
        """Number of the next step."""
        self._found = torch.zeros(3, 0, dtype=torch.float64, device=decoder.device)
        """Token, softmax of the argmax and entropy of each step."""
        self._uniforms = torch.zeros(0, dtype=torch.float64, device=decoder.device)
        """What the token of each step is drawn with."""
        self._logits = torch.zeros(0, decoder.vocabulary, dtype=decoder.model.dtype, device=decoder.device)
        """Logits of the latest steps, a ring buffer."""

    def follow(
        self, pending: list[int], cached: int, budget: int, until: DraftRule, with_logits: bool, draws: Draws | None = None
    ) -> Continuation:
        """Do what `decoder.GreedyContinuation` describes, for a row with `cached` tokens whose cache is long enough.

        Tokens are drawn where `draws` says how.
        """
        policy = self._decoder.sync_policy
        self._fit(budget, policy.steps_per_sync * (policy.syncs_in_flight + 1), with_logits)
        reads = until.fallback_threshold > 0 or until.stop_below > 0, until.max_entropy < math.inf
        before = cached + len(pending) - 1
        self._inputs.copy_(torch.tensor([[before, pending[-1]]]), non_blocking=True)
        self._step.zero_()
        sampling = GREEDY
        if draws is not None:
            sampling = draws.sampling
            self._uniforms[:budget].copy_(torch.tensor(draws.uniforms, dtype=torch.float64), non_blocking=True)
        seen = _Seen(budget, until, self._decoder.end_tokens)
        waiting: deque[Callable[[], Tensor]] = deque()
        fetched = 0
        for step in range(budget):
            # 1. Start a step on the device: the first one with the pending tokens, the others with the token before.
            if step == 0 and len(pending) > 1:
                self._record(self._decoder.run([pending], len(pending) - 1), reads, sampling)
            else:
                self._run_step(before + step, reads, sampling)
            # 2. Start fetching what was found since the last time, and read what has arrived by now.
            if step + 1 - fetched == policy.steps_per_sync or step + 1 == budget:
                waiting.append(fetch(self._found[:, fetched : step + 1]))
                fetched = step + 1
                if len(waiting) > policy.syncs_in_flight and seen.ends_in(*waiting.popleft()().tolist()):
                    break
        # 3. Read the rest; steps beyond the end were run in vain.
        while waiting and not seen.ended:
            seen.ends_in(*waiting.popleft()().tolist())
        count = len(seen.tokens)
        kept = self._logits[:count] if with_logits else self._logits[(count - 1) % len(self._logits)][None]
        return Continuation(seen.tokens, seen.confidence, kept[None].clone(), seen.entropies)

    def _run_step(self, position: int, reads: _Reads, sampling: SamplingSettings) -> None:
        def step(kv_length: int) -> None:
            self._record(self._decoder.predict_step(self._inputs, kv_length), reads, sampling)

        changing = (self._inputs, self._step, self._found, self._logits)
        self._decoder.run_recorded(("continue", *reads, *astuple(sampling)), position, step, changing)

    def _record(self, output: StepOutput, reads: _Reads, sampling: SamplingSettings) -> None:
        """Write down the prediction and make it the next input; nothing here waits for the device."""
        logits, best = output.logits[0], output.best[0]
        if not sampling.greedy:
            drawn = invert(transform(logits, sampling), self._uniforms.index_select(0, self._step))
            best = torch.where(best < 0, best, drawn)  # -1 reports broken logits here as well
        confidence, nats = torch.ones_like(best), torch.zeros_like(best)
        if any(reads):
            scores = torch.softmax(logits.float(), -1)
            confidence = scores.amax(-1)
            nats = entropy(scores, torch.log_softmax(logits.float(), -1)) if reads[1] else nats
        self._found.index_copy_(1, self._step, torch.stack([best.double(), confidence.double(), nats.double()]))
        self._logits.index_copy_(0, self._step.remainder(len(self._logits)), logits)
        self._inputs[:, 0].add_(1)
        # After broken logits any token will do: what follows from it is never read.
        self._inputs[:, 1].copy_(best.clamp_min(0))
        self._step.add_(1)

    def _fit(self, budget: int, unseen: int, with_logits: bool) -> None:
        """Fit the buffers to all logits, or to those that may have been written since the host last looked."""
        found, kept = rounded(budget, _UNIT), rounded(budget if with_logits else min(budget, unseen), _UNIT)
        if found > self._found.shape[1] or kept > len(self._logits):
            self._found = self._found.new_zeros(3, max(found, self._found.shape[1]))
            self._uniforms = self._found.new_zeros(self._found.shape[1])
            self._logits = self._logits.new_zeros(max(kept, len(self._logits)), self._logits.shape[1])
            self._decoder.graphs.forget("continue")


class _Seen:
    """The part of a continuation that the host has read."""

    def __init__(self, budget: int, until: DraftRule, ends: frozenset[int]) -> None:
        self.tokens: list[int] = []
        self.confidence: list[float] = []
        self.entropies: list[float] = []
        self._draft = DraftBuilder(budget, until, ends | {-1})

    @property
    def ended(self) -> bool:
        """Whether an end token, a bound, the budget or a broken step ends it."""
        return not self._draft.going

    def ends_in(self, tokens: list[float], confidence: list[float], entropies: list[float]) -> bool:
        """Read on, up to where it ends; return whether it does."""
        for token, softmax, nats in zip(tokens, confidence, entropies, strict=True):
            self.tokens.append(int(token))
            self.confidence.append(softmax)
            self.entropies.append(nats)
            self._draft.add(int(token), softmax, nats)
            if self.ended:
                break
        return self.ended


class DraftChecker:
    """Checks drafts of one row; keeps the rule and the draft where recorded graphs read them."""

    def __init__(self, decoder: FusedDecoder) -> None:
        self._decoder = decoder
        self._inputs = torch.zeros(1, 2 + _LONGEST, dtype=torch.long, device=decoder.device)
        """Cached length, the token before the draft, the draft."""
        self._rule: GreedyAcceptance | None = None
        self._bounds = torch.zeros(4, device=decoder.device)
        """The rule's numbers in the order in which `_apply` reads them; float32, as scores are."""

    def check_draft(self, pending: list[int], drafted: list[int], cached: int, rule: GreedyAcceptance) -> CheckedDraft:
        """Do what `decoder.DraftCheck` describes, for a row with `cached` tokens whose cache is long enough for all of it.

        A -1 among the step's `argmax` reports broken logits.
        """
        if rule != self._rule:
            bounds = [float(rule.keep_agreed), rule.max_surprisal, rule.min_share, rule.max_gap]
            self._bounds.copy_(torch.tensor(bounds), non_blocking=True)
            self._rule = rule
        # 1. Run the model and apply the rule, on the device.
        output, found = self._check(pending, drafted, cached, reads_scores=rule.reads_scores)
        numbers = fetch(found)
        # 2. Copy what the next run would overwrite, while the numbers are on their way.
        logits, hidden = output.logits.clone(), output.hidden.clone()
        # 3. Read the tokens and how many of the draft are accepted.
        *best, accepted = numbers().tolist()
        return CheckedDraft(Step(logits, [len(best)], hidden, argmax=[best]), accepted, best[accepted])

    def _check(self, pending: list[int], drafted: list[int], cached: int, *, reads_scores: bool) -> _Checked:
        """Run a graph recorded for the draft's length; after a prompt, whose length may be any, run without one."""
        count = len(drafted)
        if len(pending) > 1 or count > _LONGEST:
            output = self._decoder.run([pending + drafted], len(pending) - 1)
            ids = torch.tensor(drafted, dtype=torch.long).to(self._inputs.device, non_blocking=True)
            return self._apply(output, ids, reads_scores=reads_scores)
        inputs = self._inputs[:, : 2 + count]
        inputs.copy_(torch.tensor([[cached, *pending, *drafted]]), non_blocking=True)

        def work(kv_length: int) -> _Checked:
            return self._apply(self._decoder.predict_step(inputs, kv_length), inputs[0, 2:], reads_scores=reads_scores)

        return self._decoder.run_recorded(("check", count, reads_scores), cached + count, work)

    def _apply(self, output: StepOutput, drafted: Tensor, *, reads_scores: bool) -> _Checked:
        """Apply the rule to `drafted` (drafted,), int64; surprisals are computed as the rules on the host compute them."""
        best = output.best[0]  # (drafted + 1,)
        keep_agreed, max_surprisal, min_share, max_gap = self._bounds
        accept = (best[:-1] == drafted) & (keep_agreed > 0)
        if reads_scores:
            scores = torch.softmax(output.logits[0, :-1], -1, dtype=torch.float32)  # (drafted, vocabulary)
            drafted_scores = probability(scores, drafted)
            highest = scores.amax(-1)
            surprisals = -drafted_scores.log()
            accept = accept | (surprisals <= max_surprisal) | (highest - drafted_scores <= max_gap)
            accept = accept | (drafted_scores >= min_share * highest)
        # The accepted prefix ends before the first token that is not accepted.
        return output, torch.cat([best, accept.long().cumprod(0).sum(0, keepdim=True)])
