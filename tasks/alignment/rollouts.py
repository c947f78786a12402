"""On-policy text: generated during training with the drafter's current weights, and kept until no checkpoint needs it.

A drafter that is trained on its own texts learns to continue after its own mistakes (DistillSpec, Zhou et al., 2023, section 4;
generalised knowledge distillation, Agarwal et al., 2024, Algorithm 1). In interleaved text the large model replaces the tokens
that it finds unlikely (speculative knowledge distillation, Xu et al., 2024).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from tasks.alignment.settings import AlignSettings
from tasks.decoding.decoder import AUTO, REFERENCE, Decoder, Rows
from tasks.decoding.distributions import PredictionBlock, probability
from tasks.decoding.method import DecodingMethod, Pair, Request, SamplingSettings
from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.methods.speculative import SpeculativeSettings, fixed_window
from tasks.decoding.registry import METHODS
from tasks.decoding.rules import AcceptanceResult, AcceptanceRule, BonusToken
from tasks.decoding.runtimes.choose import open_decoder
from tasks.files import sealed, unsealed, warn_of_damage
from tasks.training import distributed
from tasks.training.checkpoints import KEPT_CHECKPOINTS, writing_to_resume
from tasks.training.data import Batch, BatchSource, BucketBatchSampler, TokenDataset, own_parts, split_microbatches

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_BATCH_SIZE = 64

GenerateRollouts = Callable[[Rows, Sequence[int], int], Rows]
"""Takes sources, a number for each that keys its random draws, and a seed; generates a text for each with the drafter."""


class OnPolicySource:
    """A `BatchSource` that replaces the targets of some steps by newly generated ones; the inputs of a step stay the same.

    Texts are generated for a window of steps at once. They depend on the weights at its first step, so they are saved: a run
    that resumes within the window reads them again. Each process generates its own share. Draws are keyed by a text's number
    within the window, so that the texts do not depend on the number of processes.
    """

    def __init__(
        self,
        calibration: BatchSource,
        examples: TokenDataset,
        settings: AlignSettings,
        generate: GenerateRollouts,
        folder: Path,
    ) -> None:
        """Store the inputs and the generator of targets.

        Args:
            calibration: Batches of the steps that are not on-policy.
            examples: Dataset of the inputs; its lengths shape the batches.
            settings: The share of on-policy steps, and the steps of a window.
            generate: Generates texts with the drafter.
            folder: Folder of the saved rollouts, for this work alone.
        """
        self._calibration, self._examples, self._settings = calibration, examples, settings
        self._sampler = BucketBatchSampler(examples, settings)
        self._generate, self._folder = generate, folder
        self._steps, self._positions, self._rollouts = list[int](), dict[int, list[int]](), examples

    def is_on_policy(self, step: int) -> bool:
        """Whether a step reads generated text; the draw depends only on seed and step."""
        draw = random.Random(f"{self._settings.seed} on policy {step}").random()  # noqa: S311 (a mixture, not a secret)
        return draw < self._settings.on_policy

    def window(self, step: int) -> list[int]:
        """Return all on-policy steps whose texts are generated together with this step's."""
        begin = step - step % self._settings.write_every
        end = min(begin + self._settings.write_every, self._settings.steps)
        return [other for other in range(begin, end) if self.is_on_policy(other)]

    def microbatches(self, step: int) -> list[Batch]:
        if not self.is_on_policy(step):
            return self._calibration.microbatches(step)
        steps = self.window(step)
        if steps != self._steps:
            self._open(steps)
        return split_microbatches(self._rollouts, self._positions[step], self._settings.accumulation)

    def _open(self, steps: list[int]) -> None:
        """Generate this process's share of the texts of these steps, or read it."""
        # 1. Number the texts of the window over all processes, and find this process's own.
        examples, positions = list[int](), dict[int, list[int]]()
        for step in steps:
            batch = self._sampler.batch_at(step)
            positions[step] = list(range(len(examples), len(examples) + len(batch)))
            examples += batch
        own = list[int]()
        for step in steps:
            own += sorted(itertools.chain(*own_parts(positions[step], self._settings.accumulation)))
        # 2. Read what an interrupted run has generated, or generate it now.
        sources = [self._examples.sources[example] for example in examples]
        file = self._folder / f"texts{steps[0]:08d}-{steps[-1]:08d}-{distributed.rank()}.json"
        texts = _read(file)
        if texts is None:
            texts = self._generate([sources[position] for position in own], own, self._settings.seed * 1_000_003 + steps[0])
            self._save(texts, file)
            self._remove_before(steps[0])
        # 3. This process never reads the texts of others; the dataset's own targets fill their positions.
        targets = [self._examples.targets[example] for example in examples]
        for position, text in zip(own, texts, strict=True):
            targets[position] = text
        self._steps, self._positions = steps, positions
        self._rollouts = TokenDataset(sources, targets, self._examples.pad, decoder_only=self._examples.decoder_only)

    def _save(self, texts: Rows, file: Path) -> None:
        """Save this process's texts; raise `InputError` if no space is left."""
        self._folder.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(".partial")
        with writing_to_resume("text generated during training", partial, self._folder):
            partial.write_text(sealed(json.dumps({"texts": texts})))
        partial.rename(file)

    def _remove_before(self, step: int) -> None:
        """Remove this process's texts of windows that end before the oldest checkpoint kept at this step."""
        interval = self._settings.checkpoint_every
        oldest = (step // interval - KEPT_CHECKPOINTS + 1) * interval
        for file in self._folder.glob(f"texts*-{distributed.rank()}.json"):
            if int(file.name.split("-")[1]) < oldest:
                file.unlink()


def _read(file: Path) -> Rows | None:
    """Return saved texts; None if the file is missing or damaged."""
    try:
        texts: Rows = json.loads(unsealed(file.read_text()))["texts"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        warn_of_damage(file, error)
        return None
    return texts


class RolloutGenerator:
    """Generates texts with a drafter in training and, for interleaved text, the large model."""

    def __init__(
        self, drafter: PreTrainedModel, large: PreTrainedModel, vocabulary: int, limit: int, settings: AlignSettings
    ) -> None:
        """Take the two models, which are on one device.

        Args:
            drafter: A model of `transformers`, with its complete weights.
            large: A model of the same architecture, in evaluation mode.
            vocabulary: Number of ids that both predict over.
            limit: Most tokens of a text; a text cut there has no end token.
            settings: The writer and its sampling temperature.
        """
        self._drafter, self._large_model, self._vocabulary, self._limit = drafter, large, vocabulary, limit
        self._settings = settings
        # The fused runtime would record its graphs again for new weights, which takes longer than generating a window.
        self._runtime = AUTO if drafter.device.type == "cpu" else REFERENCE

    def generate(self, sources: Rows, numbers: Sequence[int], seed: int) -> Rows:
        """Generate a text for each source with the drafter's current weights.

        Args:
            sources: Token ids of each source.
            numbers: A number for each source that keys its random draws, with the seed.
            seed: Seed of this window of steps.
        """
        request = Request(self._limit, SamplingSettings(temperature=self._settings.writing_temperature), seed)
        with _evaluating(self._drafter):
            # Fast runtimes copy the weights when they open a model, so the drafter is opened again for each window.
            small = open_decoder(self._drafter, "small", self._vocabulary, self._runtime)
            if self._settings.writer == "drafter":
                method = METHODS["vanilla_small"].make(VanillaSettings(), Pair(small, small), request)
            else:
                method = interleaved(Pair(small, self._large), request, self._settings.interleave_top_k)
            # Texts of similar length are decoded together; results are in the order of the sources.
            order = sorted(range(len(sources)), key=lambda row: -len(sources[row]))
            texts: Rows = [[]] * len(sources)
            for begin in range(0, len(order), _BATCH_SIZE):
                batch = order[begin : begin + _BATCH_SIZE]
                found = method.run([sources[row] for row in batch], [numbers[row] for row in batch], self._limit)
                for row, generation in zip(batch, found, strict=True):
                    texts[row] = generation.tokens
        return texts

    @functools.cached_property
    def _large(self) -> Decoder:
        return open_decoder(self._large_model, "large", self._vocabulary, self._runtime)


@contextlib.contextmanager
def _evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Switch the model to evaluation mode, and back to its mode afterwards."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def interleaved(pair: Pair, request: Request, top_k: int) -> DecodingMethod:
    """Interleaved sampling as a speculative loop; the draft length affects speed, not the distribution."""
    return fixed_window(pair, SpeculativeSettings(), top_k_rule(top_k), request)


def top_k_rule(top_k: int) -> AcceptanceRule:
    """Accept a token that is among the `top_k` most likely of p, ties included; otherwise draw a token from p.

    There is no bonus token: after a fully accepted draft, the drafter continues (speculative knowledge distillation, Xu et al.,
    2024, Algorithm 1). A token x thus has the probability q(x) if it is among the top k, plus p(x) times the mass that q gives
    to tokens outside them.
    """

    def apply(tokens: Tensor, _: PredictionBlock, p: PredictionBlock) -> AcceptanceResult:
        least = p.logits.topk(min(top_k, p.logits.shape[-1]), dim=-1).values[..., -1]  # (rows, n)
        return AcceptanceResult(probability(p.logits, tokens) >= least, p)

    return AcceptanceRule(apply, bonus=BonusToken.NONE)
