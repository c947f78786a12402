"""Predictions along texts: of a given text, and of the text that a model writes itself.

In a given text every token is the text's own, and the models only say how likely it was (BiLD-v1, section 4.2). The large
model and the small one each read a text in one run (`predict_along`). Which of them a method takes at each position then
follows from these predictions by the same draft rule and turns as in `loop.generate` (`score`), without running a model
again. `GivenText` makes the loop itself decode the text, token by token, which is what is timed.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tasks.decoding.decoder import Decoder, EncoderOutput, Rows, Step
from tasks.decoding.distributions import Key, PredictionBlock, TokenSource
from tasks.decoding.draft_rule import DraftBuilder, DraftRule
from tasks.decoding.drafters.base import NoDrafter
from tasks.decoding.generation import SMALL, Generation
from tasks.decoding.loop import generate
from tasks.decoding.method import Pair, Request, SamplingSettings
from tasks.decoding.rules import accept_all
from tasks.decoding.turn import LoopParts, RowState

UNTRUNCATED = SamplingSettings(temperature=1.0)
"""How tokens of a given text are drawn: from the models' own softmax, which perplexity is about."""


class GivenText(TokenSource):
    """A token source that yields the tokens of given texts and records their probabilities."""

    kernel = "never"

    def __init__(self, texts: Rows) -> None:
        """Take the texts by example; the first position drawn for an example is its first token."""
        super().__init__(0)
        self.texts = texts
        self._first: dict[int, int] = {}
        self._recorded: list[dict[int, float]] = [{} for _ in texts]

    def draw(self, dist: Tensor, keys: Sequence[Key]) -> list[int]:
        positions = [key.position - self._first.setdefault(key.example, key.position) for key in keys]
        # Rows whose draft has stopped are drawn for as well, even past the end of the text; the scoring model draws last.
        tokens = [
            self.texts[key.example][index] if index < len(self.texts[key.example]) else 0
            for key, index in zip(keys, positions, strict=True)
        ]
        given = dist.gather(-1, torch.tensor(tokens, device=dist.device)[:, None]).squeeze(-1).double().log().tolist()
        for key, index, value in zip(keys, positions, given, strict=True):
            self._recorded[key.example][index] = value
        return tokens

    def log_probabilities(self, example: int) -> list[float]:
        """The log-probability of each token of a text in nats, under the model that drew it last."""
        recorded = self._recorded[example]
        return [recorded[index] for index in range(len(self.texts[example]))]


def without_end_tokens(pair: Pair) -> Pair:
    """The same models without end tokens, since a given text ends at its last token."""
    return dataclasses.replace(pair, small=_endless(pair.small), large=_endless(pair.large))


def _endless(decoder: Decoder) -> Decoder:
    other = copy.copy(decoder)
    other.end_token, other.end_tokens = -1, frozenset()
    return other


@dataclass(frozen=True)
class TextPredictions:
    """What both models predict along a given text, position by position."""

    tokens: list[int]
    log_q: list[float]
    """The small model's log-probability of each token, in nats."""
    log_p: list[float]
    """The large model's."""
    confidence: list[float]
    """The small model's top score at each position."""
    entropy: list[float]
    """The entropy of the small model's scores, in nats."""


@torch.inference_mode()
def predict_along(pair: Pair, source: list[int], text: list[int]) -> TextPredictions:
    """Read a text with both models, each in one run; `text` has at least one token.

    Raises:
        BrokenLogitsError: a model predicts NaN or the like.
    """
    encoder_output = pair.large.encode([source])
    # Both models read the whole text in one run each.
    p = _read(pair.large, encoder_output, text)
    q = _read(pair.small, encoder_output if pair.shares_encoder else pair.small.encode([source]), text)
    tokens = torch.tensor([text], device=p.logits.device)
    log_q, log_p, confidence, entropy = (
        one[0].tolist() for one in (-q.surprisal(tokens.to(q.logits.device)), -p.surprisal(tokens), q.top, q.entropy)
    )
    return TextPredictions(text, log_q, log_p, confidence, entropy)


def _read(decoder: Decoder, encoder_output: EncoderOutput, text: list[int]) -> PredictionBlock:
    """One model's predictions at every position of the text: (1, positions, vocabulary)."""
    [prompt] = decoder.start(encoder_output)
    tokens = prompt + text[:-1]
    step = decoder.forward([tokens[decoder.lengths[0] :]])
    return PredictionBlock(step.last([len(text)]), UNTRUNCATED)


def score(parts: LoopParts, known: TextPredictions, example: int) -> Generation:
    """Go through the turns of a method whose drafts are all kept, on a text whose predictions are known.

    Args:
        parts: The method, of models without end tokens; its acceptance rule is not asked.
        known: The predictions along the text.
        example: The number of the text.

    Returns:
        The tokens, proposers and counts that the loop gives for this text, with the log-probability of each token under the
        model that it is taken from.
    """
    text, turns, row = known.tokens, parts.turns(len(known.tokens)), RowState(example, [], 0)
    ended = False
    while not ended:
        begin = len(row.tokens)
        draft = DraftBuilder(turns.budget(row), parts.draft_rule, frozenset())
        # 1. The draft rule sees the small model's confidence along the given text.
        while draft.going:
            index = begin + len(draft.tokens)
            draft.add(text[index], known.confidence[index], known.entropy[index])
        drafted, end = draft.tokens, begin + len(draft.tokens)
        # 2. All of a draft is kept; the large model's token follows it.
        verified = not turns.ends_unverified(row, drafted)
        ended = turns.finish(
            row,
            drafted,
            text[end] if verified else None,
            drafted=len(drafted),
            steps=draft.predictions,
            fallback=draft.fallback,
            verified=verified,
        )
    # Each token is scored by the model that it is taken from.
    row.log_probabilities = [
        known.log_q[index] if proposer == SMALL else known.log_p[index] for index, proposer in enumerate(row.proposers)
    ]
    return row.generation()


# The text that a model writes itself, with its top predictions along it: they need no second run.

TopPredictions = tuple[Tensor, Tensor]
"""Token ids, int64, and log-probabilities, float32 in nats, of one text on the CPU: (positions, k) both."""


class TopLogitsRecorder(NoDrafter):
    """Proposes nothing, and keeps the target's k most likely tokens at each position that it predicts."""

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._texts: list[list[TopPredictions]] = []
        self._rows: list[int] = []

    def start(self, encoder_output: EncoderOutput, sources: Rows) -> None:
        self._texts, self._rows = [[] for _ in sources], list(range(len(sources)))

    def observe(self, tokens: Rows, step: Step, positions: Sequence[int]) -> None:
        """Keep the predictions of the last token of each row."""
        predicting = step.logits[torch.arange(len(positions)), torch.tensor(positions)]
        logs, ids = predicting.float().log_softmax(-1).topk(self._kept)
        for row, *top in zip(self._rows, ids.cpu(), logs.cpu(), strict=True):
            self._texts[row].append((top[0], top[1]))

    def reorder(self, rows: Sequence[int]) -> None:
        self._rows = [self._rows[row] for row in rows]

    def predictions(self) -> list[TopPredictions]:
        """Return the predictions along each text, in the order of the sources."""
        return [(torch.stack([ids for ids, _ in text]), torch.stack([logs for _, logs in text])) for text in self._texts]


def generate_recorded(
    decoder: Decoder, sources: Rows, request: Request, examples: Sequence[int], kept: int
) -> tuple[list[Generation], list[TopPredictions]]:
    """Return a model's own text for each source, as `vanilla_large` decodes it, and its k most likely tokens along each."""
    recorder = TopLogitsRecorder(kept)
    parts = LoopParts(decoder, accept_all, request.sampling, TokenSource(request.seed), recorder, DraftRule(window=0))
    return generate(parts, sources, examples, request.max_new_tokens), recorder.predictions()
