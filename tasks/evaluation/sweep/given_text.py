"""Perplexity as a metric: points are evaluated on given texts (BiLD-v1, section 4.2).

Perplexity is of the distribution that tokens are drawn from, at temperature 1. Where the small model drafts and the large one
takes over, that is q at the drafted positions and p at all others. A rule that examines drafted tokens has no such distribution
on a given text: whether its tokens stay depends on a draw that did not happen.

Quality is of the second part of every example, whose tokens are given. Both models read each text once; every point of the grid
is scored from these predictions (`decoding.given_text`). Timed is the decoding of the same tokens one by one, as the method
would write them, beside the large model that is made to write them alike.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tasks.console import progress
from tasks.corpora.example import Example
from tasks.decoding.decoder import Rows, TokenGuarantee
from tasks.decoding.generation import Generation
from tasks.decoding.given_text import GivenText, TextPredictions, predict_along, score, without_end_tokens
from tasks.decoding.method import DecodingMethod, Pair, Request
from tasks.decoding.methods.baselines import SmallModelMethod, as_small
from tasks.decoding.registry import METHODS
from tasks.decoding.turn import LoopParts
from tasks.errors import InputError
from tasks.evaluation.scoring.quality import OutputCheck, Quality, score_likelihoods
from tasks.evaluation.sweep.clock import Decode, PointTimer, Visit
from tasks.evaluation.sweep.grid import SweepPoint
from tasks.evaluation.sweep.replay import Outputs, Split
from tasks.evaluation.sweep.rows import PointEvaluator
from tasks.evaluation.timing import TimedTokensError, guarantee_of
from tasks.models.prompting import encode

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


_TOLERANCE = 1e-3
"""Nats of a token by which the predictions of one run over a text and of a run for each token may differ in float32."""


def given_tokens(tokenizer: PreTrainedTokenizerBase, examples: Sequence[Example], limit: int) -> Rows:
    """The tokens of each first reference that are scored: at most `limit - 1`, and no end token, which only a cut put there.

    Raises:
        InputError: a text has no token.
    """
    rows = encode(tokenizer, [example.references[0] for example in examples], limit)
    start = getattr(tokenizer, "bos_token_id", None)
    texts = [row[row[0] == start : -1] for row in rows]
    for number, text in enumerate(texts, start=1):
        if not text:
            raise InputError(f"example {number}: its text has no token to score; raise text.max_target_tokens, or remove it")
    return texts


class GivenTextEvaluator(PointEvaluator):
    """Evaluates points of one sweep on given texts. None is planned or replayed, since a point costs no run of a model."""

    @functools.cached_property
    def _predictions(self) -> dict[str, list[TextPredictions]]:
        return {}

    @property
    def decodes_together(self) -> bool:
        return False

    def decoded(self, point: SweepPoint, split: Split) -> Outputs:
        """The tokens of the texts with the counts of the point, and how likely it finds each text."""
        endless, outputs, timed = without_end_tokens(self.pair), Outputs("scored"), set(split.timed)
        method = _composed(point, endless, self.request, GivenText([]))
        for example, known in enumerate(self._along(split)):
            generation = _scored(method, known, example)
            outputs.add(example, generation, timed=example in timed)
            outputs.log_likelihoods.append(math.fsum(generation.log_probabilities))
        return outputs

    def check_vanilla(self, split: Split) -> OutputCheck | None:  # noqa: ARG002 (nothing is generated)
        """None: there is no output to compare with trivial ones."""
        return None

    def _quality(self, outputs: Outputs, split: Split) -> Quality:  # noqa: ARG002 (the outputs hold the likelihoods)
        lengths = list(map(len, outputs.tokens))
        return score_likelihoods(outputs.log_likelihoods, lengths, self.sweep.bootstrap_samples, self.sweep.seed)

    def _along(self, split: Split) -> list[TextPredictions]:
        """Both models' predictions along the texts of a split, by example."""
        if split.name not in self._predictions:
            texts = given_tokens(self.tokenizer, split.examples, self.request.max_new_tokens)
            read = zip(split.sources, texts, strict=True)
            bar = progress(read, desc=f"read {split.name}", total=len(texts), unit="text", mininterval=2.0)
            endless = without_end_tokens(self.pair)
            self._predictions[split.name] = [predict_along(endless, source, text) for source, text in bar]
        return self._predictions[split.name]


class GivenTextTimer(PointTimer):
    """Times the decoding of the given texts one token after the other, as each method would write them."""

    def _timed_call(self, visit: Visit, split: Split, request: Request) -> Decode:
        texts = visit.expected.tokens
        given = GivenText([list(texts.get(example, ())) for example in range(len(split.examples))])
        method = _composed(visit.point, without_end_tokens(self.pairs[visit.drafter]), request, given)

        def run(batch: list[int]) -> list[Generation]:
            [example] = batch
            [one] = method.run([split.sources[example]], batch, len(given.texts[example]))
            return [Generation(one.tokens, one.proposers, one.counts, given.log_probabilities(example))]

        return run

    def _mismatches(self, visit: Visit, generations: Sequence[Generation], split: Split, request: Request) -> int | None:
        """Timed texts that were scored token by token otherwise than from one run of each model over them.

        Raises:
            TimedTokensError: rounding does not explain it, and the runtimes promise equal tokens.
        """
        endless = without_end_tokens(self.pairs[visit.drafter])
        method = _composed(visit.point, endless, request, GivenText([]))
        exact, mismatches = guarantee_of(endless) is not TokenGuarantee.NONE, 0
        for example, timed in zip(split.timed, generations, strict=True):
            known = predict_along(endless, split.sources[example], list(visit.expected.tokens[example]))
            expected = _scored(method, known, example)
            position = first_difference(timed, expected)
            if position is not None:
                mismatches += 1
                turned = timed.proposers[position] != expected.proposers[position]
                if exact and not (turned and on_the_edge(known, position, _parts_of(method))):
                    place = f"{visit.point}: {split.name} example {example}, position {position}"
                    otherwise = "otherwise than one run of each model over it"
                    raise TimedTokensError(f"{place}: the timed call scored the given text {otherwise}")
        return mismatches


def _composed(point: SweepPoint, endless: Pair, request: Request, given: GivenText) -> DecodingMethod:
    return METHODS[point.method].make(point.settings, endless, dataclasses.replace(request, draws=given))


def _parts_of(method: DecodingMethod) -> LoopParts:
    """The loop that a method is: that of one model alone for the small model."""
    parts = method.method if isinstance(method, SmallModelMethod) else method
    if not isinstance(parts, LoopParts):
        raise TypeError(f"{type(method).__name__} is no speculative loop, so that it scores no given text")
    return parts


def _scored(method: DecodingMethod, known: TextPredictions, example: int) -> Generation:
    """A text as the method scores it."""
    if isinstance(method, SmallModelMethod):
        alone = dataclasses.replace(known, log_p=known.log_q)
        return as_small(score(_parts_of(method), alone, example))
    return score(_parts_of(method), known, example)


def first_difference(timed: Generation, expected: Generation) -> int | None:
    """The first position of a text that the two score with different models, or by more than rounding; None without one."""
    pairs = zip(timed.proposers, expected.proposers, timed.log_probabilities, expected.log_probabilities, strict=True)
    return next(
        (
            position
            for position, (own, other, value, wanted) in enumerate(pairs)
            if own != other or not math.isclose(value, wanted, rel_tol=0, abs_tol=_TOLERANCE)
        ),
        None,
    )


def on_the_edge(known: TextPredictions, position: int, parts: LoopParts) -> bool:
    """Whether the small model's confidence at a position is so near a bound of the draft rule that rounding decides."""
    rule = parts.draft_rule
    bounds = (known.confidence[position], rule.fallback_threshold), (known.entropy[position], rule.max_entropy)
    return any(abs(value - bound) < _TOLERANCE for value, bound in bounds)
