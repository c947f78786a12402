"""Decodes inputs in batches with the large model, checks the outputs, and counts them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tasks.alignment.calibrating.checks import find_fault
from tasks.alignment.calibrating.predicting import TopLogitsPredictor, WrittenText
from tasks.alignment.calibrating.settings import CalibrateSettings
from tasks.corpora.example import Example
from tasks.decoding.decoder import Decoder, Rows
from tasks.decoding.generation import Generation
from tasks.decoding.given_text import TopPredictions, generate_recorded
from tasks.decoding.method import Pair, Request
from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.registry import decode
from tasks.models.prompting import encode_sources
from tasks.models.settings import TextSettings
from tasks.models.tokenizers import encode

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


Output = tuple[Generation, TopPredictions | None]
"""An output, and the predictions along it where they are stored."""


@dataclass(frozen=True)
class LabelledOutputs:
    """The large model's outputs for some inputs."""

    examples: list[Example]
    """Source and output, as the only reference, of each output that is fit for training."""
    controls: list[Example]
    """The same inputs with the corpus' references, in the same order; inputs without references are left out."""
    counts: Counter[str]
    """`inputs`; `outputs`; `kept` outputs and their `tokens`, end tokens included; each of `checks.FAULTS`; `repeated`: equal
    to an earlier output of the same input."""
    predictions: list[TopPredictions] | None
    """Top token ids and log-probabilities of each example (see `stored.pack_top_logits`); None if none are stored."""


class Labeller:
    """Generates the large model's outputs for a calibration set."""

    def __init__(
        self,
        decoder: Decoder,
        tokenizer: PreTrainedTokenizerBase,
        text: TextSettings,
        settings: CalibrateSettings,
        predictor: TopLogitsPredictor | None = None,
    ) -> None:
        """Take the large model as a decoder, its tokenizer, the settings, and optionally a predictor of the stored logits."""
        self._pair = Pair(small=decoder, large=decoder)
        self._tokenizer, self._text, self._settings, self._predictor = tokenizer, text, settings, predictor
        self._request = Request(text.max_target_tokens, settings.sampling, settings.seed)

    def label(
        self, inputs: list[Example], first: int = 0, samples: int = 1, advance: Callable[[int], object] = lambda _: None
    ) -> LabelledOutputs:
        """Return the outputs for some inputs, in order.

        Args:
            inputs: The inputs, with the references that the corpus has for them.
            first: Index of the first input; it keys the random draws, with the seed.
            samples: Outputs drawn for each input.
            advance: Called with the number of outputs of each finished batch.
        """
        if self._settings.texts == "references":
            return self._label_references(inputs, advance)
        counts, examples, controls = Counter(inputs=len(inputs)), list[Example](), list[Example]()
        written = list[WrittenText]()
        rows = encode_sources(self._tokenizer, [one.source for one in inputs], self._text)
        outputs = self._decode([row for row in rows for _ in range(samples)], first * samples, advance)
        texts = self._tokenizer.batch_decode([one.tokens for one, _ in outputs], skip_special_tokens=True)
        seen: set[tuple[int, str]] = set()
        for index, ((one, top), text) in enumerate(zip(outputs, texts, strict=True)):
            input_index = index // samples
            kind = self._classify(one, text, (input_index, text) in seen)
            seen.add((input_index, text))
            counts.update({"outputs": 1, kind: 1})
            if kind == "kept":
                counts["tokens"] += len(one.tokens)
                examples.append(Example(inputs[input_index].source, (text,)))
                written.append(WrittenText(one.tokens, top))
                if inputs[input_index].references:
                    controls.append(inputs[input_index])
        predictions = None if self._predictor is None else self._predictor.along(examples, written)
        return LabelledOutputs(examples, controls, counts, predictions)

    def _label_references(self, inputs: list[Example], advance: Callable[[int], object]) -> LabelledOutputs:
        """Return the first reference of each input that has one, with the large model's predictions along it if stored."""
        examples = [Example(one.source, one.references[:1]) for one in inputs if one.references]
        texts = encode(self._tokenizer, [one.references[0] for one in examples], self._text.max_target_tokens)
        counts = Counter(inputs=len(inputs), outputs=len(examples), kept=len(examples), tokens=sum(map(len, texts)))
        predictions = None if self._predictor is None else self._predictor.along(examples)
        advance(len(inputs))
        return LabelledOutputs(examples, examples, counts, predictions)

    def _classify(self, one: Generation, text: str, seen: bool) -> str:
        fault = find_fault(one.tokens, text, self._pair.large.end_tokens, self._settings.max_repeats)
        return fault or ("repeated" if seen else "kept")

    def _decode(self, rows: Rows, first: int, advance: Callable[[int], object]) -> list[Output]:
        done: dict[int, Output] = {}
        for batch in self._batches(rows):
            outputs = self._decode_batch([rows[index] for index in batch], [first + index for index in batch])
            done.update(zip(batch, outputs, strict=True))
            advance(len(batch))
        return [done[index] for index in range(len(rows))]

    def _decode_batch(self, sources: Rows, numbers: Sequence[int]) -> list[Output]:
        if self._predictor is not None:
            kept = self._predictor.kept
            return list(zip(*generate_recorded(self._pair.large, sources, self._request, numbers, kept), strict=True))
        generations = decode("vanilla_large", VanillaSettings(), self._pair, sources, self._request, numbers)
        return [(one, None) for one in generations]

    def _batches(self, rows: Rows) -> Iterator[Sequence[int]]:
        """Yield batches of inputs of similar length, longest first."""
        order = sorted(range(len(rows)), key=lambda index: -len(rows[index]))
        for begin in range(0, len(order), self._settings.batch_size):
            yield order[begin : begin + self._settings.batch_size]
