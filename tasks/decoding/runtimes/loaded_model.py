"""The bases of the runtimes over a `transformers` model: name, device and special tokens, prompts as sources, rows as slots."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from tasks.decoding.decoder import (
    REFERENCE,
    BrokenLogitsError,
    Capabilities,
    CheckedDraft,
    Continuation,
    EncoderOutput,
    GreedyAcceptance,
    Rows,
    Runtime,
    TokenGuarantee,
)
from tasks.decoding.draft_rule import DraftRule
from tasks.decoding.runtimes.blueprint import Blueprint
from tasks.errors import InputError
from tasks.models.pair import output_vocabulary
from tasks.models.spread import places_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class LoadedModel:
    """A model of `transformers` in evaluation mode."""

    def __init__(self, model: PreTrainedModel, name: str, vocabulary: int | None = None) -> None:
        """Take the model, what to call it, and the ids to predict over: those below `vocabulary`.

        Raises:
            InputError: the model does not say which token ends a text.
        """
        self.model = model
        self.name = name
        self.device: torch.device = next(model.parameters()).device
        self.vocabulary: int = output_vocabulary(model) if vocabulary is None else vocabulary
        self.end_token, self.end_tokens = _ends(model, name)
        pad = model.config.pad_token_id
        self.pad_token: int = self.end_token if pad is None else pad
        known = len(model.get_input_embeddings().weight)
        if not 0 <= self.pad_token < known:
            fix = f"set pad_token_id in its config.json to one of its {known} tokens"
            raise InputError(f"the {name} model pads with the token {pad}, which it does not have; {fix}")
        self.start_tokens: list[int] = [_start_token(model, name)] if model.config.is_encoder_decoder else []
        """Tokens that every output begins with; none without an encoder, where outputs begin with the source."""
        # Tokenizers may put special tokens beyond what the model predicts; those are left out.
        beginning = getattr(model.config, "bos_token_id", None)
        ids = {self.pad_token, *self.end_tokens, *self.start_tokens, *([] if beginning is None else [beginning])}
        self.specials = frozenset(token for token in ids if token < self.vocabulary)
        """Ids that are never text: padding, start and end."""
        self.lengths: list[int] = []
        self.runtime: Runtime = REFERENCE
        """How it was asked to be run."""
        spread = f", spread over {places}" if (places := places_of(model)) else ""
        self.described = f"reference, {str(model.dtype).removeprefix('torch.')}{spread}"
        """The runtime and its number format, for reports."""

    @functools.cached_property
    def capabilities(self) -> Capabilities:
        """What the runtime can do beyond the calls of `Decoder`; faster runtimes add to it."""
        # The libraries sum in an order that depends on the shape of a run.
        exact = self.model.dtype == torch.float32
        tokens = TokenGuarantee.EQUAL_BEYOND_TOLERANCE if exact else TokenGuarantee.NONE
        return Capabilities(transformers_model=self.model, runtime=self.runtime, tokens=tokens)


class SlotDecoder(LoadedModel, ABC):
    """A model whose rows are slots of preallocated caches: a rewind sets a length, and dropping a row shortens a list.

    It keeps the accounts of runs over its only row: room, length, number of the run and broken logits.
    """

    def __init__(self, model: PreTrainedModel, blueprint: Blueprint, name: str, vocabulary: int | None) -> None:
        super().__init__(model, name, vocabulary)
        self._known = int(blueprint.decoder.embedding.shape[0])
        learned = blueprint.decoder.learned_positions
        self._max_positions = None if learned is None else len(learned)
        self._decoder_only = blueprint.encoder is None
        self._prompts: list[int] = []
        """Tokens of each row's prompt, whose predictions nobody reads; 1 where an encoder reads the source."""
        self._steps = 0

    def rewind(self, lengths: Sequence[int]) -> None:
        # Beyond what is cached the next run would read memory that nobody wrote, and before the first token another row's.
        if not all(0 <= kept <= cached for kept, cached in zip(lengths, self.lengths, strict=True)):
            raise ValueError(f"the {self.name} model has cached {self.lengths} tokens, and cannot be cut to {list(lengths)}")
        self.lengths = list(lengths)

    def start_rows(self, encoder_output: EncoderOutput) -> Rows:
        """Empty all rows, and return the first tokens of each."""
        rows = encoder_output.hidden.shape[0]
        self.lengths, self._prompts, self._steps = [0] * rows, [1] * rows, 0
        # An encoder read the source: rows begin with start tokens; otherwise with the prompt itself.
        if encoder_output.prompts is None:
            if self._decoder_only:
                raise ValueError(f"the {self.name} model is decoder-only; it cannot start from the output of an encoder")
            return [list(self.start_tokens) for _ in range(rows)]
        self._prompts = [len(prompt) for prompt in encoder_output.prompts]
        return [list(prompt) for prompt in encoder_output.prompts]

    def require_known(self, tokens: Rows) -> None:
        """Refuse an id without an embedding: compiled code would read beyond the matrix, and a GPU would end the process."""
        for row in tokens:
            if row and not 0 <= min(row) <= max(row) < self._known:
                raise IndexError(f"the {self.name} model has {self._known} tokens, and was given {min(row)} to {max(row)}")

    def require_rows(self, tokens: Rows) -> None:
        """Refuse another number of rows than were started, whose slots compiled code would read beyond the list, as well."""
        if len(tokens) != len(self.lengths):
            raise ValueError(f"the {self.name} model was started with {len(self.lengths)} rows, and was given {len(tokens)}")
        self.require_known(tokens)

    def continue_greedily(self, pending: list[int], budget: int, until: DraftRule, *, with_logits: bool = True) -> Continuation:
        """Do what `decoder.GreedyContinuation` describes."""
        return self.continued(pending, budget, lambda: self._continue(pending, budget, until, with_logits))

    def continued(self, pending: list[int], budget: int, run: Callable[[], Continuation]) -> Continuation:
        """Run a continuation in a cache that has room for it, and keep its account."""
        self.require_known([pending])
        [cached] = self.lengths
        if not pending or budget < 1:
            raise ValueError("a continuation needs at least one pending token and a budget of at least one")
        # The last token is predicted and not fed.
        self._fit(1, cached + len(pending) + budget - 1)
        found = run()
        self.lengths = [cached + len(pending) + len(found.tokens) - 1]
        self._steps += len(found.tokens)
        self.require_sound([found.tokens])
        return found

    def check_draft(self, pending: list[int], drafted: list[int], rule: GreedyAcceptance) -> CheckedDraft:
        """Do what `decoder.DraftCheck` describes."""
        return self.checked(pending, drafted, lambda: self._check(pending, drafted, rule))

    def checked(self, pending: list[int], drafted: list[int], run: Callable[[], CheckedDraft]) -> CheckedDraft:
        """Check a draft likewise; refuse one behind nothing, or of tokens that the model cannot predict."""
        self.require_known([pending + drafted])
        if not pending or max(drafted, default=0) >= self.vocabulary:
            raise ValueError("a draft needs at least one pending token, and drafted tokens within the vocabulary")
        after = self.lengths[0] + len(pending) + len(drafted)
        self._fit(1, after)
        checked = run()
        self.lengths = [after]
        self._steps += 1
        self.require_sound(checked.step.argmax or [])
        return checked

    @abstractmethod
    def _fit(self, rows: int, positions: int) -> None:
        """Make room for that many rows and positions; raise `ValueError` where the model has fewer learned positions."""

    @abstractmethod
    def _continue(self, pending: list[int], budget: int, until: DraftRule, with_logits: bool) -> Continuation:
        """Run the continuation on the device, in a cache that has room for it."""

    @abstractmethod
    def _check(self, pending: list[int], drafted: list[int], rule: GreedyAcceptance) -> CheckedDraft:
        """Run the check likewise."""

    def require_positions(self, positions: int) -> None:
        """Refuse a text that is longer than the model's learned positions."""
        if self._max_positions is not None and positions > self._max_positions:
            raise ValueError(f"a text of {positions} tokens, but the model has {self._max_positions} positions")

    def require_sound(self, best: Rows) -> None:
        """Raise `BrokenLogitsError` where a -1 in place of a token reports broken logits."""
        for row in best:
            if -1 in row:
                raise BrokenLogitsError.at(self.name, self._steps)


def _ends(model: PreTrainedModel, name: str) -> tuple[int, frozenset[int]]:
    """Return the token that ends a text, and all tokens that do, which generation configurations may list."""
    # A generation configuration may list several, of which the model's own one is the first.
    listed = [getattr(config, "eos_token_id", None) for config in (model.config, getattr(model, "generation_config", None))]
    first, generating = ([*ids] if isinstance(ids, list | tuple) else [] if ids is None else [ids] for ids in listed)
    ends = frozenset(one for one in generating or first if isinstance(one, int))
    if not ends:
        raise InputError(f"the {name} model has no end token; set eos_token_id in its config.json")
    return next(token for token in [*first, *generating] if token in ends), ends


def _start_token(model: PreTrainedModel, name: str) -> int:
    """Return the token that every output begins with, which configurations keep in one of two places."""
    listed = [getattr(one, "decoder_start_token_id", None) for one in (getattr(model, "generation_config", None), model.config)]
    start = next((one for one in listed if one is not None), None)
    start = getattr(model.config, "bos_token_id", None) if start is None else start
    known = len(model.get_input_embeddings().weight)
    if not isinstance(start, int) or not 0 <= start < known:
        fix = f"set decoder_start_token_id in its config.json to one of its {known} tokens"
        raise InputError(f"the {name} model begins its outputs with the token {start!r}, which it does not have; {fix}")
    return start


def encode_prompts(prompts: Rows, name: str, device: torch.device) -> EncoderOutput:
    """Return the prompts unchanged.

    Raises:
        InputError: a prompt is empty; a model without an encoder needs at least one token to start from.
    """
    if not all(prompts):
        number = [len(prompt) for prompt in prompts].index(0) + 1
        raise InputError(f"source {number} is empty; the {name} model is decoder-only and needs a prompt of at least one token")
    rows = len(prompts)
    return EncoderOutput(torch.empty(rows, 0, 0, device=device), torch.empty(rows, 0, dtype=torch.long, device=device), prompts)


def skipped_columns(prompts: Sequence[int], cached: Sequence[int], counts: Sequence[int]) -> int:
    """Return how many leading new columns lie inside every row's prompt; the tokens that they would predict are known.

    Takes the number of tokens in each row's prompt, in its cache, and in this run.
    """
    # Column i of a row predicts token before + i + 1; it is known while that lies in the prompt.
    inside = [prompt - 1 - before for prompt, before, count in zip(prompts, cached, counts, strict=True) if count]
    # At least one column stays, which the caller reads.
    return max(0, min(min(inside), max(counts) - 1))
