"""Labels the training inputs with the large model: reads them in shards, decodes them, and checks and counts the outputs."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from tasks.alignment.calibration_set import FAULTS, LabelledOutputs
from tasks.alignment.settings import CalibrateSettings
from tasks.corpora.example import Example, stream_jsonl
from tasks.decoding.decoder import Decoder, Rows
from tasks.decoding.generation import Generation
from tasks.decoding.given_text import TopPredictions, generate_recorded
from tasks.decoding.method import Pair, Request
from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.registry import decode
from tasks.errors import InputError
from tasks.evaluation.scoring.quality import longest_echo
from tasks.models.prompting import encode_sources
from tasks.models.settings import TextSettings
from tasks.training.data import TokenDataset, encode_targets
from tasks.training.objective import target_log_probs

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_LONGEST_GROUP = 4
"""In tokens. An output that repeats longer groups is over-long anyway."""
_MOST_LOGITS = 2**26
"""Most logits of one run of the model: 256 MB in float32."""

Output = tuple[Generation, TopPredictions | None]
"""An output, and the predictions along it where they are stored."""


@dataclass(frozen=True)
class Shard:
    """Inputs that are labelled and saved together."""

    name: str
    first: int
    """Index of its first input, over all sets."""
    examples: list[Example]
    """The inputs with the corpus' references; unlabelled ones have none."""


@dataclass(frozen=True)
class InputSet:
    """The inputs of one set. Their texts are read when needed."""

    name: str
    """Name of the resulting set, calibration or validation."""
    indices: dict[Path, list[int]]
    """JSONL files, and the indices of the examples taken from each, ascending."""
    samples: int
    """Outputs per input."""
    first: int = 0
    """Index of the first input, over all sets."""

    def __len__(self) -> int:
        return sum(map(len, self.indices.values()))

    def sizes(self, size: int) -> dict[str, int]:
        """Return the names of the shards of `size` inputs, with the number of inputs in each; the last one may be smaller."""
        return {f"{self.name}-{begin // size:05d}": min(size, len(self) - begin) for begin in range(0, len(self), size)}

    def shards(self, size: int) -> Iterator[Shard]:
        """Yield the shards with their texts."""
        examples, first = self._examples(), self.first
        for name, count in self.sizes(size).items():
            yield Shard(name, first, list(itertools.islice(examples, count)))
            first += count

    def _examples(self) -> Iterator[Example]:
        for file, indices in self.indices.items():
            wanted = set(indices)
            yield from (example for index, example in enumerate(stream_jsonl(file)) if index in wanted)


def input_set(
    name: str, whole: list[Path], part: tuple[Path, float, int] | None = None, *, samples: int = 1, first: int = 0
) -> InputSet:
    """Collect the inputs of a set.

    Args:
        name: Name of the set.
        whole: Files that are taken as a whole.
        part: A file of which a fraction is taken, before the others: file, fraction, and seed of the draw.
        samples: Outputs per input.
        first: Index of the first input, over all sets.

    Raises:
        InputError: a file is missing or broken, or there are no inputs.
    """
    indices: dict[Path, list[int]] = {}
    if part is not None:
        file, share, seed = part
        known = _count(file)
        rng = random.Random(f"calibrate {seed}")  # noqa: S311 (a choice, not a secret)
        indices[file] = sorted(rng.sample(range(known), max(1, round(known * share)) if known else 0))
    indices.update({file: list(range(_count(file))) for file in whole})
    found = InputSet(name, indices, samples, first)
    if not len(found):
        raise InputError(f"{' and '.join(map(str, indices))} holds no examples; run the stage prepare again (dvc repro)")
    return found


def _count(file: Path) -> int:
    return sum(1 for _ in stream_jsonl(file))


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
        self._tokenizer, self._text, self.settings, self._predictor = tokenizer, text, settings, predictor
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
        if self.settings.texts == "references":
            return self._label_references(inputs, advance)
        counts, examples, controls = Counter(inputs=len(inputs)), list[Example](), list[Example]()
        written = list[Output]()
        # 1. Let the large model write, in batches of inputs of similar length.
        rows = encode_sources(self._tokenizer, [one.source for one in inputs], self._text)
        outputs = self._decode([row for row in rows for _ in range(samples)], first * samples, advance)
        texts = self._tokenizer.batch_decode([one.tokens for one, _ in outputs], skip_special_tokens=True)
        # 2. Keep what is fit for training, and count the rest by its fault.
        seen: set[tuple[int, str]] = set()
        for index, ((one, top), text) in enumerate(zip(outputs, texts, strict=True)):
            source = inputs[index // samples]
            fault = find_fault(one.tokens, text, self._pair.large.end_tokens, self.settings)
            kind = fault or ("repeated" if (index // samples, text) in seen else "kept")
            seen.add((index // samples, text))
            counts.update({"outputs": 1, kind: 1})
            if kind == "kept":
                counts["tokens"] += len(one.tokens)
                examples.append(Example(source.source, (text,)))
                written.append((one, top))
                if source.references:
                    controls.append(source)
        # 3. Predict along the texts as a drafter will read them.
        predictions = None if self._predictor is None else self._predictor.along(examples, written)
        return LabelledOutputs(examples, controls, counts, predictions)

    def _label_references(self, inputs: list[Example], advance: Callable[[int], object]) -> LabelledOutputs:
        """Return the first reference of each input that has one, with the large model's predictions along it if stored."""
        examples = [Example(one.source, one.references[:1]) for one in inputs if one.references]
        texts = encode_targets(self._tokenizer, [one.references[0] for one in examples], self._text, decoder_only=False)
        counts = Counter(inputs=len(inputs), outputs=len(examples), kept=len(examples), tokens=sum(map(len, texts)))
        predictions = None if self._predictor is None else self._predictor.along(examples)
        advance(len(inputs))
        return LabelledOutputs(examples, examples, counts, predictions)

    def _decode(self, rows: Rows, first: int, advance: Callable[[int], object]) -> list[Output]:
        done: dict[int, Output] = {}
        order = sorted(range(len(rows)), key=lambda index: -len(rows[index]))
        for begin in range(0, len(order), self.settings.batch_size):
            batch = order[begin : begin + self.settings.batch_size]
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


def find_fault(tokens: Sequence[int], text: str, ends: Collection[int], settings: CalibrateSettings) -> str | None:
    """Return the first fault of an output, one of `FAULTS`, or None.

    Args:
        tokens: Generated tokens; the last one is the end token if it was reached.
        text: Their text.
        ends: End tokens.
        settings: Whether an output may lack its end, and how often a group of tokens may be repeated.
    """
    over_long, empty, degenerate = FAULTS
    ended = bool(tokens) and tokens[-1] in ends
    if tokens and not ended and not settings.keep_over_long:
        return over_long
    if not text.strip():
        return empty
    repeats = count_repeats(tokens[:-1] if ended else tokens)
    return degenerate if 0 < settings.max_repeats < repeats else None


def count_repeats(tokens: Sequence[int]) -> int:
    """Return the most consecutive repetitions of any group of one to four tokens; 0 without tokens."""
    lengths = range(1, min(_LONGEST_GROUP, len(tokens)) + 1)
    return max((1 + longest_echo(tokens, length) // length for length in lengths), default=0)


class TopLogitsPredictor:
    """Gives the k most likely tokens of a model at each target position of texts as a drafter will read them.

    A text that the model wrote in these very tokens has its recorded predictions. One that the tokenizer splits otherwise is
    run through the `transformers` model again.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        text: TextSettings,
        vocabulary: int,
        kept: int,
        batch_size: int,
    ) -> None:
        """Take the model, its tokenizer and length limits, the number of ids it predicts over, k, and the largest batch.

        Raises:
            InputError: k exceeds the vocabulary.
        """
        if kept > vocabulary:
            raise InputError(f"calibrate.top_logits is {kept}, but the vocabulary has {vocabulary} tokens; lower it")
        self._model, self._tokenizer, self._text = model, tokenizer, text
        self.kept = kept
        self._vocabulary, self._batch_size = vocabulary, batch_size

    @torch.inference_mode()
    def along(self, examples: list[Example], written: Sequence[Output] = ()) -> list[TopPredictions]:
        """Return the predictions along each example.

        Args:
            examples: The texts.
            written: Each of them as the model wrote it, where it did.
        """
        if not examples:
            return []
        texts = self.tokenised(examples)
        # 1. Texts that a drafter reads in the very tokens that the model wrote; the last one is predicted, and read by nothing.
        known = zip(written, texts.targets, strict=False)
        found = {
            index: top for index, ((one, top), read) in enumerate(known) if top is not None and one.tokens[:-1] == read[:-1]
        }
        # 2. The others, in batches of similar length, each as large as the memory limit allows.
        lengths = [len(source) + len(target) for source, target in zip(texts.sources, texts.targets, strict=True)]
        order = sorted((index for index in range(len(texts)) if index not in found), key=lambda index: -lengths[index])
        while order:
            size = min(self._batch_size, max(1, _MOST_LOGITS // (lengths[order[0]] * self._vocabulary)))
            indices, order = order[:size], order[size:]
            batch = texts.batch(indices).to(self._model.device)
            best, tokens = target_log_probs(self._model, batch, self._vocabulary).topk(self.kept)  # (positions, k) both
            ends = [len(texts.targets[index]) for index in indices]
            rows = (torch.split(numbers.cpu(), ends) for numbers in (tokens, best))
            found.update(zip(indices, zip(*rows, strict=True), strict=True))
        return [found[index] for index in range(len(examples))]

    def tokenised(self, examples: list[Example]) -> TokenDataset:
        """Return the examples, tokenised exactly as `tasks.training.data.JsonlDataset` reads them from a file."""
        decoder_only = not self._model.config.is_encoder_decoder
        sources = encode_sources(self._tokenizer, [example.source for example in examples], self._text)
        texts = [example.references[0] for example in examples]
        targets = encode_targets(self._tokenizer, texts, self._text, decoder_only=decoder_only)
        return TokenDataset(sources, targets, self._tokenizer.pad_token_id, decoder_only=decoder_only)
